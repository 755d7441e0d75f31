"""The workload of a storm: transactions of many kinds, which continue while servers, brokers and the daemon fail.

Every transaction that changes published tables inserts a row into ``ledger``, with its number and the number of its
other changes. So the database itself says which transactions were committed, even if the answer to a COMMIT was lost.
One worker, the visitor, works under a replication origin, like a program that applies another server's changes. Some
tables have rows before the daemon starts, and others join the publication later. This module does not depend on the
daemon or its options.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from typing import TypeAlias

import psycopg
from psycopg import sql

from sandbox.postgres import Database
from tests.faults import witness

PUBLICATION = "everything"

VISITED = ("ledger", "batch", "note", "aside")
"""The tables to which the visitor writes. Their rows have a column with the origin."""

WITHOUT_KEY = "loose"

FILLED = ("goods", WITHOUT_KEY)
"""The tables that have rows before the daemon starts."""

SKIPPED = (*VISITED, "debit", "credit")
"""The tables that only commands load. Prepared transactions lock them for a long time, so they often cannot be read."""

TABLES = (*VISITED, "debit", "credit", "document", "shape", *FILLED)
"""The tables that are published from the beginning. At the end, their content is compared, and so is the content of the
tables that have joined the publication later."""

WORKERS = 4
VISITOR = WORKERS + 1
HASTY = VISITOR + 1
"""The worker that changes rows of the loaded tables in bursts, so that some transactions run while a chunk is read."""
ORIGIN = "elsewhere"
"""The replication origin of the visitor. An origin belongs to the whole server, and only one session at a time can use
it."""

ACCOUNTS = 40
HELD = 6
"""The number of accounts that only prepared transactions change, because these hold locks for a long time."""

BALANCE = 1000

BIG_BYTES = 12_000
"""The length of a document's text, which is TOASTed. PostgreSQL does not send it with an update of other columns."""

BATCH_ROWS = (50, 200)
"""The bounds of the number of rows in one step of a large transaction. Most such steps exceed
logical_decoding_work_mem."""

GOODS = 300
"""The number of rows of ``goods`` before the daemon starts."""

LOOSE = 120
"""The number of rows of ``loose`` before the daemon starts."""

GOODS_BYTES = 2_400
"""The length of some texts of ``goods``, which are TOASTed."""

MADE_ROWS = 80
MADE_MAX = 3
MAKING_S = (2.0, 8.0)
"""The pause before the next table is created and joins the publication."""

ASYNCHRONOUS = 0.3
"""The share of asynchronous commits, which are visible before they are on disk."""

PAUSE_S = 0.2
"""The longest pause between two transactions of a worker."""

HASTY_PAUSE_S = 0.05
BURST = 40
"""The number of transactions in a burst. The pauses between them are short."""
REST_S = 3.0

CONNECT_TIMEOUT_S = 5
RETRY_S = 0.1

WORKER_NUMBERS = 1_000_000
"""The distance between the first transaction numbers of two workers."""

GIDS = [f"held {number}" for number in range(1, HELD + 1)]
"""The gids of prepared transactions. They are reused."""

LONG = GIDS[:3]
LONG_WEIGHT = 0.08
"""The weight of each gid in LONG in the random choice of the prepared transaction that ends next.

All other gids have the weight 1. Because of the low weight, transactions with the gids in LONG stay prepared while the
daemon dies several times.
"""

PREPARED_PAUSE_S = 0.3
"""The longest pause between two actions with prepared transactions."""

HERE = "nullif(current_setting('storm.origin', true), '')"
"""SQL expression for the session's origin."""

