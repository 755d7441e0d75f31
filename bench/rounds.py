"""Runs all contenders over the WAL of one slot, one after the other and several times.

The command line uses this module. The drain also runs before all contenders and after them. Each load has its own
database, which is dropped after the last run.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg

from bench import machine
from bench.contenders import Contender, Course, Drain
from bench.loads import Load
from bench.results import LoadResult, Run
from bench.servers import SLOT, delete_topics, new_name
from pgsluice.lsn import parse_lsn
from sandbox.kafka import Kafka
from sandbox.postgres import Postgres

Say = Callable[[str], None]
"""A function that is called with a line of text about each run."""


def race(
    postgres: Postgres, kafka: Kafka, load: Load, contenders: Sequence[Contender], runs: int, say: Say
) -> LoadResult:
    """Write the load, and let each contender read it ``runs`` times."""
    with course(postgres, kafka, load) as on:
        moment = machine.begin()
        _, size = Drain().measure(on)  # measures the size of the messages, and warms up caches
        found: dict[str, list[Run]] = {}
        for contender in [*(one for _ in range(runs) for one in contenders), Drain()]:
            run = contender.run(on)
            found.setdefault(contender.name, []).append(run)
            say(f"{load.key}: {contender.name} {run.whole.rate:,.0f}/s")
        return LoadResult(load.title, load.rows, size / load.rows, load.opened, load.series, machine.end(moment), found)


@contextmanager
def course(postgres: Postgres, kafka: Kafka, load: Load) -> Iterator[Course]:
    """Create a slot in a new database, write the load into the WAL, and yield the course."""
    with postgres.database() as database, database.connect() as connection:
        for statement in load.setup():
            connection.execute(statement)
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        start = _position(connection)
        with connection.transaction():
            for statement in load.opening():
                connection.execute(statement)
        opened = _position(connection)
        connection.execute(load.write())
        written = _position(connection)
        connection.execute(load.mark())
        found = Course(
            database,
            connection,
            kafka,
            rows=load.rows,
            extra_rows=len(load.opening()) + 1,
            start_lsn=start,
            opening_lsn=start + 1,
            opened_lsn=opened,
            end_lsn=written + 1,
            pipeline=new_name() if load.opened else None,
            partitions=load.partitions,
        )
        yield found
        if found.pipeline is not None:
            delete_topics(kafka, found.pipeline)


def _position(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return parse_lsn(row[0])
