"""The process of one pipeline, with its registry and its HTTP server."""

import asyncio
import gc
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

import structlog

from pgsluice import __version__
from pgsluice.app.gauges import Gauges
from pgsluice.app.http.health import Health
from pgsluice.app.http.server import HttpServer
from pgsluice.app.log import WARNINGS
from pgsluice.app.recent import Recent
from pgsluice.app.status import Status
from pgsluice.app.tasks import first_of, stop_on_signals
from pgsluice.app.tracing import tracing
from pgsluice.app.wiring import (
    access_files,
    client_options,
    connection_options,
    pipeline_options,
    registry_options,
    schema_registry,
    sink_options,
    source_options,
)
from pgsluice.avro.binary import encode_string
from pgsluice.avro.records import record_reader, record_writer
from pgsluice.avro.schema import cut_schema
from pgsluice.avro.wire import header
from pgsluice.config import Settings, secret_command
from pgsluice.dead_letter import SourceChange, origin_of
from pgsluice.kafka.options import CutFormat
from pgsluice.kafka.sink import KafkaSink
from pgsluice.metrics import Metrics, labelled
from pgsluice.native import speedups
from pgsluice.pipeline.pipeline import Pipeline, State
from pgsluice.postgres.slot_watch import SlotWatch
from pgsluice.postgres.source import PostgresSource
from pgsluice.registry.builtin import BuiltinRegistry
from pgsluice.registry.follower import SCHEMAS
from pgsluice.spool.directory import SpillDirectory
from pgsluice.spool.disk import Disk
from pgsluice.spool.disk_spool import DiskSpool, SpoolOptions

log = structlog.get_logger(__name__)

COLLECT_AFTER = 50_000
"""The number of new objects after which Python searches for unused reference cycles. Tens of thousands of records wait
at a time, and none of them is ever part of a cycle. With Python's default of 700, these searches took a tenth of the
CPU time."""


def run(settings: Settings, *, adopt_slot: bool) -> None:
    """Run the daemon until SIGTERM or SIGINT. If a PgsluiceError ends it earlier, raise this error."""
    speedups.check()
    collect_seldom()
    asyncio.run(Daemon(settings, adopt_slot=adopt_slot).run())


def collect_seldom() -> None:
    """Make Python's garbage collector run rarely. Exclude imported objects, because they are never freed."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


class Daemon:
    """One pipeline, its registry and its HTTP server."""

    def __init__(self, settings: Settings, *, adopt_slot: bool) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._tracing = tracing(settings.name)
        if self._tracing is not None:
            self._metrics.span = self._tracing.span
        self._metrics.info.labels(__version__, settings.name, speedups.NAME, settings.delivery.mode).set(1)
        self._kafka = client_options(settings)
        self._sink_options = sink_options(settings, self._kafka)
        schemas = settings.kafka.topic_prefix + SCHEMAS
        options = registry_options(settings, self._kafka.errors)
        builtin = BuiltinRegistry(replace(options, count_version=self._metrics.schema_versions.inc), schemas)
        self._registry = schema_registry(settings, builtin, self._metrics)
        self._pipeline = Pipeline(
            pipeline_options(settings, adopt_slot=adopt_slot),
            self._open_source,
            self._make_sink,
            self._registry,
            self._make_spool,
            self._metrics,
        )
        self._slot = SlotWatch(settings.slot_name, lambda: connection_options(settings))
        self._status = Status(settings, self._pipeline, self._slot)
        self._gauges = Gauges(settings, self._metrics, self._status, self._kafka.errors)
        self._recent = Recent(settings, self._status, self._metrics, WARNINGS)
        self._disk = Disk()
        self._spill = SpillDirectory(settings.buffer.spill_dir, self._disk)

    async def run(self) -> None:
        """Run until a signal stops the process. If a PgsluiceError ends it earlier, raise this error."""
        health = Health(self._status.document, self._status.live, self._status.ready, self._recent.overview)
        served = self._registry.store if self._settings.schema_registry.type == "builtin" else None
        listening, files = self._settings.http, access_files(self._settings)
        metrics = labelled(self._metrics.registry, pipeline=self._settings.name)
        http = HttpServer(str(listening.listen), health, metrics, served, listening.allowed_hosts, files)
        await http.start()
        mode, encoder = self._settings.delivery.mode, speedups.describe()
        log.info("listening", address=str(self._settings.http.listen), version=__version__, mode=mode, encoder=encoder)
        try:
            async with stop_on_signals(self._pipeline.stop):
                await self._run_pipeline()
        finally:
            secret_command.end_all()
            await self._registry.close()
            await http.stop()
            if self._tracing is not None:
                self._tracing.close()

    async def _run_pipeline(self) -> None:
        """Run the pipeline with a directory for its files.

        If the pipeline is stopped, do not wait for a disk that hangs.
        """
        async with AsyncExitStack() as stack:
            await first_of(stack.enter_async_context(self._spill), self._pipeline.stopped())
            pipeline = self._pipeline
            looks = self._slot.run(
                lambda: pipeline.state is not State.STANDBY, lambda: pipeline.state is State.STREAMING
            )
            shown = self._gauges.keep(), self._gauges.keep_certificates(), self._recent.keep()
            await first_of(pipeline.run(), self._registry.follow(), looks, *shown)

    async def _open_source(self) -> PostgresSource:
        """Connect for one session. From then on, the slot watch queries the same server."""
        options = source_options(self._settings)
        stream = replace(options.stream, binary=self._pipeline.binary)
        source = await PostgresSource.open(replace(options, stream=stream))
        self._slot.follow(source.address)
        return source

    async def _make_sink(self) -> KafkaSink:
        """Return the sink of one session, after registering the schemas of cut records."""
        prefix = self._settings.kafka.topic_prefix
        await self._registry.start()
        schema = cut_schema(prefix)
        value_id = await self._registry.register(f"{prefix}.transactions-value", schema)
        key_id = await self._registry.register(f"{prefix}.transactions-key", "string")
        key = header(key_id) + encode_string(self._settings.name)
        decode = record_reader(schema, partial(self._schema_text, f"{prefix}.transactions-value"))
        cut_format = CutFormat(key, record_writer(value_id, schema), decode, self._origin_of)
        return KafkaSink(self._sink_options, cut_format)

    def _schema_text(self, subject: str, identifier: int) -> str | None:
        """Return the text of the schema that has this id in ``subject``."""
        versions = self._registry.store.versions(subject)
        return next((entry.schema for entry in versions if entry.id == identifier), None)

    def _origin_of(self, key: bytes | None, value: bytes) -> SourceChange | None:
        store = self._registry.store
        return origin_of(value, store.schema_of(value), store.schema_of(key))

    def _make_spool(self) -> DiskSpool:
        buffer = self._settings.buffer
        options = SpoolOptions(
            self._spill.path, buffer.memory_max.bytes, buffer.spill_max.bytes, self._spill.descriptor
        )
        return DiskSpool(options, self._disk)
