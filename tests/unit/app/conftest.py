"""Fixtures: the status of a pipeline that has no session, with a sample of its slot."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pgsluice.app.status import Status
from pgsluice.app.wiring import connection_options, pipeline_options
from pgsluice.config import Settings, load
from pgsluice.metrics import Metrics
from pgsluice.pipeline.pipeline import Pipeline
from pgsluice.postgres.slot import SlotState
from pgsluice.postgres.slot_watch import SlotSample, SlotWatch
from tests.support.ends import FakeRegistry, FakeSink, FakeSource, MemorySpool, World


@pytest.fixture
def slot() -> SlotState:
    return SlotState(
        name="pgsluice_shop",
        plugin="pgoutput",
        slot_type="logical",
        database="shop",
        temporary=False,
        active_pid=None,
        restart_lsn=1000,
        confirmed_flush_lsn=2000,
        wal_status="extended",
        safe_wal_size=7000,
        two_phase=False,
        failover=False,
        synced=False,
        invalidation=None,
    )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    environ = {
        "PGSLUICE_NAME": "shop",
        "PGSLUICE_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "PGSLUICE_KAFKA__TOPIC_PREFIX": "shop",
        "PGSLUICE_POSTGRES__HOST": str(tmp_path),
        "PGSLUICE_BUFFER__SPILL_DIR": str(tmp_path / "spill"),
        "PGSLUICE_HTTP__LISTEN": "127.0.0.1:0",
    }
    return load(None, environ)


@pytest.fixture
def seen(settings: Settings) -> Callable[..., Status]:
    """Provide a function that returns the status of a pipeline without a session.

    Its argument ``age_s`` is the age of the last sample of the slot.
    """
    world = World(position=10_000)

    async def open_source() -> FakeSource:
        return FakeSource(world)

    async def make_sink() -> FakeSink:
        return FakeSink(world)

    def make(slot: SlotState | None, age_s: float = 0.0, wal_end: int | None = 5000) -> Status:
        options = pipeline_options(settings, adopt_slot=False)
        pipeline = Pipeline(options, open_source, make_sink, FakeRegistry(world), MemorySpool, Metrics())
        watch = SlotWatch(settings.slot_name, lambda: connection_options(settings))
        watch.sample = SlotSample(slot, wal_end, time.monotonic() - age_s, 1_800_000_000.0)
        return Status(settings, pipeline, watch)

    return make
