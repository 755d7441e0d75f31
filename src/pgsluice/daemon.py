"""The composition root: settings become objects, objects become a running daemon.

Used by the commands of ``cli``. The only place that knows both the settings and the packages they configure.
"""

import asyncio
import hashlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

import fastavro
import structlog

from pgsluice import __version__, speedups, spool
from pgsluice.avro.binary import encode_string
from pgsluice.avro.reading import record_reader
from pgsluice.avro.schema import cut_schema
from pgsluice.avro.types import TypeOptions
from pgsluice.avro.wire import header
from pgsluice.config import Settings
from pgsluice.dead_letter import Origin, origin_of
from pgsluice.disk import Disk
from pgsluice.errors import ConfigError, PgsluiceError, SinkUnavailable, TableRefused
from pgsluice.finding import Finding, Verdict
from pgsluice.http.health import Health, Role
from pgsluice.http.server import HttpServer
from pgsluice.kafka import checks as kafka_checks
from pgsluice.kafka.commands import CommandClient, CommandTopics
from pgsluice.kafka.producer import ProducerOptions
from pgsluice.kafka.sink import CutFormat, KafkaSink, SinkOptions
from pgsluice.kafka.topics import TopicSpec
from pgsluice.librdkafka import ClientErrors, ClientOptions
from pgsluice.lsn import format_lsn
from pgsluice.metrics import WAL_STATUS, Metrics, labelled, registry_metrics
from pgsluice.pipeline import Pipeline, PipelineOptions, State
from pgsluice.pipeline.encoders import refusals
from pgsluice.pipeline.lag import Lag
from pgsluice.pipeline.load_report import LoadReport
from pgsluice.pipeline.loader import LoadOptions
from pgsluice.pipeline.outbox import Limits
from pgsluice.pipeline.session import SessionOptions, age_s
from pgsluice.postgres import checks as postgres_checks
from pgsluice.postgres import snapshot_checks
from pgsluice.postgres.catalog import Catalog
from pgsluice.postgres.connection import ReplicationConnection
from pgsluice.postgres.options import ConnectionOptions, StreamOptions
from pgsluice.postgres.slot import SlotState
from pgsluice.postgres.slot_watch import SlotSample, SlotWatch
from pgsluice.postgres.source import PostgresSource, SourceOptions
from pgsluice.registry.builtin import BuiltinRegistry
from pgsluice.registry.client import RegistryOptions
from pgsluice.registry.follower import SCHEMAS, SchemaFollower
from pgsluice.registry.store import SchemaStore
from pgsluice.registry.subjects import subject_name
from pgsluice.spool import SpillDirectory, Spool, SpoolOptions
from pgsluice.tables import TablePolicy, TableRule, Tables
from pgsluice.transaction import Prepared

if TYPE_CHECKING:
    from pgsluice.registry.confluent import ConfluentRegistry
    from pgsluice.registry.export import Exported
    from pgsluice.registry.rest import RestOptions

log = structlog.get_logger(__name__)

T = TypeVar("T")

GAUGES_S = 1.0
"""How often positions and lags are copied into the metrics."""

SAMPLE_SHOWN_S = 60.0
"""How long the metrics show what the slot was like: one look that fails must not reset the alerts that wait."""

REFUSED_SHOWN = 20
"""Tables that ``pgsluice check`` names because they cannot be published."""

PREPARED_SHOWN = 10
"""Prepared transactions in the status: the oldest."""

ASKED_DIGITS = 16
"""Of the digest of what is asked for: two configurations never have the same one by chance."""

LIVE_S = 120.0
"""Longer than the work can be without a sign of life: PostgreSQL has time-outs of some ten seconds for connecting and
for answering, and a disk that hangs ends the process after thirty."""

QUEUE_FACTOR = 2
"""What librdkafka may hold, in multiples of delivery.inflight_max: also the largest row that can be delivered."""


def command_client(settings: Settings) -> CommandClient:
    """Return what sends commands to the running pipeline, and reads its answers; nothing is asked of Kafka yet."""
    prefix = settings.kafka.topic_prefix
    topics = CommandTopics(
        settings.name,
        f"{prefix}.commands",
        f"{prefix}.checkpoint",
        f"{prefix}.snapshots",
        is_atomic=settings.delivery.mode == "exactly_once",
    )
    client = ClientOptions(settings.kafka.librdkafka_properties(), f"pgsluice-{settings.name}-command")
    return CommandClient(client, topics)