SETUP = f"""
CREATE TABLE ledger (
    id bigint PRIMARY KEY, changes int NOT NULL, ticket bigint, follows bigint, origin text DEFAULT {HERE}
);
CREATE TABLE debit (id int PRIMARY KEY, balance bigint NOT NULL, version int NOT NULL DEFAULT 0);
CREATE TABLE credit (id int PRIMARY KEY, balance bigint NOT NULL, version int NOT NULL DEFAULT 0);
ALTER TABLE credit REPLICA IDENTITY FULL;
CREATE TABLE document (id int PRIMARY KEY, small int NOT NULL, big text);
ALTER TABLE document ALTER COLUMN big SET STORAGE EXTERNAL;
CREATE TABLE batch (id bigserial PRIMARY KEY, worker int NOT NULL, filler text, origin text DEFAULT {HERE});
CREATE TABLE note (id bigserial PRIMARY KEY, place int NOT NULL, origin text DEFAULT {HERE});
CREATE TABLE aside (id bigserial PRIMARY KEY, lsn pg_lsn, origin text DEFAULT {HERE});
CREATE TABLE shape (id int PRIMARY KEY, n int NOT NULL);
CREATE TABLE goods (id int PRIMARY KEY, n int NOT NULL, big text);
ALTER TABLE goods ALTER COLUMN big SET STORAGE EXTERNAL;
CREATE TABLE loose (a int, b text);
ALTER TABLE loose REPLICA IDENTITY FULL;
CREATE TABLE scratch (n int);
CREATE TABLE ticket (n bigint NOT NULL);
INSERT INTO ticket VALUES (0);
SELECT pg_replication_origin_create('{ORIGIN}')
WHERE NOT EXISTS (SELECT FROM pg_replication_origin WHERE roname = '{ORIGIN}');
CREATE PUBLICATION {PUBLICATION} FOR TABLE {", ".join(TABLES)};
CREATE PUBLICATION {witness.PUBLICATION} FOR TABLE {", ".join(TABLES)};
"""
"""Creates the tables. ``scratch`` and ``ticket`` are not published.

A transaction locks the row of ``ticket`` until it has committed, so ticket numbers are in commit order.
"""

FILL = f"""
INSERT INTO goods
SELECT 10 * id, 0, repeat('x', CASE WHEN id % 3 = 0 THEN {GOODS_BYTES} ELSE 5 END)
FROM generate_series(1, {GOODS}) AS id;
INSERT INTO loose SELECT n % 100, 'row ' || n % 50 FROM generate_series(1, {LOOSE}) AS n;
"""
"""Writes rows before the daemon's slot exists. Only the witness's slot sees their inserts."""

POPULATE = f"""
INSERT INTO debit SELECT id, {BALANCE} FROM generate_series(1, {ACCOUNTS + HELD}) AS id;
INSERT INTO credit SELECT id, {BALANCE} FROM generate_series(1, {ACCOUNTS + HELD}) AS id;
INSERT INTO document SELECT id, 0, repeat(md5(id::text), {BIG_BYTES // 32}) FROM generate_series(1, {ACCOUNTS}) AS id;
INSERT INTO shape SELECT id, 0 FROM generate_series(1, 5) AS id;
"""
POPULATE_CHANGES = 2 * (ACCOUNTS + HELD) + ACCOUNTS + 5
TOTAL = 2 * (ACCOUNTS + HELD) * BALANCE
"""The sum of all balances after ``POPULATE``. No transaction changes it."""

Work: TypeAlias = Callable[[psycopg.Connection, random.Random], int]
"""An action inside a transaction. It returns how many changes of published rows it has made."""


class RolledBack(Exception):
    """Raised to roll back a transaction on purpose."""


def transfer(connection: psycopg.Connection, rng: random.Random) -> int:
    """Move money between the two tables."""
    for _ in range(moves := rng.randint(1, 3)):
        _move(connection, rng.randint(1, ACCOUNTS), rng.randint(1, ACCOUNTS), rng.randint(-50, 50))
    return 2 * moves


def _move(connection: psycopg.Connection, source: int, target: int, amount: int) -> None:
    change = "UPDATE {} SET balance = balance + %s, version = version + 1 WHERE id = %s"
    connection.execute(sql.SQL(change).format(sql.Identifier("debit")), [-amount, source])
    connection.execute(sql.SQL(change).format(sql.Identifier("credit")), [amount, target])


