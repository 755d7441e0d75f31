"""A ledger in two tables. Drivers mirror the tables and are killed. The mirror is then compared with the source.

At every entry of the control table, all tables have to equal the source's tables at the entry's position. The expected
content of the source's tables comes from a second slot, which PostgreSQL itself decodes (``tests/faults/witness.py``).
``deltalake`` reads the mirror's Delta tables, without Spark.
"""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable, QueryBuilder

from pgsluice_spark import Delta
from pgsluice_spark.loads import LOADED
from tests.faults.witness import PUBLICATION, SLOT, Truth, committed
from tests.spark.driver import CONTROL, STEPS, Life, killed
from tests.spark.lakes import DeltaLake
from tests.spark.shop import Row, Shop

TABLES: Final = ("orders", "lines")
NOTE: Final = "repeat('kept out of line ', 500)"
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "kafka": {"topics": {"partitions": 2}},
    "snapshot": {"mode": "initial", "chunk_rows": 30},
    "delivery": {"heartbeat": "500ms"},
}
SETUP: Final = (
    "CREATE TABLE orders (id int PRIMARY KEY, amount int, note text)",
    "CREATE TABLE lines (id int PRIMARY KEY, amount int, item text)",
    "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
    f"CREATE PUBLICATION {PUBLICATION} FOR TABLE orders, lines",
    f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')",
    f"INSERT INTO orders SELECT n, n, {NOTE} FROM generate_series(1, 60) AS n",
    "INSERT INTO lines SELECT n, n, 'item ' || n FROM generate_series(1, 60) AS n",
)
TRANSACTIONS: Final = 8
"""The number of transactions that are committed before each driver starts."""

SCHEMA_CHANGES: Final = (
    "ALTER TABLE orders ADD COLUMN comment text",
    "ALTER TABLE lines ADD COLUMN price int",
    "ALTER TABLE lines ALTER amount TYPE bigint",  # this rewrites the rows, so the table has to be loaded again
)
LOAD_EVERY: Final = 4
EPOCH_EVERY: Final = 10
"""The number of drivers between two new epochs. The first new epoch begins when all schema changes are done."""

LOAD_S: Final = 300