def run(settings: Settings, *, adopt_slot: bool) -> None:
    """Run the daemon until SIGTERM or SIGINT; a PgsluiceError says why it stopped by itself."""
    speedups.check()
    asyncio.run(_Daemon(settings, adopt_slot=adopt_slot).run())


def check(settings: Settings) -> list[Finding]:
    """Look at PostgreSQL and Kafka as ``run`` would find them; changes nothing."""
    return asyncio.run(_check(settings))


def serve_registry(settings: Settings, prefixes: Sequence[str]) -> None:
    """Serve the schemas of one or more prefixes until SIGTERM or SIGINT; any number of these can run."""
    asyncio.run(_serve_registry(settings, prefixes or [settings.kafka.topic_prefix]))


def export_registry(settings: Settings, prefixes: Sequence[str]) -> "dict[str, Exported]":
    """Give the schemas of one or more prefixes to a registry server, with their ids; what came of each subject."""
    return asyncio.run(_export_registry(settings, prefixes))


def create_slot(settings: Settings) -> int:
    """Create the slot and return its consistent point."""
    return asyncio.run(
        _with_replication(
            settings, lambda one: one.create_slot(settings.slot_name, failover=settings.postgres.failover)
        )
    )


def slot_status(settings: Settings) -> SlotState | None:
    """Return the slot's state, None when there is none."""
    return asyncio.run(_with_replication(settings, lambda one: one.slot(settings.slot_name)))


def drop_slot(settings: Settings) -> None:
    """Drop the slot; what was not delivered from it is lost."""
    asyncio.run(_with_replication(settings, lambda one: one.drop_slot(settings.slot_name)))


