"""The composition root, as far as it goes without servers: signs of life before anything else works."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest

from pgsluice import daemon as module
from pgsluice import disk as disks
from pgsluice.config import load
from pgsluice.daemon import _Daemon
from pgsluice.errors import UnavailableError
from pgsluice.http.health import Role
from pgsluice.pipeline import State
from pgsluice.postgres.slot import SlotState
from pgsluice.postgres.slot_watch import SlotSample


def make(tmp_path: Path) -> _Daemon:
    environ = {
        "PGSLUICE_NAME": "shop",
        "PGSLUICE_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "PGSLUICE_KAFKA__TOPIC_PREFIX": "shop",
        "PGSLUICE_POSTGRES__HOST": str(tmp_path),
        "PGSLUICE_BUFFER__SPILL_DIR": str(tmp_path / "spill"),
        "PGSLUICE_HTTP__LISTEN": "127.0.0.1:0",
    }
    return _Daemon(load(None, environ), adopt_slot=False)


@asynccontextmanager
async def running(found: _Daemon) -> AsyncIterator[asyncio.Task[None]]:
    """Run it on a disk that hangs for the length of the block."""
    thaw = threading.Event()
    found._disk.later(thaw.wait)
    task = asyncio.create_task(found.run())
    try:
        yield task
    finally:
        thaw.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_it_waits(found: _Daemon) -> None:
    async with asyncio.timeout(5):
        while found._disk._jobs.qsize() == 0:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)


async def test_a_disk_that_hangs_at_the_start_shows_and_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIVE_S", 0.02)
    monkeypatch.setattr(disks, "DISK_LIMIT_S", 0.1)
    monkeypatch.setattr(disks, "LAST_LOOK_S", 0.1)
    found = make(tmp_path)
    async with running(found) as task:
        await until_it_waits(found)
        await asyncio.sleep(0.03)
        assert "nothing has moved" in (found._live() or "")
        assert found._ready(Role.ANY) == "starting: not streaming yet"
        with pytest.raises(UnavailableError, match="has not finished a piece of work"):
            await task


async def test_a_stop_does_not_wait_for_it(tmp_path: Path) -> None:
    found = make(tmp_path)
    async with running(found) as task:
        await until_it_waits(found)
        assert found._live() is None
        found._pipeline.stop()
        async with asyncio.timeout(5):
            await task


SLOT = SlotState(
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


class TestWhatIsKnownOfTheSlot:
    @staticmethod
    def seen(tmp_path: Path, slot: SlotState | None, age_s: float = 0.0, wal_end: int | None = 5000) -> _Daemon:
        """Return a daemon that has looked at the slot so long ago, and has no session."""
        found = make(tmp_path)
        found._slot.sample = SlotSample(slot, wal_end, time.monotonic() - age_s, 1_800_000_000.0)
        found._show_slot()
        return found

    @staticmethod
    def shown(found: _Daemon) -> dict[str, float]:
        text = generate_latest(found._metrics.registry).decode()
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("pgsluice_slot_")]
        return {name.removeprefix("pgsluice_slot_"): float(value) for name, value in lines}

    def test_everything(self, tmp_path: Path) -> None:
        found = self.seen(tmp_path, SLOT)
        assert self.shown(found) == {
            "exists": 1,
            "active": 0,
            "retained_bytes": 4000,
            "safe_bytes": 7000,
            'wal_status{status="reserved"}': 0,
            'wal_status{status="extended"}': 1,
            'wal_status{status="unreserved"}': 0,
            'wal_status{status="lost"}': 0,
            "sampled_timestamp_seconds": 1_800_000_000,
        }
        assert found._status()["slot_status"] == {
            "active": False,
            "wal_status": "extended",
            "retained_bytes": 4000,
            "safe_bytes": 7000,
        }

    def test_what_old_servers_do_not_tell_is_absent(self, tmp_path: Path) -> None:
        found = self.seen(tmp_path, replace(SLOT, wal_status=None, safe_wal_size=None))
        assert self.shown(found).keys() == {"exists", "active", "retained_bytes", "sampled_timestamp_seconds"}

    def test_a_slot_that_is_not_there(self, tmp_path: Path) -> None:
        found = self.seen(tmp_path, None)
        assert self.shown(found) == {"exists": 0, "sampled_timestamp_seconds": 1_800_000_000}
        assert found._status()["slot_status"] is None

    def test_what_was_seen_long_ago_is_not_known_but_since_when_is(self, tmp_path: Path) -> None:
        found = self.seen(tmp_path, SLOT, age_s=module.SAMPLE_SHOWN_S + 1)
        assert self.shown(found) == {"sampled_timestamp_seconds": 1_800_000_000}
        assert found._status()["slot_status"] is None

    def test_it_tells_the_lag_before_the_first_session(self, tmp_path: Path) -> None:
        found = self.seen(tmp_path, SLOT, age_s=5)
        seconds, size = found._measure_lag()
        assert seconds == pytest.approx(5, abs=1)
        assert size == 3000

    def test_a_slot_at_the_end_of_the_wal_is_no_lag(self, tmp_path: Path) -> None:
        assert self.seen(tmp_path, SLOT, wal_end=2000)._measure_lag() == (0.0, 0)

    def test_nothing_is_known(self, tmp_path: Path) -> None:
        found = make(tmp_path)
        found._show_slot()
        assert self.shown(found) == {}
        seconds, size = found._measure_lag()
        assert seconds == pytest.approx(0, abs=1)
        assert size is None

    def test_a_standby_leaves_it_to_the_owner(self, tmp_path: Path) -> None:
        found = self.seen(tmp_path, SLOT)
        found._pipeline.state = State.STANDBY
        assert found._measure_lag() == (None, None)


def test_limits_are_shown(tmp_path: Path) -> None:
    found = make(tmp_path)
    sample = found._metrics.registry.get_sample_value
    buffer = found._settings.buffer
    assert sample("pgsluice_buffered_limit_bytes") == found._settings.delivery.inflight_max.bytes
    assert sample("pgsluice_waiting_limit_bytes", {"place": "memory"}) == buffer.memory_max.bytes
    assert sample("pgsluice_waiting_limit_bytes", {"place": "disk"}) == buffer.spill_max.bytes
