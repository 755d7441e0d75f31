"""The metrics that show a state: what is known is shown, and what is not known any more is absent."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from prometheus_client.exposition import generate_latest

from pgsluice.app import status as statuses
from pgsluice.app.gauges import Gauges
from pgsluice.app.status import Status
from pgsluice.config import Settings
from pgsluice.kafka.client import ClientErrors
from pgsluice.metrics import Metrics
from pgsluice.postgres.slot import SlotState

Seen = Callable[..., Status]
SAMPLED = {"sampled_timestamp_seconds": 1_800_000_000}


@pytest.fixture
def shown(settings: Settings) -> Callable[[Status], Mapping[str, float]]:
    """Return what the metrics have of the slot, once they have been kept for a moment."""

    async def keep(gauges: Gauges) -> None:
        task = asyncio.create_task(gauges.keep())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def show(status: Status) -> Mapping[str, float]:
        metrics = Metrics()
        asyncio.run(keep(Gauges(settings, metrics, status, ClientErrors())))
        lines = [line.rsplit(" ", 1) for line in generate_latest(metrics.registry).decode().splitlines()]
        prefix = "pgsluice_slot_"
        return {name.removeprefix(prefix): float(value) for name, value in lines if name.startswith(prefix)}

    return show


Shown = Callable[[Status], Mapping[str, float]]


def test_everything_about_a_slot(slot: SlotState, seen: Seen, shown: Shown) -> None:
    assert shown(seen(slot)) == SAMPLED | {
        "exists": 1,
        "active": 0,
        "retained_bytes": 4000,
        "safe_bytes": 7000,
        'wal_status{status="reserved"}': 0,
        'wal_status{status="extended"}': 1,
        'wal_status{status="unreserved"}': 0,
        'wal_status{status="lost"}': 0,
    }


def test_what_old_servers_do_not_tell_is_absent(slot: SlotState, seen: Seen, shown: Shown) -> None:
    found = shown(seen(replace(slot, wal_status=None, safe_wal_size=None)))
    assert found.keys() == {"exists", "active", "retained_bytes"} | SAMPLED.keys()


def test_a_slot_that_is_not_there(seen: Seen, shown: Shown) -> None:
    assert shown(seen(None)) == {"exists": 0} | SAMPLED


def test_what_was_seen_long_ago_is_not_known_but_since_when_is(slot: SlotState, seen: Seen, shown: Shown) -> None:
    assert shown(seen(slot, age_s=statuses.SAMPLE_SHOWN_S + 1)) == SAMPLED


def test_nothing_is_known(seen: Seen, shown: Shown) -> None:
    status = seen(None)
    status.slot.sample = None
    assert shown(status) == {}


def test_limits(settings: Settings, seen: Seen) -> None:
    metrics = Metrics()
    Gauges(settings, metrics, seen(None), ClientErrors())
    sample, buffer = metrics.registry.get_sample_value, settings.buffer
    assert sample("pgsluice_buffered_limit_bytes") == settings.delivery.inflight_max.bytes
    assert sample("pgsluice_waiting_limit_bytes", {"place": "memory"}) == buffer.memory_max.bytes
    assert sample("pgsluice_waiting_limit_bytes", {"place": "disk"}) == buffer.spill_max.bytes