def edit_documents(connection: psycopg.Connection, rng: random.Random) -> int:
    """Update wide rows, mostly without changing the TOASTed text."""
    first = rng.randint(1, ACCOUNTS)
    some = "WHERE id BETWEEN %s AND %s"
    kind = rng.randrange(6)
    if kind == 0:
        text = f"repeat(md5('{rng.random()}'), {BIG_BYTES // 32})"
        return connection.execute(f"UPDATE document SET big = {text} {some}", [first, first]).rowcount
    if kind == 1:  # change the key, but not the text
        move = "UPDATE document SET id = id + 1000 WHERE id = %s"
        back = "UPDATE document SET id = id - 1000 WHERE id = %s"
        there = connection.execute(move, [first]).rowcount
        return 2 * (there + (connection.execute(back, [first + 1000]).rowcount if there else 0))
    return connection.execute(f"UPDATE document SET small = small + 1 {some}", [first, first + 4]).rowcount


def fill_batch(connection: psycopg.Connection, rng: random.Random) -> int:
    """Write so many rows that the server may send the transaction before its commit.

    Pause between the parts, so that large transactions overlap.
    """
    worker = rng.randrange(2**31)  # identifies the rows of this transaction, which no other worker touches
    changes = 0
    for _ in range(rng.randint(1, 3)):
        insert = "INSERT INTO batch (worker, filler) SELECT %s, repeat('x', %s) FROM generate_series(1, %s)"
        size = [worker, rng.randint(100, 2000), rng.randint(*BATCH_ROWS)]
        changes += connection.execute(insert, size).rowcount
        changes += tentatively(connection, rng, some_of_batch(worker))
        changes += tentatively(connection, rng, remark)
        time.sleep(rng.uniform(0, 0.1))
    if rng.random() < 0.5:  # otherwise, the rows stay, and are compared at the end
        changes += connection.execute("DELETE FROM batch WHERE worker = %s", [worker]).rowcount
    return changes


def some_of_batch(worker: int) -> Work:
    """Return work that writes a remark and then changes rows of a large transaction."""

    def change(connection: psycopg.Connection, rng: random.Random) -> int:
        some = "UPDATE batch SET filler = filler || 'y' WHERE worker = %s AND id %% 3 = %s"
        return remark(connection, rng) + connection.execute(some, [worker, rng.randrange(3)]).rowcount

    return change


def change_shape(connection: psycopg.Connection, rng: random.Random) -> int:
    """Alter a table between changes of its rows. Then update all rows, so that copies get the rows as they are now."""
    changes = connection.execute("UPDATE shape SET n = n + 1").rowcount
    columns = [name for (name,) in connection.execute(EXTRA_COLUMNS).fetchall()]
    if len(columns) > 3 or (columns and rng.random() < 0.4):
        connection.execute(sql.SQL("ALTER TABLE shape DROP COLUMN {}").format(sql.Identifier(rng.choice(columns))))
    else:
        name, kind = f"c{rng.randrange(10**6)}", rng.choice(("int", "text", "numeric(10,2)", "timestamptz"))
        connection.execute(sql.SQL("ALTER TABLE shape ADD COLUMN {} {}").format(sql.Identifier(name), sql.SQL(kind)))
    if rng.random() < 0.2:
        connection.execute("TRUNCATE shape")
        changes += (
            1 + connection.execute("INSERT INTO shape (id, n) SELECT id, 0 FROM generate_series(1, 5) id").rowcount
        )
    return changes + connection.execute("UPDATE shape SET n = n + 1").rowcount