class _Daemon:
    """One pipeline, its registry and its HTTP server."""

    def __init__(self, settings: Settings, *, adopt_slot: bool) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._metrics.info.labels(__version__, settings.name, speedups.NAME, settings.delivery.mode).set(1)
        self._kafka = ClientOptions(settings.kafka.librdkafka_properties(), f"pgsluice-{settings.name}")
        self._sink_options = _sink_options(settings, self._kafka)
        schemas = settings.kafka.topic_prefix + SCHEMAS
        options = _registry_options(settings, self._kafka.errors)
        builtin = BuiltinRegistry(replace(options, count_version=self._metrics.schema_versions.inc), schemas)
        self._registry = _registry(settings, builtin, self._metrics)
        self._pipeline = Pipeline(
            _pipeline_options(settings, adopt_slot=adopt_slot),
            self._open_source,
            self._make_sink,
            self._registry,
            self._make_spool,
            self._metrics,
        )
        self._slot = SlotWatch(settings.slot_name, lambda: _connection_options(settings))
        self._lag = Lag(time.monotonic())
        self._show_limits()
        self._disk = Disk()
        self._spill = SpillDirectory(settings.buffer.spill_dir, self._disk)
        self._started = time.time()

    async def run(self) -> None:
        health = Health(self._status, self._live, self._ready)
        served = self._registry.store if self._settings.schema_registry.type == "builtin" else None
        listening = self._settings.http
        metrics = labelled(self._metrics.registry, pipeline=self._settings.name)
        http = HttpServer(str(listening.listen), health, metrics, served, allowed_hosts=listening.allowed_hosts)
        await http.start()
        mode, encoder = self._settings.delivery.mode, speedups.describe()
        log.info("listening", address=str(self._settings.http.listen), version=__version__, mode=mode, encoder=encoder)
        try:
            async with _signals(self._pipeline.stop):
                await self._run_pipeline()
        finally:
            await self._registry.close()
            await http.stop()

    async def _run_pipeline(self) -> None:
        """Run the pipeline with a directory for its files; a stop does not wait for a disk that hangs."""
        async with AsyncExitStack() as stack:
            await _first_of(stack.enter_async_context(self._spill), self._pipeline.stopped())
            pipeline = self._pipeline
            looks = self._slot.run(
                lambda: pipeline.state is not State.STANDBY, lambda: pipeline.state is State.STREAMING
            )
            await _first_of(pipeline.run(), self._registry.follow(), self._keep_gauges(), looks)

    async def _open_source(self) -> PostgresSource:
        """Connect for one session; the slot is looked at on the same server from then on."""
        options = _source_options(self._settings)
        stream = replace(options.stream, binary=self._pipeline.binary)
        source = await PostgresSource.open(replace(options, stream=stream))
        self._slot.follow(source.address)
        return source

    async def _make_sink(self) -> KafkaSink:
        """Make the sink of one session, once the cut record's schemas have their ids."""
        prefix = self._settings.kafka.topic_prefix
        await self._registry.start()
        schema = cut_schema(prefix)
        value_id = await self._registry.register(f"{prefix}.transactions-value", schema)
        key_id = await self._registry.register(f"{prefix}.transactions-key", "string")
        key = header(key_id) + encode_string(self._settings.name)
        decode = record_reader(schema, partial(self._schema_text, f"{prefix}.transactions-value"))
        cut_format = CutFormat(key, _encoder(value_id, schema), decode, self._origin_of)
        return KafkaSink(self._sink_options, cut_format)

    def _schema_text(self, subject: str, identifier: int) -> str | None:
        """Return the text of the schema that has this id in ``subject``."""
        versions = self._registry.store.versions(subject)
        return next((entry.schema for entry in versions if entry.id == identifier), None)

    def _origin_of(self, key: bytes | None, value: bytes) -> Origin | None:
        store = self._registry.store
        return origin_of(value, store.schema_of(value), store.schema_of(key))

    def _make_spool(self) -> Spool:
        buffer = self._settings.buffer
        options = SpoolOptions(
            self._spill.path, buffer.memory_max.bytes, buffer.spill_max.bytes, self._spill.descriptor
        )
        return Spool(options, self._disk)

    def _status(self) -> dict[str, object]:
        """Return what ``/status`` says; LSNs in PostgreSQL's notation."""
        pipeline, session = self._pipeline, self._pipeline.session
        lag_seconds, lag_bytes = self._measure_lag()
        status: dict[str, object] = {
            "version": __version__,
            "pipeline": self._settings.name,
            "slot": self._settings.slot_name,
            "mode": self._settings.delivery.mode,
            "encoder": speedups.NAME,
            "format": "binary" if pipeline.binary else "text",
            "state": pipeline.state.value,
            "last_error": pipeline.last_error,
            "uptime_s": round(time.time() - self._started),
            "lag_seconds": None if lag_seconds is None else round(lag_seconds, 3),
            "lag_bytes": lag_bytes,
            "slot_status": self._slot_status(),
            "quarantined": [] if pipeline.quarantine is None else pipeline.quarantine.tables,
            "snapshot": self._snapshot_status(),
        }
        if session is not None:
            progress, checkpoint = session.progress, session.checkpoint
            status |= {
                "epoch": checkpoint.epoch,
                "cut": checkpoint.cut,
                "server_lsn": format_lsn(session.server_lsn),
                "received_lsn": format_lsn(progress.received),
                "delivered_lsn": format_lsn(progress.delivered),
                "confirmed_lsn": format_lsn(progress.confirmable),
                "buffered_bytes": session.buffered_bytes,
                "waiting_transactions": session.waiting_transactions,
                "waiting_bytes": dict(zip(("memory", "disk"), session.waiting_bytes, strict=True)),
                "prepared": [_prepared(one) for one in session.prepared[:PREPARED_SHOWN]],
            }
        return status

    def _load_report(self) -> LoadReport | None:
        """Return how far loads have come; None while that is not known, and where tables are not loaded."""
        session = self._pipeline.session
        return session.load_report if session is not None and self._pipeline.state is State.STREAMING else None

    def _snapshot_status(self) -> dict[str, object] | None:
        report = self._load_report()
        if report is None:
            return None
        return {
            "tables": dict(report.tables),
            "rows": report.rows,
            "estimated_rows": report.estimated_rows,
            "rows_per_second": round(report.rows_per_s),
            "seconds_left": report.seconds_left,
            "not_loaded": [asdict(one) for one in report.named],
        }

    def _show_loads(self) -> None:
        metrics, report = self._metrics, self._load_report()
        metrics.snapshot_tables.set_all({} if report is None else report.tables)
        metrics.snapshot_rows.set(None if report is None else report.rows)
        metrics.snapshot_estimated_rows.set(None if report is None else report.estimated_rows)

    def _live(self) -> str | None:
        """Answering at all shows that the event loop runs, and signs of life show that the work goes on."""
        silent_s = self._pipeline.vitals.silent_s
        return f"nothing has moved for {silent_s:.0f} s" if silent_s > LIVE_S else None

    def _ready(self, role: Role) -> str | None:
        state, session = self._pipeline.state, self._pipeline.session
        if session is not None and (stall := session.stall) is not None:
            return stall
        if state is State.STREAMING or (state is State.STANDBY and role is Role.ANY):
            return None
        return f"{state.value}: {self._pipeline.last_error or 'not streaming yet'}"

    async def _keep_gauges(self) -> None:
        metrics = self._metrics
        while True:
            session = self._pipeline.session
            metrics.set_state(self._pipeline.state, State)
            lag_seconds, lag_bytes = self._measure_lag()
            metrics.lag_seconds.set(lag_seconds)
            metrics.lag_bytes.set(lag_bytes)
            self._show_slot()
            self._show_loads()
            oldest = None if session is None else session.oldest_prepared
            metrics.oldest_prepared_seconds.set(0.0 if oldest is None else age_s(oldest.prepare_ts))
            if session is not None:
                for position, lsn in session.positions().items():
                    metrics.lsn.labels(position).set(lsn)
            metrics.kafka_errors.set(self._kafka.errors.count)
            await asyncio.sleep(GAUGES_S)

    def _show_limits(self) -> None:
        metrics, buffer = self._metrics, self._settings.buffer
        metrics.buffered_limit_bytes.set(self._settings.delivery.inflight_max.bytes)
        metrics.waiting_limit_bytes.labels("memory").set(buffer.memory_max.bytes)
        metrics.waiting_limit_bytes.labels("disk").set(buffer.spill_max.bytes)

    def _measure_lag(self) -> tuple[float | None, int | None]:
        """Return the lag in seconds and in bytes, each as far as it is known; a standby's is that of the owner."""
        now, lag, session, sample = time.monotonic(), self._lag, self._pipeline.session, self._slot.sample
        if self._pipeline.state is State.STANDBY:
            lag.leave(now)
            return None, None
        if session is not None and session.heard_at is not None:
            lag.hear(session.heard_at, session.server_lsn)
        elif sample is not None and sample.wal_end is not None:
            lag.hear(sample.sampled_at, sample.wal_end)
        if session is not None:
            lag.reach(session.caught_up_lsn, session.confirmed_lsn)
            if (age := session.oldest_commit_age_s()) > 0:
                lag.owe(now - age)
        elif sample is not None and sample.slot is not None:
            lag.reach(sample.slot.confirmed_flush_lsn, sample.slot.confirmed_flush_lsn)
        return lag.seconds(now), lag.bytes

    def _present_sample(self) -> SlotSample | None:
        """Return what the slot was like a moment ago, None if that is not known."""
        sample = self._slot.sample
        return sample if sample is not None and time.monotonic() - sample.sampled_at < SAMPLE_SHOWN_S else None

    def _slot_status(self) -> dict[str, object] | None:
        sample = self._present_sample()
        if sample is None or sample.slot is None:
            return None
        return {
            "active": sample.slot.active_pid is not None,
            "wal_status": sample.slot.wal_status,
            "retained_bytes": sample.retained_bytes,
            "safe_bytes": sample.slot.safe_wal_size,
        }

    def _show_slot(self) -> None:
        """Show what is known of the slot, and nothing that is not known any more."""
        metrics, sample = self._metrics, self._present_sample()
        last = self._slot.sample
        slot = None if sample is None else sample.slot
        metrics.slot_sampled.set(None if last is None else last.timestamp_s)
        metrics.slot_exists.set(None if sample is None else slot is not None)
        metrics.slot_active.set(None if slot is None else slot.active_pid is not None)
        metrics.slot_retained_bytes.set(None if sample is None else sample.retained_bytes)
        metrics.slot_safe_bytes.set(None if slot is None else slot.safe_wal_size)
        status = None if slot is None else slot.wal_status
        metrics.slot_wal_status.set_all({} if status is None else {one: one == status for one in WAL_STATUS})