@dataclass(slots=True)
class Tally:
    """The counts of a run.

    ``compared`` is the number of comparisons, each of one table at one entry. ``torn`` is the number of entries at
    which the sums of the two tables differ. ``unfinished`` is the number of tables that are not loaded at the last
    entry.
    """

    kills: int = 0
    compared: int = 0
    lost: int = 0
    doubled: int = 0
    torn: int = 0
    unfinished: int = 0
    loads: int = 0
    epochs: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing was wrong."""
        return not (self.lost or self.doubled or self.torn or self.unfinished)


class Ledger:
    """Writes to both tables, so that the sums of their amounts stay equal."""

    def __init__(self, shop: Shop, rng: random.Random) -> None:
        self._shop, self._rng, self._next = shop, rng, 1000

    def write(self, count: int) -> None:
        """Commit some transactions, each of which changes both tables. Wait until they are in Kafka."""
        self._shop.run(*self._transactions(count))

    def write_unseen(self, count: int) -> None:
        """Commit some transactions while no daemon runs."""
        for statement in self._transactions(count):
            self._shop.connection.execute(statement.encode())

    def _transactions(self, count: int) -> list[str]:
        return [f"BEGIN; {self._change()}; {self._amounts()}; COMMIT" for _ in range(count)]

    def _amounts(self) -> str:
        """Return statements that add a row to both tables, so that each transaction changes both."""
        self._next += 1
        id, amount = self._next, self._rng.randrange(100)  # noqa: A001 - the column's name
        return f"INSERT INTO orders VALUES ({id}, {amount}, {NOTE}); INSERT INTO lines VALUES ({id}, {amount}, 'new')"

    def _change(self) -> str:
        by, rest = self._rng.randrange(1, 9), self._rng.randrange(7)
        some = f"WHERE id % 7 = {rest}"
        changes = (
            f"UPDATE orders SET id = -id {some}",  # the stream does not contain the notes, which are TOASTed
            f"UPDATE orders SET id = -id {some}; UPDATE orders SET note = 'short' {some}",
            "; ".join(f"UPDATE {name} SET amount = amount + {by} WHERE abs(id) % 7 = {rest}" for name in TABLES),
            f"DELETE FROM orders WHERE abs(id) % 7 = {rest}; DELETE FROM lines {some}",
            "TRUNCATE orders, lines",
        )
        return self._rng.choices(changes, weights=(4, 4, 4, 2, 1))[0]


def run(shop: Shop, directory: Path, kills: int, rng: random.Random, say: Callable[[str], object]) -> Tally:
    """Kill drivers at all steps in turn. Let the last driver finish, then compare the tables."""
    ledger, tally, steps = Ledger(shop, rng), Tally(), list(STEPS)
    for number in range(kills):
        step = steps[number % len(steps)]
        max_events = rng.choice([1, 100, 1000])
        with _meanwhile(shop, ledger, number, tally):
            ledger.write(TRANSACTIONS)
            died = killed(_life(shop, directory, step, max_events), directory / "drivers.log")
        tally.kills += died
        say(f"{number + 1}: {step}, max_events {max_events}{'' if died else ', not reached'}")
        if rng.random() < 0.5:
            shutil.rmtree(directory / "checkpoint", ignore_errors=True)
    if kills >= len(SCHEMA_CHANGES):  # the daemon may not have noticed the last schema change yet
        with _load(shop):
            tally.loads += 1
    ledger.write(TRANSACTIONS)
    query = shop.pipeline.mirror(
        Delta(str(directory / "lake")),
        tables=["public.*"],
        checkpoint=str(directory / "checkpoint"),
        trigger="available now",
        max_events=200,
    )
    query.awaitTermination()
    lake = directory / "lake"
    found = entries(lake)
    compare(shop, lake, found, tally, say)
    last = dict(found[-1]["tables"])
    tally.unfinished = sum(last[f"public.{name}"]["status"] != LOADED for name in TABLES)
    return tally


@contextmanager
def _meanwhile(shop: Shop, ledger: Ledger, number: int, tally: Tally) -> Iterator[None]:
    """Alter a table or begin an epoch before driver ``number`` runs, and load the tables while the driver runs.

    Each of these steps happens only for some drivers. A new epoch loses changes, so the tables are loaded after each
    new epoch.
    """
    later = number - len(SCHEMA_CHANGES)
    if later < 0:
        shop.run(SCHEMA_CHANGES[number])
    elif later % EPOCH_EVERY == 0:
        _begin_epoch(shop, ledger)
        tally.epochs += 1
    if later >= 0 and (later % EPOCH_EVERY == 0 or later % LOAD_EVERY == 0):
        tally.loads += 1
        with _load(shop):
            yield
    else:
        yield


def _begin_epoch(shop: Shop, ledger: Ledger) -> None:
    """Drop the slot, write some transactions that are lost, and continue in a new epoch."""
    shop.daemon.stop_well()
    own = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name <> %s"
    shop.connection.execute(f"{own} AND database = current_database()", [SLOT])
    ledger.write_unseen(TRANSACTIONS)
    shop.daemon.start("--adopt-slot")


@contextmanager
def _load(shop: Shop) -> Iterator[None]:
    """Load both tables while the block runs. Wait for the loads at the end of the block."""
    names = [f"public.{name}" for name in TABLES]
    line = [sys.executable, "-m", "pgsluice", "snapshot", "start", "-c", str(shop.daemon.config_file), *names]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as load:
        try:
            yield
        finally:
            said, _ = load.communicate(timeout=LOAD_S)
    if load.returncode != 0:
        raise RuntimeError(f"the load failed: {said}")


def _life(shop: Shop, directory: Path, step: str, max_events: int) -> Life:
    return Life(
        step=step,
        prefix=shop.daemon.name,
        bootstrap_servers=shop.kafka.bootstrap_servers,
        registry=shop.daemon.url,
        lake=str(directory / "lake"),
        checkpoint=str(directory / "checkpoint"),
        max_events=max_events,
    )


def compare(shop: Shop, lake: Path, said_by: Iterable[Row], tally: Tally, say: Callable[[str], object]) -> None:
    """Compare the mirror's tables with the source's tables at every entry of the control table."""
    truth, tables = Truth(committed(shop.connection)), DeltaLake(shop.spark, lake)
    for entry in said_by:
        truth.advance(entry["epoch"], entry["end_lsn"])
        sums = set()
        for name in TABLES:
            said = dict(entry["tables"]).get(f"public.{name}")
            if said is None or said["status"] != LOADED:
                continue
            found = [_texts(row) for row in tables.rows(f"public.{name}", said["version"])]
            expected = {key: _texts(row) for key, row in truth.table(name).rows.items()}
            sums.add(sum(int(row["amount"]) for row in found))
            _count(found, expected, tally, partial(_say, say, f"{name} at cut {entry['cut']}"))
        tally.torn += len(sums) > 1


def entries(lake: Path) -> list[Row]:
    """Return the entries of the control table in order."""
    found = QueryBuilder().register("t", DeltaTable(str(lake / CONTROL))).execute("SELECT * FROM t").read_all()
    columns = [found.column(name).to_pylist() for name in found.column_names]
    rows = [dict(zip(found.column_names, values, strict=True)) for values in zip(*columns, strict=True)]
    return sorted(rows, key=lambda row: int(row["offset"]))


def torn(rows: Iterable[Row], table: str) -> list[Row]:
    """Return the entries as if the mirror had lost the last commit of ``table`` before each entry.

    For this, each entry gets the version of ``table`` from the previous entry that contains the table.
    """
    found = []
    before: int | None = None
    for row in rows:
        tables = dict(row["tables"])
        if table in tables:
            version, before = before, tables[table]["version"]
            if version is not None:
                tables[table] = {**tables[table], "version": version}
        found.append({**row, "tables": tables})
    return found


def _say(say: Callable[[str], object], where: str, text: str) -> None:
    say(f"{where}: {text}")


def _texts(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in row.items() if value is not None}


def _count(
    found: list[dict[str, str]],
    expected: Mapping[str, dict[str, str]],
    tally: Tally,
    say: Callable[[str], object],
) -> None:
    tally.compared += 1
    has = {row["id"]: row for row in found}
    lost = [key for key, row in expected.items() if has.get(key) != row]
    doubled = len(found) - len(has) + len(has.keys() - expected.keys())
    tally.lost += len(lost)
    tally.doubled += doubled
    if lost or doubled:
        say(f"{len(lost)} rows lost or different ({', '.join(lost[:5])}), {doubled} too many")
