"""The metrics that show a state. A value that is not known, or not known any more, is absent."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError
from prometheus_client.exposition import generate_latest

from pgsluice.app import status as statuses
from pgsluice.app.gauges import Gauges, stages
from pgsluice.app.status import Status
from pgsluice.config import Settings
from pgsluice.kafka.client import ClientErrors
from pgsluice.metrics import Metrics
from pgsluice.postgres.slot import SlotState, SlotStatistics

Seen = Callable[..., Status]
SAMPLED = {"sampled_timestamp_seconds": 1_800_000_000}


async def keep(gauges: Gauges) -> None:
    """Update the gauges once."""
    task = asyncio.create_task(gauges.keep())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def shown(settings: Settings) -> Callable[[Status], Mapping[str, float]]:
    """Provide a function that updates the gauges once, and returns the metrics of the slot."""

    def show(status: Status) -> Mapping[str, float]:
        metrics = Metrics()
        asyncio.run(keep(Gauges(settings, metrics, status, ClientErrors())))
        lines = [line.rsplit(" ", 1) for line in generate_latest(metrics.registry).decode().splitlines()]
        prefix = "pgsluice_slot_"
        return {name.removeprefix(prefix): float(value) for name, value in lines if name.startswith(prefix)}

    return show


Shown = Callable[[Status], Mapping[str, float]]


def test_every_metric_of_a_slot_is_shown(slot: SlotState, seen: Seen, shown: Shown) -> None:
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


def test_values_that_old_servers_do_not_report_are_absent(slot: SlotState, seen: Seen, shown: Shown) -> None:
    found = shown(seen(replace(slot, wal_status=None, safe_wal_size=None)))
    assert found.keys() == {"exists", "active", "retained_bytes"} | SAMPLED.keys()


def test_a_missing_slot_is_shown_as_not_existing(seen: Seen, shown: Shown) -> None:
    assert shown(seen(None)) == {"exists": 0} | SAMPLED


def test_an_old_sample_is_hidden_but_its_time_is_shown(slot: SlotState, seen: Seen, shown: Shown) -> None:
    assert shown(seen(slot, age_s=statuses.SAMPLE_SHOWN_S + 1)) == SAMPLED


def test_without_a_sample_no_metric_is_shown(seen: Seen, shown: Shown) -> None:
    status = seen(None)
    status.slot.sample = None
    assert shown(status) == {}


def test_counters_of_the_server_are_shown(slot: SlotState, seen: Seen, shown: Shown) -> None:
    status = seen(slot)
    assert status.slot.sample is not None
    status.slot.sample = replace(status.slot.sample, xmin_age=77, statistics=SlotStatistics(1000, 2, 300, 400))
    found = shown(status)
    assert found["xmin_age_transactions"] == 77
    assert found["decoded_bytes_total"] == 1000
    assert found["spilled_transactions_total"] == 2
    assert found["spilled_bytes_total"] == 300
    assert found["streamed_bytes_total"] == 400


def test_each_stage_is_behind_the_one_before_it() -> None:
    positions = {"server": 100, "received": 90, "delivered": 70, "confirmed": 40}
    assert stages(positions, 0) == {"receive": 10, "deliver": 20, "confirm": 30}
    assert stages(positions, 150) == {"receive": 60, "deliver": 20, "confirm": 30}


def test_a_session_that_has_received_nothing_counts_from_the_confirmed_position() -> None:
    positions = {"server": 100, "received": 0, "delivered": 0, "confirmed": 40}
    assert stages(positions, 0) == {"receive": 60, "deliver": 0, "confirm": 0}


def test_errors_of_kafka_are_counted_by_kind(settings: Settings, seen: Seen) -> None:
    metrics, errors = Metrics(), ClientErrors()
    for code in (KafkaError._TRANSPORT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
        errors(KafkaError(code))
    asyncio.run(keep(Gauges(settings, metrics, seen(None), errors)))
    value = metrics.registry.get_sample_value
    assert value("pgsluice_kafka_errors_total", {"kind": "_TRANSPORT"}) == 2
    assert value("pgsluice_kafka_errors_total", {"kind": "_ALL_BROKERS_DOWN"}) == 1


def test_the_source_lag_is_the_age_of_the_last_commit_unless_all_is_delivered(
    settings: Settings, slot: SlotState, seen: Seen
) -> None:
    for wal_end, expected in ((5000, pytest.approx(60, abs=5)), (2000, 0)):
        metrics = Metrics()
        metrics.last_commit_ts = int((time.time() - 946_684_800 - 60) * 1_000_000)
        asyncio.run(keep(Gauges(settings, metrics, seen(slot, wal_end=wal_end, age_s=1), ClientErrors())))
        assert metrics.registry.get_sample_value("pgsluice_source_lag_seconds") == expected


def test_what_waits_is_not_known_between_sessions(settings: Settings, seen: Seen) -> None:
    metrics = Metrics()
    for gauge in (metrics.buffered_bytes, metrics.waiting_transactions, metrics.prepared_transactions):
        gauge.set(1)
    metrics.oldest_prepared_seconds.set(4000)
    metrics.waiting_bytes.set_all({"memory": 1, "disk": 2})
    status = seen(None)
    assert status.pipeline.session is None
    asyncio.run(keep(Gauges(settings, metrics, status, ClientErrors())))
    names = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    unknown = {"buffered_bytes", "waiting_transactions", "waiting_bytes", "prepared_transactions"}
    assert names.isdisjoint({f"pgsluice_{name}" for name in unknown | {"oldest_prepared_seconds"}})


def test_the_limits_are_metrics(settings: Settings, seen: Seen) -> None:
    metrics = Metrics()
    Gauges(settings, metrics, seen(None), ClientErrors())
    sample, buffer = metrics.registry.get_sample_value, settings.buffer
    assert sample("pgsluice_buffered_limit_bytes") == settings.delivery.inflight_max.bytes
    assert sample("pgsluice_waiting_limit_bytes", {"place": "memory"}) == buffer.memory_max.bytes
    assert sample("pgsluice_waiting_limit_bytes", {"place": "disk"}) == buffer.spill_max.bytes