def _prepared(transaction: Prepared) -> dict[str, object]:
    return {
        "gid": transaction.gid,
        "xid": transaction.xid,
        "prepare_lsn": format_lsn(transaction.prepare_lsn),
        "seconds": round(age_s(transaction.prepare_ts)),
    }


def _connection_options(settings: Settings) -> ConnectionOptions:
    postgres = settings.postgres
    return ConnectionOptions(
        postgres.libpq_parameters(),
        application_name=f"pgsluice-{settings.name}",
        wal_sender_timeout_ms=postgres.wal_sender_timeout.milliseconds,
        status_interval_s=postgres.status_interval.seconds,
    )


def _primary_options(settings: Settings) -> ConnectionOptions | None:
    """Return how to reach the server where rows are read; None: it is the one that is streamed from."""
    parameters = settings.primary_parameters()
    return None if parameters is None else replace(_connection_options(settings), parameters=parameters)


def _type_options(settings: Settings) -> TypeOptions:
    tables = settings.tables
    return TypeOptions(tables.numeric.decimal or "string", tables.time_range, binary=settings.postgres.binary)


def _source_options(settings: Settings) -> SourceOptions:
    postgres = settings.postgres
    stream = StreamOptions(
        streaming=postgres.streaming,
        two_phase=postgres.two_phase,
        binary=postgres.binary,
        messages=postgres.messages,
        origin=postgres.origin,
    )
    if postgres.messages and postgres.streaming != "off":
        log.info("streaming is off, because messages are published: those of a rolled-back savepoint would be, too")
    return SourceOptions(
        _connection_options(settings),
        settings.slot_name,
        postgres.publications,
        stream,
        postgres.failover,
        _primary_options(settings),
    )


