"""A scenario with three sessions that run random statements, to find errors that the other scenarios miss.

The seed determines everything except the timing.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from random import Random

import psycopg

from tests.support.scenario import Place, Scenario

SESSIONS = 3
ROUNDS = 12
STEPS = 12
"""The maximum number of steps of each session in a round (see :func:`_round`)."""

NUMBERS = 10_000
"""The distance between the first numbers of consecutive seeds. Each seed uses fewer numbers than this."""

TABLES = ("by_default", "by_full", "by_index", "unkeyed")

SETUP = """
    CREATE TABLE by_default (id int PRIMARY KEY, code int NOT NULL UNIQUE, v text, big text);
    CREATE TABLE by_full (LIKE by_default INCLUDING ALL);
    CREATE TABLE by_index (LIKE by_default INCLUDING ALL);
    CREATE TABLE unkeyed (id int, code int NOT NULL, v text, big text);
    ALTER TABLE by_full REPLICA IDENTITY FULL;
    ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code_key;
    ALTER TABLE unkeyed REPLICA IDENTITY FULL;
    ALTER TABLE by_default ALTER big SET STORAGE EXTERNAL;
    ALTER TABLE by_full ALTER big SET STORAGE EXTERNAL;
    ALTER TABLE by_index ALTER big SET STORAGE EXTERNAL;
    ALTER TABLE unkeyed ALTER big SET STORAGE EXTERNAL
"""


def storm(seed: int) -> Callable[[Place], None]:
    """Return a function that runs the statements for ``seed``. Rows of different seeds have different numbers."""

    def work(place: Place) -> None:
        chance, numbers = Random(seed), count(NUMBERS * seed)
        with ExitStack() as stack:
            sessions = [stack.enter_context(place.connect()) for _ in range(SESSIONS)]
            for _ in range(ROUNDS):
                _round(chance, sessions, numbers)
                sessions[0].execute(_between(chance))
            for table in TABLES:
                sessions[0].execute(f"UPDATE {table} SET v = v")  # so that a mirror learns of the last DDL

    return work


def _round(chance: Random, sessions: list[psycopg.Connection], numbers: Iterator[int]) -> None:
    """Run one transaction in each session. Which session runs its next statement is random."""
    scripts = [_transaction(chance, owner, numbers) for owner in range(len(sessions))]
    while any(scripts):
        owner = chance.choice([owner for owner, script in enumerate(scripts) if script])
        sessions[owner].execute(scripts[owner].pop(0))


def _transaction(chance: Random, owner: int, numbers: Iterator[int]) -> list[str]:
    """Return a transaction that changes only rows of session ``owner``, so that sessions never wait for each other."""
    script = ["BEGIN"]
    for _ in range(chance.randint(1, STEPS)):
        statement = _statement(chance, owner, numbers)
        if chance.random() < 0.2:
            more = _statement(chance, owner, numbers)
            script += ["SAVEPOINT a", statement, "SAVEPOINT b", more, f"ROLLBACK TO {chance.choice('ab')}"]
        else:
            script.append(statement)
    return [*script, chance.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK"))]


def _statement(chance: Random, owner: int, numbers: Iterator[int]) -> str:
    table = chance.choice(TABLES)
    fresh = SESSIONS * next(numbers) + owner
    mine = f"id % {SESSIONS} = {owner}"
    several = f"SELECT {fresh} + 3000000 * g, {fresh} + 3000000 * g, NULL FROM generate_series(1, 5) AS g"
    one = f"ctid = (SELECT ctid FROM {table} WHERE {mine} ORDER BY md5(id::text || '{fresh}') LIMIT 1)"
    return chance.choice(
        (
            f"INSERT INTO {table} (id, code, v, big) VALUES ({fresh}, {fresh}, 'v{fresh}', repeat('{fresh}', 2000))",
            f"INSERT INTO {table} (id, code, v) {several}",
            f"UPDATE {table} SET v = '{fresh}' WHERE {one}",
            f"UPDATE {table} SET v = '{fresh}' WHERE {mine}",
            f"UPDATE {table} SET big = repeat('{fresh}', {chance.choice((1, 3000))}) WHERE {one}",
            f"UPDATE {table} SET id = {fresh} WHERE {one}",
            f"UPDATE {table} SET code = {fresh} WHERE {one}",
            f"UPDATE {table} SET id = {fresh}, code = {fresh}, big = NULL WHERE {one}",
            f"DELETE FROM {table} WHERE {one}",
            f"DELETE FROM {table} WHERE {mine} AND id % 4 = 0",
        )
    )


def _between(chance: Random) -> str:
    """Return a statement that needs exclusive access to a table."""
    table = chance.choice(TABLES)
    keyed = chance.choice(TABLES[:3])
    return chance.choice(
        (
            f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS extra int DEFAULT 5",
            f"ALTER TABLE {table} DROP COLUMN IF EXISTS extra",
            f"ALTER TABLE {table} ALTER v TYPE varchar(100)",
            f"ALTER TABLE {table} ALTER code TYPE bigint",
            f"ALTER TABLE {keyed} REPLICA IDENTITY FULL",
            f"ALTER TABLE {keyed} REPLICA IDENTITY DEFAULT",
            f"ALTER TABLE {keyed} REPLICA IDENTITY USING INDEX {keyed}_code_key",
            f"DELETE FROM {table}",
        )
    )


SCENARIOS = [
    Scenario(
        "storm",
        "Three sessions run random transactions with savepoints, TOAST and changes of keys, with DDL between them.",
        setup=SETUP,
        tables=TABLES,
        work=storm(1),
        while_down=storm(2),
        after_restart=storm(3),
    ),
]
