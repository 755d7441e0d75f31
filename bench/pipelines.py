"""Compares one pipeline of two tables with two pipelines of one table each: ``python -m bench.pipelines``.

All pipelines read the same WAL, from copies of one slot. docs/scaling.md has the conclusions.
"""

import argparse
import statistics
from collections.abc import Sequence
from contextlib import ExitStack

from bench.contenders import Course, encoders, wait_delivered
from bench.loads import LOADS, PUBLICATION, Load
from bench.processes import Meter
from bench.rounds import course
from bench.servers import SERVER, broker, copied_slot, daemon, delete_topics, new_name, walsender
from sandbox.postgres import Postgres

HALVES = {"half_1": "orders", "half_2": "orders_1"}
"""Maps each publication of one table to its table."""


class TwoTables(Load):
    """Rows that are written to two tables in turn. Each table has a publication, and a third publication has both."""

    def setup(self) -> list[str]:
        """Return the statements that run before the slot is created.

        The statements also create the publications, because a publication must exist before the rows are written.
        """
        return [*Load.setup(self), *(f"CREATE PUBLICATION {name} FOR TABLE {table}" for name, table in HALVES.items())]


def load(rows: int) -> Load:
    """Return the load with ``rows`` rows."""
    example = LOADS["tables-10"]
    return TwoTables("tables-2", example.title, rows, example.per_transaction, example.columns, tables=len(HALVES))


def measure(on: Course, publications: Sequence[str]) -> tuple[float, dict[str, float]]:
    """Run pipelines for all publications at the same time. Return events per second and CPU microseconds per event."""
    _, variables = next(iter(encoders().items()))
    with ExitStack() as stack:
        found = []
        for publication in publications:
            slot = stack.enter_context(copied_slot(on.connection))
            one = daemon(new_name(), on.database, on.kafka, "exactly_once", variables, slot)
            one.settings["postgres"]["publications"] = [publication]
            stack.callback(delete_topics, on.kafka, one.name)
            found.append((stack.enter_context(one), slot))
        for one, _ in found:
            one.start("--adopt-slot", wait=False)
        senders = [walsender(on.connection, slot) for _, slot in found]
        started = min(seen for _, seen in senders)
        meters = [
            Meter({"daemons": one.pid, "walsenders": sender})
            for (one, _), (sender, _) in zip(found, senders, strict=True)
        ]
        ended = max(wait_delivered(one, started, on.start_lsn, on.end_lsn)[0] for one, _ in found)
        cpu: dict[str, float] = {}
        for meter in meters:
            for role, seconds in meter.read().items():
                cpu[role] = cpu.get(role, 0.0) + seconds
        for one, _ in found:
            one.stop_well()
    return on.rows / (ended - started), {role: seconds / on.rows * 1e6 for role, seconds in cpu.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Compare one pipeline of two tables with two of one table.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=400_000)
    options = parser.parse_args()
    with (
        Postgres(settings=SERVER) as postgres,
        broker() as kafka,
        course(postgres, kafka, load(options.rows)) as on,
    ):
        on.connection.execute("INSERT INTO orders_1 (id) VALUES (-3)")  # the end marker for the other table's pipeline
        measure(on, [PUBLICATION])  # warms up caches; the result is not used
        for title, publications in (("one pipeline", [PUBLICATION]), ("two pipelines", list(HALVES))):
            runs = [measure(on, publications) for _ in range(options.runs)]
            rates = sorted(rate for rate, _ in runs)
            shares = {role: statistics.median(cpu[role] for _, cpu in runs) for role in ("daemons", "walsenders")}
            print(
                f"{title:<14} {statistics.median(rates):>9,.0f} events/s ({rates[0]:,.0f} to {rates[-1]:,.0f})"
                f"   CPU per event: daemons {shares['daemons']:.1f} µs, walsenders {shares['walsenders']:.1f} µs"
            )


if __name__ == "__main__":
    main()
