"""A backlog in the WAL, which all contenders drain in turn.

Each contender must deliver exactly the rows of the tables.
"""

from collections.abc import Callable, Mapping, Sequence

import psycopg

from bench import machine
from bench.contenders import Course
from bench.debezium.contenders import Decode, Make
from bench.debezium.results import Backlog, Drained
from bench.debezium.rows import Digest, row_text, select
from bench.debezium.visible import Ends, Place, Sample, Topics, first, watch
from bench.loads import Load
from bench.processes import Meter, peak_mib
from bench.rounds import course
from bench.servers import copied_slot, delete_topics, new_name, walsender
from sandbox.kafka import Kafka
from sandbox.postgres import Postgres

Say = Callable[[str], None]


def race(postgres: Postgres, kafka: Kafka, load: Load, contenders: Mapping[str, Make], runs: int, say: Say) -> Backlog:
    """Write the load, and let all contenders drain it ``runs`` times, one after the other."""
    with course(postgres, kafka, load) as on:
        moment = machine.begin()
        tables = _expected(on.connection, load)
        found: dict[str, list[Drained]] = {name: [] for name in contenders}
        for _ in range(runs):
            for name, make in contenders.items():
                run = _drain(on, load, make, tables)
                found[name].append(run)
                say(f"{load.key}: {name} {_line(run)}")
        return Backlog(load.title, load.rows, machine.end(moment), tables, found)


def _line(run: Drained) -> str:
    return (
        f"{run.events_per_s:,.0f}/s (second half {run.later_events_per_s:,.0f}), CPU {run.cpu['client']:.1f} µs/event "
        f"(second half {run.later_cpu['client']:.1f}), {run.peak_mib:.0f} MiB"
    )


def _expected(connection: psycopg.Connection, load: Load) -> dict[str, Digest]:
    found = {}
    for table in load.table_names:
        row = connection.execute(select(load, table)).fetchone()
        assert row is not None
        found[table] = Digest(int(row[0]), int(row[1]))
    return found


def _drain(on: Course, load: Load, make: Make, tables: Mapping[str, Digest]) -> Drained:
    """Return the figures of one run. Raise RuntimeError if the rows in the topics differ from those in the tables."""
    name = new_name()
    with copied_slot(on.connection) as slot, make(name, on.database, on.kafka, slot) as (process, decode):
        process.first_start()
        sender, started = walsender(on.connection, slot)
        meter = Meter({"client": process.pid, "walsender": sender, "broker": on.kafka.pid()})
        topics = Topics(on.kafka.bootstrap_servers, [f"{name}.public.{table}" for table in tables])
        records = sum(digest.rows for digest in tables.values())
        for samples in watch(topics, records, meter.read):
            offsets, found = _read(topics, samples[-1].ends, load, decode)
            if sum(map(len, offsets.values())) >= records:
                break
        delivered = {table: found[f"{name}.public.{table}"] for table in tables}
        if delivered != tables:
            raise RuntimeError(f"the tables have {tables}, and the topics {delivered}:\n{process.log_text()[-2000:]}")
        peak = peak_mib(process.pid)
        process.stop()
    delete_topics(on.kafka, name)
    return _figures(samples, offsets, records, started, peak)


def _read(topics: Topics, ends: Ends, load: Load, decode: Decode) -> tuple[dict[Place, list[int]], dict[str, Digest]]:
    """Return the offsets of the records in each partition, and the digest of the rows of each topic."""
    offsets: dict[Place, list[int]] = {place: [] for place in ends}
    digests = {topic: Digest() for topic, _ in ends}
    for message in topics.read(ends):
        event = decode(message.value())
        if event["op"] != "c":
            raise RuntimeError(f"an event has op {event['op']!r}, but all rows were inserted")
        digests[message.topic()].add(row_text(load.columns, event["after"]))
        offsets[message.topic(), message.partition()].append(message.offset())
    return offsets, digests


def _figures(
    samples: Sequence[Sample], offsets: Mapping[Place, Sequence[int]], records: int, started: float, peak: float
) -> Drained:
    half, end = first(samples, offsets, records // 2), first(samples, offsets, records)
    done = half.count(offsets)
    if done == records:  # all records became visible in one sample, so there is no second half: use the whole run
        half, done = Sample(started, {}, dict.fromkeys(end.cpu, 0.0)), 0
    later_cpu = {role: seconds - half.cpu[role] for role, seconds in end.cpu.items()}
    return Drained(
        records / (end.at - started),
        (records - done) / (end.at - half.at),
        _each(end.cpu, records),
        _each(later_cpu, records - done),
        peak,
    )


def _each(cpu: Mapping[str, float], records: int) -> dict[str, float]:
    return {role: seconds / records * 1e6 for role, seconds in cpu.items()}