def _registry_options(settings: Settings, errors: ClientErrors) -> RegistryOptions:
    return RegistryOptions(
        ClientOptions(settings.kafka.librdkafka_properties(), f"pgsluice-{settings.name}-schemas", errors),
        replication_factor=settings.kafka.topics.replication_factor,
        topic_config=_service_topic_config(settings),
    )


def _registry(settings: Settings, builtin: BuiltinRegistry, metrics: Metrics) -> "BuiltinRegistry | ConfluentRegistry":
    """Return what gives schemas their ids: the topic of schemas alone, or a server with the topic as its record."""
    chosen = settings.schema_registry
    if chosen.type == "builtin":
        return builtin
    with _client_installed():
        from pgsluice.registry.confluent import ConfluentOptions, ConfluentRegistry  # noqa: PLC0415 - 0.6 s, 15 MB
    seconds = metrics.registry_seconds
    rest = _rest_options(settings, lambda result, took: seconds.labels(result).observe(took))
    options = ConfluentOptions(rest, chosen.subject_name_strategy, chosen.on_incompatible)
    return ConfluentRegistry(options, builtin)


def _rest_options(
    settings: Settings, answered: Callable[[str, float], None] = lambda _result, _seconds: None
) -> "Callable[[], RestOptions]":
    """Return what tells how to connect to the registry's server now."""
    with _client_installed():
        from pgsluice.registry.rest import RestOptions  # noqa: PLC0415 - as in _registry
    chosen = settings.schema_registry
    if chosen.url is None:
        raise ConfigError("schema_registry.url is not set: name the addresses of the schema registry.")
    constant = RestOptions(
        chosen.url,
        username=chosen.username,
        ca_file=chosen.ca_file,
        cert_file=chosen.cert_file,
        key_file=chosen.key_file,
        timeout_s=chosen.timeout.seconds,
        answered=answered,
    )
    return lambda: replace(constant, password=chosen.secret("password"), token=chosen.secret("token"))


