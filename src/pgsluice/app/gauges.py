"""Copies positions, lags and states into the metrics, which do not count these themselves."""

import asyncio
from typing import Final, NoReturn

from pgsluice.app.status import Status
from pgsluice.config import Settings
from pgsluice.kafka.client import ClientErrors
from pgsluice.metrics import WAL_STATUS, Metrics
from pgsluice.pipeline.pipeline import State
from pgsluice.pipeline.session_status import age_s

GAUGES_S: Final = 1.0
"""How often they are copied."""


class Gauges:
    """Keeps the metrics up to date that show a state."""

    def __init__(self, settings: Settings, metrics: Metrics, status: Status, errors: ClientErrors) -> None:
        self._metrics = metrics
        self._status = status
        self._errors = errors
        self._show_limits(settings)

    async def keep(self) -> NoReturn:
        """Copy the present state into the metrics, again and again."""
        metrics = self._metrics
        while True:
            session = self._status.pipeline.session
            metrics.set_state(self._status.pipeline.state, State)
            lag_seconds, lag_bytes = self._status.lag()
            metrics.lag_seconds.set(lag_seconds)
            metrics.lag_bytes.set(lag_bytes)
            self._show_slot()
            self._show_loads()
            oldest = None if session is None else session.status.oldest_prepared
            metrics.oldest_prepared_seconds.set(0.0 if oldest is None else age_s(oldest.prepare_ts))
            if session is not None:
                for position, lsn in session.status.positions().items():
                    metrics.lsn.labels(position).set(lsn)
            metrics.kafka_errors.set(self._errors.count)
            await asyncio.sleep(GAUGES_S)

    def _show_limits(self, settings: Settings) -> None:
        metrics, buffer = self._metrics, settings.buffer
        metrics.buffered_limit_bytes.set(settings.delivery.inflight_max.bytes)
        metrics.waiting_limit_bytes.labels("memory").set(buffer.memory_max.bytes)
        metrics.waiting_limit_bytes.labels("disk").set(buffer.spill_max.bytes)

    def _show_slot(self) -> None:
        """Show what is known of the slot. Remove what is not known any more."""
        metrics, sample = self._metrics, self._status.sample()
        last = self._status.slot.sample
        slot = None if sample is None else sample.slot
        metrics.slot_sampled.set(None if last is None else last.timestamp_s)
        metrics.slot_exists.set(None if sample is None else slot is not None)
        metrics.slot_active.set(None if slot is None else slot.active_pid is not None)
        metrics.slot_retained_bytes.set(None if sample is None else sample.retained_bytes)
        metrics.slot_safe_bytes.set(None if slot is None else slot.safe_wal_size)
        status = None if slot is None else slot.wal_status
        metrics.slot_wal_status.set_all({} if status is None else {one: one == status for one in WAL_STATUS})

    def _show_loads(self) -> None:
        metrics, report = self._metrics, self._status.load_report()
        metrics.snapshot_tables.set_all({} if report is None else report.tables)
        metrics.snapshot_rows.set(None if report is None else report.rows)
        metrics.snapshot_estimated_rows.set(None if report is None else report.estimated_rows)
