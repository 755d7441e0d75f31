"""Measures decoding, the first load and updates, each with pgsluice and with a job that a user would write."""

import time
from collections.abc import Callable

from pyspark.sql import DataFrame

from bench import machine
from bench.loads import VALUES
from bench.results import Moment
from bench.spark import handwritten
from bench.spark.results import Race
from bench.spark.stage import Stage

ROWS = 1_000_000
UPDATES = 500_000
PER_TRANSACTION = 20

TABLE = "orders"
CREATE = f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, {', '.join(f'{name} {kind}' for name, kind, _ in VALUES)})"

_SUMS = "count(*), sum(amount), sum(length(status))"


def fill(rows: int) -> str:
    """Return the statement that fills the table."""
    values = ", ".join(value for _, _, value in VALUES)
    return f"INSERT INTO {TABLE} SELECT g, {values} FROM generate_series(1, {rows}) AS g"


def update(rows: int, updates: int) -> str:
    """Return the statement that updates rows, in transactions of ``PER_TRANSACTION`` rows."""
    change = (
        f"UPDATE {TABLE} SET amount = amount + 1, status = 'changed ' || i "
        f"WHERE id > i * {PER_TRANSACTION} % {rows} AND id <= i * {PER_TRANSACTION} % {rows} + {PER_TRANSACTION}"
    )
    return f"DO $$ BEGIN FOR i IN 1..{updates // PER_TRANSACTION} LOOP {change}; COMMIT; END LOOP; END $$"


def decode(stage: Stage, rows: int, runs: int) -> Race:
    """Measure how fast all events of a topic are decoded. The topic has one event for each row of the table."""
    ours = lambda: stage.pipeline.changes(f"public.{TABLE}", streaming=False)  # noqa: E731 - the counterpart of ``theirs``
    theirs = lambda: handwritten.events(stage, TABLE)  # noqa: E731 - the counterpart of ``ours``
    for warm_up in (ours, theirs):
        _seconds(warm_up)
    moment, race = machine.begin(), Race(rows, [], [], Moment("", (0, 0)))
    for _ in range(runs):
        race.ours.append(rows / _seconds(ours))
        race.theirs.append(rows / _seconds(theirs))
    race.moment = machine.end(moment)
    return race


def _seconds(events: Callable[[], DataFrame]) -> float:
    begin = time.monotonic()
    events().write.format("noop").mode("overwrite").save()
    return time.monotonic() - begin


def copy(stage: Stage, rows: int, updates: int, runs: int) -> tuple[Race, Race]:
    """Measure how fast the rows of a table are copied, and how fast updates are applied to the copies."""
    _warm_up(stage)
    load = _race(stage, rows, runs)
    stage.connection.execute(update(rows, updates).encode())
    stage.wait_until_delivered()
    _warm_up(stage)
    changed = _race(stage, updates, runs)
    _check(stage, runs)
    return load, changed


def _warm_up(stage: Stage) -> None:
    """Let both contenders do the work once. Java compiles the code that they need while it runs."""
    stage.mirror("warm", [f"public.{TABLE}"])
    handwritten.merge(stage, "warm_theirs", TABLE)


def _race(stage: Stage, events: int, runs: int) -> Race:
    moment, race = machine.begin(), Race(events, [], [], Moment("", (0, 0)))
    for number in range(runs):
        race.ours.append(events / stage.mirror(f"ours{number}", [f"public.{TABLE}"]))
        race.theirs.append(events / handwritten.merge(stage, f"theirs{number}", TABLE))
    race.moment = machine.end(moment)
    return race


def _check(stage: Stage, runs: int) -> None:
    """Compare all copies with the table, so that no contender is fast because it skips rows or changes."""
    expected = stage.connection.execute(f"SELECT {_SUMS} FROM {TABLE}".encode()).fetchone()
    for number in range(runs):
        for place in (
            f"delta.`{stage.directory}/ours{number}/public.{TABLE}`",
            handwritten.path(stage, f"theirs{number}"),
        ):
            found = stage.spark.sql(f"SELECT {_SUMS} FROM {place}").first()
            if found is None or tuple(found) != expected:
                raise RuntimeError(f"{place} has {found}, and the table {expected}")
