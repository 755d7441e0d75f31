"""Copies positions, lags and states into the metrics at regular intervals."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final, NoReturn

from pgsluice.app.status import Status
from pgsluice.config import Settings
from pgsluice.config.certificates import expiries
from pgsluice.kafka.client import ClientErrors
from pgsluice.metrics import WAL_STATUS, Metrics
from pgsluice.pipeline.pipeline import State
from pgsluice.pipeline.session_status import age_s

USUAL_ERRORS: Final = ("_ALL_BROKERS_DOWN", "_TRANSPORT")
"""Errors of Kafka clients whose counters exist from the start, with the value 0. Prometheus sees an increase only if it
has seen an earlier value."""

GAUGES_S: Final = 1.0
"""How often the gauges are copied."""

CERTIFICATES_S: Final = 60.0
"""How often the files of certificates are read."""


class Gauges:
    """Updates the metrics that show the present state."""

    def __init__(self, settings: Settings, metrics: Metrics, status: Status, errors: ClientErrors) -> None:
        self._metrics = metrics
        self._status = status
        self._errors = errors
        self._positions: Mapping[str, int] | None = None
        """The positions of the present session, or of the last one."""
        self._settings = settings
        self._show_limits(settings)

    async def keep_certificates(self) -> NoReturn:
        """Show when the certificates expire. Read their files again every ``CERTIFICATES_S`` seconds."""
        while True:
            self._metrics.certificate_expiry.set_all(await asyncio.to_thread(expiries, self._settings))
            await asyncio.sleep(CERTIFICATES_S)

    async def keep(self) -> NoReturn:
        """Copy the present state into the metrics every ``GAUGES_S`` seconds."""
        metrics = self._metrics
        while True:
            session = self._status.pipeline.session
            metrics.set_state(self._status.pipeline.state, State)
            # Between two sessions, nobody knows whether the pipeline is paused, so the metric keeps its value.
            if (is_paused := self._status.is_paused()) is not None or self._status.pipeline.state is State.STANDBY:
                metrics.paused.set(is_paused)
            lag_seconds, lag_bytes = self._status.lag()
            metrics.lag_seconds.set(lag_seconds)
            metrics.lag_bytes.set(lag_bytes)
            self._show_stages(lag_seconds)
            self._show_slot()
            self._show_loads()
            self._show_memory()
            if session is not None:
                for position, lsn in session.status.positions().items():
                    metrics.lsn.labels(position).set(lsn)
            metrics.kafka_errors.set_all(dict.fromkeys(USUAL_ERRORS, 0) | self._errors.counts)
            began = time.monotonic()
            await asyncio.sleep(GAUGES_S)
            metrics.loop_delay_seconds.observe(max(0.0, time.monotonic() - began - GAUGES_S))

    def _show_limits(self, settings: Settings) -> None:
        metrics, buffer = self._metrics, settings.buffer
        metrics.buffered_limit_bytes.set(settings.delivery.inflight_max.bytes)
        metrics.waiting_limit_bytes.labels("memory").set(buffer.memory_max.bytes)
        metrics.waiting_limit_bytes.labels("disk").set(buffer.spill_max.bytes)

    def _show_memory(self) -> None:
        """Show what waits in the session. Without a session, nothing is known of it."""
        metrics, session = self._metrics, self._status.pipeline.session
        if session is None:
            for known in (metrics.buffered_bytes, metrics.waiting_transactions, metrics.prepared_transactions):
                known.set(None)
            metrics.oldest_prepared_seconds.set(None)
            metrics.waiting_bytes.set_all({})
            return
        status = session.status
        metrics.buffered_bytes.set(status.buffered_bytes)
        metrics.waiting_transactions.set(status.waiting_transactions)
        metrics.waiting_bytes.set_all(dict(zip(("memory", "disk"), status.waiting_bytes, strict=True)))
        metrics.prepared_transactions.set(len(status.prepared))
        oldest = status.oldest_prepared
        metrics.oldest_prepared_seconds.set(0.0 if oldest is None else age_s(oldest.prepare_ts))

    def _show_stages(self, lag_seconds: float | None) -> None:
        """Show the lag of each stage. Between sessions, use the last known positions. A standby has no lag."""
        metrics, status = self._metrics, self._status
        if lag_seconds is None:
            self._positions = None
            metrics.stage_lag_bytes.set_all({})
            metrics.source_lag_seconds.set(None)
            return
        if status.pipeline.session is not None:
            session = status.pipeline.session.status
            self._positions = session.positions() | {"confirmed": session.confirmed_lsn}
        sample, last = status.slot.sample, metrics.last_commit_ts
        wal_end = 0 if sample is None or sample.wal_end is None else sample.wal_end
        metrics.stage_lag_bytes.set_all({} if self._positions is None else stages(self._positions, wal_end))
        age = None if last is None else age_s(last)
        metrics.source_lag_seconds.set(0.0 if lag_seconds == 0 else age)

    def _show_slot(self) -> None:
        """Show what is known of the slot. Remove values that are no longer known."""
        metrics, sample = self._metrics, self._status.sample()
        last = self._status.slot.sample
        slot = None if sample is None else sample.slot
        metrics.slot_sampled.set(None if last is None else last.timestamp_s)
        metrics.slot_exists.set(None if sample is None else slot is not None)
        metrics.slot_active.set(None if slot is None else slot.active_pid is not None)
        metrics.slot_retained_bytes.set(None if sample is None else sample.retained_bytes)
        metrics.slot_xmin_age.set(None if sample is None else sample.xmin_age)
        found = None if sample is None else sample.statistics
        metrics.slot_decoded_bytes.set(None if found is None else found.decoded_bytes)
        metrics.slot_spilled_transactions.set(None if found is None else found.spilled_transactions)
        metrics.slot_spilled_bytes.set(None if found is None else found.spilled_bytes)
        metrics.slot_streamed_bytes.set(None if found is None else found.streamed_bytes)
        metrics.slot_safe_bytes.set(None if slot is None else slot.safe_wal_size)
        status = None if slot is None else slot.wal_status
        metrics.slot_wal_status.set_all({} if status is None else {one: one == status for one in WAL_STATUS})

    def _show_loads(self) -> None:
        metrics, report = self._metrics, self._status.load_report()
        metrics.snapshot_tables.set_all({} if report is None else report.tables)
        metrics.snapshot_rows.set(None if report is None else report.rows)
        metrics.snapshot_estimated_rows.set(None if report is None else report.estimated_rows)


def stages(positions: Mapping[str, int], wal_end: int) -> dict[str, int]:
    """Return how many bytes of WAL each stage is behind the previous stage.

    ``positions`` has the session's positions, by their names in the metric ``pgsluice_lsn``. ``wal_end`` is the end of
    the server's WAL according to the slot watch, or 0 if it is not known. Earlier sessions have received and delivered
    everything before ``confirmed``. If ``received`` or ``delivered`` of a new session is lower than ``confirmed``, this
    function uses ``confirmed`` in its place.
    """
    confirmed = positions["confirmed"]
    delivered = max(positions["delivered"], confirmed)
    received = max(positions["received"], delivered)
    server = max(positions["server"], wal_end, received)
    return {"receive": server - received, "deliver": received - delivered, "confirm": delivered - confirmed}