@contextmanager
def _client_installed() -> Iterator[None]:
    """ConfigError where what the block imports needs a package that is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"A schema registry server needs Python's module {error.name}: pip install 'pgsluice[confluent]'."
        ) from None


def _service_topic_config(settings: Settings) -> dict[str, str]:
    """Return what service topics take over from the user's topics: what concerns durability."""
    name = "min.insync.replicas"
    config = settings.kafka.topics.config
    return {name: config[name]} if name in config else {}


def _sink_options(settings: Settings, client: ClientOptions) -> SinkOptions:
    prefix, factor = settings.kafka.topic_prefix, settings.kafka.topics.replication_factor
    common = _service_topic_config(settings)
    return SinkOptions(
        ProducerOptions(
            client,
            f"pgsluice-{prefix}-{settings.name}",
            QUEUE_FACTOR * settings.delivery.inflight_max.bytes,
            settings.delivery.transaction_timeout.seconds,
        ),
        transactions_topic=TopicSpec(f"{prefix}.transactions", 1, factor, {**common, "cleanup.policy": "delete"}),
        checkpoint_topic=TopicSpec(f"{prefix}.checkpoint", 1, factor, {**common, "cleanup.policy": "compact"}),
        pipeline=settings.name,
        mode=settings.delivery.mode,
        dead_letters_topic=(
            TopicSpec(f"{prefix}.dead_letters", 1, factor, common)
            if settings.delivery.poison == "dead_letter"
            else None
        ),
        snapshots_topic=TopicSpec(f"{prefix}.snapshots", 1, factor, {**common, "cleanup.policy": "compact"}),
        commands_topic=TopicSpec(f"{prefix}.commands", 1, factor, {**common, "cleanup.policy": "delete"}),
        accept_changed_topics=settings.kafka.topics.changed == "accept",
        topics_max=settings.kafka.topics.max,
        reserved_topics=frozenset(_tables(settings).reserved_topics),
    )


def _pipeline_options(settings: Settings, *, adopt_slot: bool) -> PipelineOptions:
    delivery = settings.delivery
    limits = Limits(
        delivery.cut_interval.seconds,
        delivery.cut_bytes.bytes,
        delivery.inflight_max.bytes,
        delivery.heartbeat.seconds,
    )
    return PipelineOptions(
        name=settings.name,
        slot=settings.slot_name,
        tables=_tables(settings),
        types=_type_options(settings),
        session=SessionOptions(limits, settings.kafka.timestamp == "commit", _load_options(settings)),
        create_slot=settings.postgres.create_slot,
        adopt_slot=adopt_slot,
        drain_timeout_s=settings.shutdown.drain_timeout.seconds,
        asked=_asked(settings),
        dead_letters=delivery.poison == "dead_letter",
        quarantine=settings.tables.refused == "quarantine",
    )


def _load_options(settings: Settings) -> LoadOptions:
    """Return how tables are loaded."""
    snapshot = settings.snapshot
    return LoadOptions(
        snapshot.chunk_rows,
        snapshot.chunk_bytes.bytes,
        snapshot.without_key_max.bytes,
        max_rows_per_s=snapshot.max_rows_per_second,
        replaces=settings.postgres.origin == "any",
        in_each_epoch=snapshot.mode == "when_needed",
        is_initial=snapshot.mode != "never",
        assumes="mode" not in snapshot.model_fields_set,
        is_altered=snapshot.on_alter == "load",
    )


def _asked(settings: Settings) -> str:
    """Return what decides which changes are delivered, as a text that is short because every checkpoint has it."""
    postgres, tables = settings.postgres, settings.tables
    asked = [
        sorted(postgres.publications),
        postgres.messages,
        postgres.origin,
        list(tables.include),
        list(tables.exclude),
        tables.truncate,
        [(rule.match, rule.truncate) for rule in tables.rules],
    ]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:ASKED_DIGITS]