EXTRA_COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = 'shape'::regclass AND attnum > 0 AND NOT attisdropped AND attname LIKE 'c%'
"""


def stir(connection: psycopg.Connection, rng: random.Random) -> int:
    """Change rows that existed before the daemon started. Some get a key that is lower or higher than all others."""
    own = 10 * rng.randint(1, GOODS)
    kind = rng.randrange(6)
    if kind == 0:
        text = f"repeat('y', {rng.choice((5, GOODS_BYTES))})"
        insert = f"INSERT INTO goods VALUES (%s, 1, {text}) ON CONFLICT DO NOTHING"
        return connection.execute(insert, [own + rng.randint(1, 9)]).rowcount
    if kind == 1:
        return connection.execute("DELETE FROM goods WHERE id = %s", [own]).rowcount
    if kind in (2, 3):  # a change of the key results in two events, a delete and an insert
        there = rng.choice((-own, own + 100 * GOODS, own - 10))
        move = "UPDATE goods SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM goods WHERE id = %s)"
        return 2 * connection.execute(move, [there, own, there]).rowcount
    some = "UPDATE goods SET n = n + 1 WHERE id BETWEEN %s AND %s"
    return connection.execute(some, [own, own + rng.choice((0, 30))]).rowcount


def shuffle(connection: psycopg.Connection, rng: random.Random) -> int:
    """Change rows of the table without a key, in which several rows can be equal."""
    number, kind = rng.randrange(100), rng.randrange(3)
    if kind == 0:
        insert = "INSERT INTO loose SELECT %s, 'row ' || n FROM generate_series(1, 3) AS n"
        return connection.execute(insert, [number]).rowcount
    if kind == 1:
        return connection.execute("DELETE FROM loose WHERE a = %s", [number]).rowcount
    return connection.execute("UPDATE loose SET b = b || '.' WHERE a = %s", [number]).rowcount


def touch_made(names: Sequence[str]) -> Work:
    """Return work on a random table of ``names``. The list grows later. While it is empty, the work does nothing."""

    def change(connection: psycopg.Connection, rng: random.Random) -> int:
        if not names:
            return 0
        table, first = sql.Identifier(rng.choice(names)), rng.randint(1, MADE_ROWS)
        delete = sql.SQL("DELETE FROM {} WHERE id = %s").format(table)
        insert = sql.SQL("INSERT INTO {} VALUES (%s, 0) ON CONFLICT DO NOTHING").format(table)
        update = sql.SQL("UPDATE {} SET n = n + 1 WHERE id BETWEEN %s AND %s").format(table)
        changes = connection.execute(delete, [rng.randint(1, MADE_ROWS)]).rowcount
        changes += connection.execute(insert, [rng.randint(1, 2 * MADE_ROWS)]).rowcount
        return changes + connection.execute(update, [first, first + 5]).rowcount

    return change


def remark(connection: psycopg.Connection, rng: random.Random) -> int:
    """Write a note. Directly before or after the note, write a message with its number."""
    place = rng.choice((-1, 1))
    ((number,),) = connection.execute("SELECT nextval('note_id_seq')").fetchall()
    emit = "SELECT pg_logical_emit_message(true, 'remark', %s::text)"
    note = "INSERT INTO note VALUES (%s, %s)"
    if place < 0:
        connection.execute(emit, [number])
    connection.execute(note, [number, place])
    if place > 0:
        connection.execute(emit, [number])
        # If a savepoint ends directly after a message, PostgreSQL may send the next row before the message. So write
        # an unpublished row next.
        connection.execute("INSERT INTO scratch VALUES (1)")
    return 1


def say_aside(connection: psycopg.Connection, _: random.Random) -> int:
    """Write a message outside of transactions, and a row that records it if the transaction commits."""
    emit = f"pg_logical_emit_message(false, 'aside', concat_ws(' ', number, {HERE}))"
    one = "(SELECT nextval('aside_id_seq') AS number) AS one"
    return connection.execute(f"INSERT INTO aside SELECT number, {emit} FROM {one}").rowcount


def mixed(connection: psycopg.Connection, rng: random.Random) -> int:
    """Do several kinds of work, each in a savepoint that may be rolled back."""
    works = transfer, edit_documents, remark, say_aside, stir, shuffle
    return sum(tentatively(connection, rng, rng.choice(works)) for _ in range(rng.randint(1, 4)))


def visit(connection: psycopg.Connection, rng: random.Random) -> int:
    """Do several kinds of work as the visitor, who changes no rows of other workers. Large transactions are rare."""
    # PostgreSQL takes the origin of a streamed transaction from its first change, but a message has no origin. So
    # begin with a row.
    connection.execute("INSERT INTO scratch VALUES (1)")
    works = *((remark, say_aside) * 4), fill_batch
    return sum(tentatively(connection, rng, rng.choice(works)) for _ in range(rng.randint(1, 4)))


def tentatively(connection: psycopg.Connection, rng: random.Random, work: Work) -> int:
    """Do ``work`` in a savepoint, which may contain another savepoint. Half of all savepoints are rolled back."""
    with suppress(RolledBack), connection.transaction():
        changes = work(connection, rng)
        if rng.random() < 0.3:
            changes += tentatively(connection, rng, work)
        if rng.random() < 0.5:
            raise RolledBack
        return changes
    return 0


VISIT = f"""
SELECT set_config('storm.origin', '{ORIGIN}', false), pg_replication_origin_session_setup('{ORIGIN}')
WHERE NOT pg_replication_origin_session_is_setup()
"""
"""Sets up the session's origin. The statement fails while the server still has a former session with this origin."""