def _tables(settings: Settings) -> Tables:
    topics, tables = settings.kafka.topics, settings.tables
    return Tables(
        prefix=settings.kafka.topic_prefix,
        topic=topics.name,
        partitions=topics.partitions,
        replication_factor=topics.replication_factor,
        config=topics.config,
        include=tables.include,
        exclude=tables.exclude,
        tombstones=tables.tombstones,
        truncate=tables.truncate == "emit",
        rules=[
            TableRule(
                match=rule.match,
                keys=None if rule.keys is None else tuple(rule.keys),
                topic=rule.topic,
                partitions=rule.partitions,
                replication_factor=rule.replication_factor,
                config=rule.config,
                tombstones=rule.tombstones,
                truncate=None if rule.truncate is None else rule.truncate == "emit",
                is_loaded=rule.snapshot is None,
                where=rule.where or "",
                types=rule.types,
            )
            for rule in tables.rules
        ],
    )


def _encoder(schema_id: int, schema: dict[str, Any]) -> Callable[[dict[str, Any]], bytes]:
    """Return what writes a record of ``schema`` in Confluent's wire format."""
    parsed, head = fastavro.parse_schema(schema), header(schema_id)

    def encode(record: dict[str, Any]) -> bytes:
        out = BytesIO(head)
        out.seek(len(head))
        fastavro.schemaless_writer(out, parsed, record)
        return out.getvalue()

    return encode