KINDS: Sequence[tuple[Work, int]] = (
    (transfer, 20),
    (mixed, 12),
    (edit_documents, 10),
    (fill_batch, 1),
    (change_shape, 2),
    (remark, 4),
    (say_aside, 3),
    (stir, 12),
    (shuffle, 5),
)
"""The kinds of work, with their relative frequencies."""


class Workload:
    """Threads that work on one database until ``stop``. If the server is down, they wait for it."""

    def __init__(self, database: Database, seed: str) -> None:
        self.database = database
        self.failures: list[BaseException] = []
        """The errors that have ended workers. If all is well, the list is empty."""
        self._stop = threading.Event()
        self.made: list[str] = []
        """The tables that have joined the publication later."""
        self._turns = [threading.Lock() for _ in range(HASTY + 2)]
        """One lock for each worker, which the worker holds during a transaction. The first lock is for prepared
        transactions, and the last one for new tables."""
        self._preparer = Preparer(0, random.Random(f"{seed} prepared"))
        rngs = {number: random.Random(f"{seed} {number}") for number in range(1, HASTY + 1)}
        works = [partial(self._work, number, rng, self._turns[number]) for number, rng in rngs.items()]
        self._maker = Maker(self.made, random.Random(f"{seed} made"))
        touch = touch_made(self.made)
        self._kinds = {VISITOR: ((visit, 1),), HASTY: ((stir, 4), (shuffle, 1), (touch, 2))}
        self._usual_kinds = (*KINDS, (touch, 8))
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (*works, self._prepare, self._make)
        ]

    def prepare(self) -> None:
        """Create the tables and the publications, and the rows that exist before the daemon starts."""
        with self.database.connect() as connection:
            connection.execute(SETUP)
            connection.execute(witness.CREATE, [witness.SLOT])
            connection.execute(FILL)

    @property
    def prepares(self) -> Mapping[int, int]:
        """The end of the WAL just before each PREPARE TRANSACTION, by the transaction's number."""
        return self._preparer.prepares

    def populate(self) -> None:
        """Write the first rows of the other tables. The daemon's slot must exist, so that these rows are sent."""
        with self.database.connect() as connection, connection.transaction():
            connection.execute(POPULATE)
            connection.execute("INSERT INTO ledger VALUES (0, %s)", [POPULATE_CHANGES])

    def start(self) -> None:
        """Start the workers."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop all workers when they have finished their transactions. Raise the error of a worker that failed."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self.failures:
            raise self.failures[0]
        self._end_prepared()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Pause all workers within the block. The block begins when all transactions have ended, even prepared ones."""
        with ExitStack() as context:
            for turn in self._turns:
                context.enter_context(turn)
            self._end_prepared()
            with self.database.connect() as connection:
                connection.execute("INSERT INTO scratch VALUES (1)")  # its commit writes all earlier WAL to disk
            yield

    def _end_prepared(self) -> None:
        with self.database.connect() as connection:
            while self._preparer.resolve_one(connection):
                pass

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as failure:  # noqa: BLE001 - raised again by stop()
            self.failures.append(failure)

    def _work(self, worker: int, rng: random.Random, turn: threading.Lock) -> None:
        works, weights = zip(*self._kinds.get(worker, self._usual_kinds), strict=True)
        number = worker * WORKER_NUMBERS
        with connections(self.database, self._stop) as connect:
            while not self._stop.is_set():
                number += 1
                (work,) = rng.choices(works, weights)
                with turn, suppress(psycopg.Error):
                    connection = connect()
                    if worker == VISITOR:
                        connection.execute(VISIT)
                    one_transaction(connection, rng, number, work)
                self._stop.wait(_pause_s(worker, number, rng))

    def _make(self) -> None:
        with connections(self.database, self._stop) as connect:
            while len(self.made) < MADE_MAX and not self._stop.wait(self._maker.rng.uniform(*MAKING_S)):
                with self._turns[-1], suppress(psycopg.Error):
                    self._maker.make(connect())

    def _prepare(self) -> None:
        with connections(self.database, self._stop) as connect:
            while not self._stop.is_set():
                with self._turns[0], suppress(psycopg.Error):
                    self._preparer.step(connect())
                self._stop.wait(self._preparer.rng.uniform(0, PREPARED_PAUSE_S))


class Maker:
    """Creates tables, fills them, and then publishes them. Workers change a table only when it is published."""

    def __init__(self, made: list[str], rng: random.Random) -> None:
        self.rng = rng
        self._made = made
        self._names = (f"made_{number}" for number in count(1))
        self._unpublished: str | None = None
        """The last filled table, until it is certainly published. The answer to ALTER PUBLICATION may be lost."""

    def make(self, connection: psycopg.Connection) -> None:
        """Create and publish a table. If the last table is not published yet, publish that table instead."""
        if self._unpublished is None:
            name = next(self._names)
            table = sql.Identifier(name)
            with connection.transaction():
                connection.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, n int NOT NULL)").format(table))
                connection.execute(sql.SQL(f"ALTER PUBLICATION {witness.PUBLICATION} ADD TABLE {{}}").format(table))
            fill = "INSERT INTO {} SELECT id, 0 FROM generate_series(1, %s) AS id"
            connection.execute(sql.SQL(fill).format(table), [MADE_ROWS])
            self._unpublished = name
        with suppress(psycopg.errors.DuplicateObject):
            add = sql.SQL(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {{}}").format(sql.Identifier(self._unpublished))
            connection.execute(add)
        self._made.append(self._unpublished)
        self._unpublished = None


class Preparer:
    """Prepares transactions, and commits them or rolls them back later, even after restarts of the server."""

    def __init__(self, worker: int, rng: random.Random) -> None:
        self.rng = rng
        self._number = worker * WORKER_NUMBERS
        self._numbers: dict[str, int] = {}
        """By gid: the number of the last transaction that was prepared under this gid."""
        self.prepares: dict[int, int] = {}
        """The end of the WAL just before each PREPARE TRANSACTION, by the transaction's number."""

    def step(self, connection: psycopg.Connection) -> None:
        """Prepare a transaction, or end a prepared transaction."""
        free = [gid for gid in GIDS if gid not in _prepared(connection)]
        if not free or self.rng.random() < 0.5:
            # If all prepared transactions are long ones, the weights in resolve_one have no effect. So end one of them
            # only rarely.
            if self.rng.random() < LONG_WEIGHT or any(gid not in LONG for gid in _prepared(connection)):
                self.resolve_one(connection)
            return
        gid = self.rng.choice(free)
        connection.execute("BEGIN")
        try:
            self._fill(connection, GIDS.index(gid) + 1)
            connection.execute(f"PREPARE TRANSACTION '{gid}'")
        finally:
            connection.rollback()

    def _fill(self, connection: psycopg.Connection, share: int) -> None:
        """Write the content of a transaction before it is prepared.

        Usually, change the account that is reserved for ``share``. Sometimes, insert only an unpublished row, or only
        lock a row.
        """
        account = ACCOUNTS + share
        kind = self.rng.randrange(10)
        if kind == 0:
            connection.execute("SELECT FROM debit WHERE id = %s FOR UPDATE", [account])
        elif kind == 1:
            connection.execute("INSERT INTO scratch VALUES (1)")
        else:
            _move(connection, account, account, self.rng.randint(-50, 50))
            # After a crash, a large transaction takes long to arrive again. A small one can arrive so quickly that a
            # status update is sent before its delivery.
            is_large = kind < (6 if GIDS[share - 1] in LONG else 4)
            changes = 2 + (fill_batch(connection, self.rng) if is_large else 0)
            changes += sum(tentatively(connection, self.rng, work) for work in (remark, say_aside))
            self._number += 1
            self._numbers[GIDS[share - 1]] = self._number
            connection.execute("INSERT INTO ledger VALUES (%s, %s)", [self._number, changes])
            ((lsn,),) = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchall()
            self.prepares[self._number] = lsn

    def resolve_one(self, connection: psycopg.Connection) -> bool:
        """Commit a prepared transaction, or roll it back. Return False if no transaction is prepared."""
        held = _prepared(connection)
        if not held:
            return False
        (gid,) = self.rng.choices(held, [LONG_WEIGHT if gid in LONG else 1.0 for gid in held])
        commit = self.rng.random() < 0.7
        connection.execute(f"{'COMMIT' if commit else 'ROLLBACK'} PREPARED '{gid}'")
        number = self._numbers.pop(gid, None)
        if commit and number is not None:
            self._number += 1
            with connection.transaction():
                _enter(connection, self._number, 0, number)
        return True


def _pause_s(worker: int, number: int, rng: random.Random) -> float:
    if worker != HASTY:
        return rng.uniform(0, PAUSE_S)
    return rng.uniform(0, HASTY_PAUSE_S) if number % BURST else REST_S


def _prepared(connection: psycopg.Connection) -> list[str]:
    query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid"
    return [gid for (gid,) in connection.execute(query).fetchall()]


def _enter(connection: psycopg.Connection, number: int, changes: int, follows: int | None = None) -> None:
    """Write the transaction's line in the ledger, which is its last change."""
    (ticket,) = connection.execute("UPDATE ticket SET n = n + 1 RETURNING n").fetchone() or (None,)
    connection.execute("INSERT INTO ledger VALUES (%s, %s, %s, %s)", [number, changes, ticket, follows])


def one_transaction(connection: psycopg.Connection, rng: random.Random, number: int, work: Work) -> None:
    """Do ``work`` in a transaction, and write its line in the ledger. Roll back one transaction in eight."""
    with suppress(RolledBack), connection.transaction():
        if rng.random() < ASYNCHRONOUS:
            connection.execute("SET LOCAL synchronous_commit = off")
        changes = work(connection, rng)
        if rng.random() < 0.125:
            raise RolledBack
        if changes or rng.random() < 0.5:
            _enter(connection, number, changes)


@contextmanager
def connections(database: Database, stop: threading.Event) -> Iterator[Callable[[], psycopg.Connection]]:
    """Yield a function that returns an open connection. If the last connection was lost, it opens a new one."""
    with ExitStack() as context:
        current: psycopg.Connection | None = None

        def connect() -> psycopg.Connection:
            nonlocal current
            while current is None or current.closed:
                try:
                    current = psycopg.connect(database.conninfo(connect_timeout=CONNECT_TIMEOUT_S), autocommit=True)
                    context.callback(current.close)
                except psycopg.OperationalError:
                    if stop.wait(RETRY_S):
                        raise
            return current

        yield connect