@asynccontextmanager
async def _signals(stop: Callable[[], None]) -> AsyncIterator[None]:
    """Call ``stop`` at the first SIGTERM or SIGINT; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    asked = False

    def on_signal(number: int) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        log.info("stopping", signal=signal.Signals(number).name)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _check(settings: Settings) -> list[Finding]:
    source = _source_options(settings)
    client = ClientOptions(settings.kafka.librdkafka_properties(), f"pgsluice-{settings.name}-check")
    postgres, kafka, registry = await asyncio.gather(
        postgres_checks.check(
            source.connection,
            source.slot,
            source.publications,
            source.stream,
            create_slot=settings.postgres.create_slot,
        ),
        asyncio.to_thread(kafka_checks.check, _sink_options(settings, client)),
        _check_registry(settings),
    )
    tables = await _check_tables(settings, _sink_options(settings, client))
    snapshots = await _check_snapshots(settings)
    spill_dir = await spool.check(settings.buffer.spill_dir, Disk())
    return [*postgres, *tables, *snapshots, *kafka, *registry, spill_dir]


async def _check_tables(settings: Settings, sink: SinkOptions) -> list[Finding]:
    """Look whether the published tables can be published as the settings are."""
    tables = _tables(settings)
    try:
        async with Catalog(_connection_options(settings)) as catalog:
            published = await catalog.published_names(settings.postgres.publications)
            asking = partial(catalog.published_relations, settings.postgres.publications), catalog.describe_types
            refused = await refusals(tables, _type_options(settings), published, *asking)
    except PgsluiceError:
        return []  # what keeps us from looking is among the findings on PostgreSQL
    names = [(table.namespace, table.name) for table in published]
    specs = await asyncio.to_thread(_topic_specs, tables, names)
    sentences = [*map(str, refused), *map(str, tables.collisions(names))]
    sentences += await asyncio.to_thread(kafka_checks.refused_tables, sink, specs)
    if not sentences:
        return [Finding("tables", Verdict.OK, f"all {len(specs)} can be published as the settings are")]
    return _refused_tables(sentences, stops=settings.tables.refused == "stop")


async def _check_snapshots(settings: Settings) -> list[Finding]:
    """Look whether the rows of the published tables can be read, if they are to be."""
    if settings.snapshot.mode == "never":
        return []
    tables = _tables(settings)

    def policy_of(schema: str, table: str) -> TablePolicy | None:
        with suppress(TableRefused):
            return tables.policy(schema, table)
        return None

    stream, primary = _connection_options(settings), _primary_options(settings)
    try:
        if primary is not None and (found := await snapshot_checks.check_primary(stream, primary)):
            return found
        publications = settings.postgres.publications
        async with Catalog(primary or stream) as catalog:
            found = await snapshot_checks.check(
                catalog,
                publications,
                policy_of,
                without_key_max=settings.snapshot.without_key_max.bytes,
                rows_per_s=settings.snapshot.max_rows_per_second,
            )
        return [*found, *await snapshot_checks.check_conditions(primary or stream, publications, policy_of)]
    except PgsluiceError:
        return []  # what keeps us from looking is among the findings on PostgreSQL


def _topic_specs(tables: Tables, names: Sequence[tuple[str, str]]) -> list[TopicSpec]:
    """Return the topics of the tables that have one. Which tables have keys shows only when a row comes."""
    specs = []
    for schema, table in names:
        with suppress(TableRefused):
            if (policy := tables.policy(schema, table)) is not None:
                specs.append(TopicSpec(policy.topic, policy.partitions, compactable=not policy.truncate))
    return specs


def _refused_tables(sentences: Sequence[str], *, stops: bool) -> list[Finding]:
    verdict = Verdict.FAIL if stops else Verdict.WARN
    remedy = (
        "pgsluice stops at its first change (tables.refused)."
        if stops
        else "It goes into quarantine: a dead letter stands for each of its changes (tables.refused)."
    )
    found = [Finding("tables", verdict, sentence, remedy) for sentence in sentences[:REFUSED_SHOWN]]
    if more := len(sentences) - len(found):
        found.append(Finding("tables", verdict, f"{more} more cannot be published as the settings are", remedy))
    return found


async def _check_registry(settings: Settings) -> list[Finding]:
    if settings.schema_registry.type == "builtin":
        return []  # it is a topic, and Kafka is looked at
    with _client_installed():
        from pgsluice.registry import checks  # noqa: PLC0415 - as in _registry
    chosen, prefix = settings.schema_registry, settings.kafka.topic_prefix
    schema = cut_schema(prefix)
    subject = subject_name(chosen.subject_name_strategy, f"{prefix}.transactions-value", schema)
    return await checks.check(_rest_options(settings), chosen.on_incompatible, subject, schema)


async def _serve_registry(settings: Settings, prefixes: Sequence[str]) -> None:
    store, stop, caught_up = SchemaStore(), asyncio.Event(), asyncio.Event()
    options = _registry_options(settings, ClientErrors())
    follower = SchemaFollower(options, [prefix + SCHEMAS for prefix in prefixes], store)
    health = Health(
        lambda: {"version": __version__, "prefixes": list(prefixes), "subjects": len(store.subjects())},
        lambda: None,
        lambda _role: None if caught_up.is_set() else "the schemas have not been read to their end yet",
    )
    listening = settings.http
    metrics = registry_metrics(lambda: len(store.subjects()))
    http = HttpServer(str(listening.listen), health, metrics, store, allowed_hosts=listening.allowed_hosts)
    await http.start()
    log.info("listening", address=str(settings.http.listen), version=__version__)
    try:
        async with _signals(stop.set):
            await _first_of(_follow(follower, caught_up), stop.wait())
    finally:
        await follower.close()
        await http.stop()


async def _export_registry(settings: Settings, prefixes: Sequence[str]) -> "dict[str, Exported]":
    rest = _rest_options(settings)
    with _client_installed():
        from pgsluice.registry.export import export  # noqa: PLC0415 - as in _registry
    follower = SchemaFollower(
        _registry_options(settings, ClientErrors()), [prefix + SCHEMAS for prefix in prefixes], SchemaStore()
    )
    try:
        await follower.start()
        if missing := await follower.missing():
            raise ConfigError(f"{missing} Correct --prefix, or kafka.topic_prefix; nothing was exported.")
    finally:
        await follower.close()
    return await export(follower.store, rest(), settings.schema_registry.subject_name_strategy)


async def _follow(follower: SchemaFollower, caught_up: asyncio.Event) -> None:
    while not caught_up.is_set():
        try:
            await follower.start()
            caught_up.set()
            if missing := await follower.missing():
                log.warning("waiting for schemas", reason=missing)
            if ambiguous := follower.store.ambiguous():
                log.warning("prefixes share ids: clients that do not name the subject are refused", ids=ambiguous[:10])
        except SinkUnavailable as error:
            log.warning("waiting for Kafka", reason=str(error))
    await follower.follow()


async def _first_of(*works: Coroutine[Any, Any, Any]) -> None:
    """Run all of ``works`` until one of them ends; raises what ended it."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _with_replication(settings: Settings, action: Callable[[ReplicationConnection], Coroutine[Any, Any, T]]) -> T:
    connection = await ReplicationConnection.open(_connection_options(settings))
    try:
        return await action(connection)
    finally:
        await connection.close()
