"""The contents of ``/status``, ``/livez`` and ``/readyz``, which show the state of a pipeline."""

import time
from dataclasses import asdict
from typing import Final

from pgsluice import __version__
from pgsluice.app.http.health import Role
from pgsluice.config import Settings
from pgsluice.lsn import format_lsn
from pgsluice.native import speedups
from pgsluice.pipeline.lag import Lag
from pgsluice.pipeline.load_report import LoadReport
from pgsluice.pipeline.pipeline import Pipeline, State
from pgsluice.pipeline.session_status import age_s
from pgsluice.postgres.slot_watch import SlotSample, SlotWatch
from pgsluice.transaction import Prepared

SAMPLE_SHOWN_S: Final = 60.0
"""The time for which the last sample of the slot is shown while queries fail. If it were not shown, a single
failed query would reset alerts that are about to fire."""

PREPARED_SHOWN: Final = 10
"""The maximum number of prepared transactions that the status shows. It shows the oldest first."""

LIVE_S: Final = 120.0
"""The process is not live if the pipeline has given no sign of life for ``LIVE_S`` seconds. Every single step is
shorter: PostgreSQL has 10 s to accept a connection and at most 30 s to answer. A disk that hangs ends the process after
30 s."""


class Status:
    """The state of one pipeline, as the HTTP server and the metrics show it."""

    def __init__(self, settings: Settings, pipeline: Pipeline, slot: SlotWatch) -> None:
        self._settings = settings
        self.pipeline = pipeline
        self.slot = slot
        self._lag = Lag(time.monotonic())
        self._started = time.time()

    def document(self) -> dict[str, object]:
        """Return the content of ``/status``, with LSNs in PostgreSQL's notation."""
        pipeline, session = self.pipeline, self.pipeline.session
        lag_seconds, lag_bytes = self.lag()
        status: dict[str, object] = {
            "version": __version__,
            "pipeline": self._settings.name,
            "slot": self._settings.slot_name,
            "mode": self._settings.delivery.mode,
            "encoder": speedups.NAME,
            "format": "binary" if pipeline.binary else "text",
            "state": pipeline.state.value,
            "paused": self.is_paused(),
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
                "server_lsn": format_lsn(session.status.server_lsn),
                "received_lsn": format_lsn(progress.received),
                "delivered_lsn": format_lsn(progress.delivered),
                "confirmed_lsn": format_lsn(progress.confirmable),
                "buffered_bytes": session.status.buffered_bytes,
                "waiting_transactions": session.status.waiting_transactions,
                "waiting_bytes": dict(zip(("memory", "disk"), session.status.waiting_bytes, strict=True)),
                "prepared": [_prepared(one) for one in session.status.prepared[:PREPARED_SHOWN]],
            }
        return status

    def live(self) -> str | None:
        """Return why the process is not live, or None if it is live.

        Any answer of the HTTP server shows that the event loop runs. So this method checks only whether the pipeline
        has given a sign of life recently.
        """
        silent_s = self.pipeline.vitals.silent_s
        return f"nothing has moved for {silent_s:.0f} s" if silent_s > LIVE_S else None

    def ready(self, role: Role) -> str | None:
        """Return why the process is not ready for ``role``. Return None if it is ready."""
        state, session = self.pipeline.state, self.pipeline.session
        if session is not None and (stall := session.status.stall) is not None:
            return stall
        if state is State.STREAMING or (state is State.STANDBY and role is Role.ANY):
            return None
        return f"{state.value}: {self.pipeline.last_error or 'not streaming yet'}"

    def lag(self) -> tuple[float | None, int | None]:
        """Return the lag in seconds and in bytes. Either is None if it is unknown. A standby has no lag."""
        now, lag, session, sample = time.monotonic(), self._lag, self.pipeline.session, self.slot.sample
        if self.pipeline.state is State.STANDBY:
            lag.note_other_owner(now)
            return None, None
        if session is not None and session.status.heard_at is not None:
            lag.note_server(session.status.heard_at, session.status.server_lsn)
        elif sample is not None and sample.wal_end is not None:
            lag.note_server(sample.sampled_at, sample.wal_end)
        if session is not None:
            lag.note_delivered(session.status.caught_up_lsn, session.status.confirmed_lsn)
            if (age := session.status.oldest_commit_age_s()) > 0:
                lag.note_undelivered_commit(now - age)
        elif sample is not None and sample.slot is not None:
            lag.note_delivered(sample.slot.confirmed_flush_lsn, sample.slot.confirmed_flush_lsn)
        return lag.seconds(now), lag.bytes

    def is_paused(self) -> bool | None:
        """Return whether a command has paused the pipeline.

        Return None if this is unknown, for example on a standby.
        """
        session = self.pipeline.session
        return None if session is None or self.pipeline.state is State.STANDBY else session.is_paused

    def sample(self) -> SlotSample | None:
        """Return the last sample of the slot, or None if it is too old."""
        sample = self.slot.sample
        return sample if sample is not None and time.monotonic() - sample.sampled_at < SAMPLE_SHOWN_S else None

    def load_report(self) -> LoadReport | None:
        """Return the progress of loads. Return None if it is not known yet, or if the pipeline loads no tables."""
        session = self.pipeline.session
        return session.load_report if session is not None and self.pipeline.state is State.STREAMING else None

    def _snapshot_status(self) -> dict[str, object] | None:
        report = self.load_report()
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

    def _slot_status(self) -> dict[str, object] | None:
        sample = self.sample()
        if sample is None or sample.slot is None:
            return None
        return {
            "active": sample.slot.active_pid is not None,
            "wal_status": sample.slot.wal_status,
            "retained_bytes": sample.retained_bytes,
            "safe_bytes": sample.slot.safe_wal_size,
        }


def _prepared(transaction: Prepared) -> dict[str, object]:
    return {
        "gid": transaction.gid,
        "xid": transaction.xid,
        "prepare_lsn": format_lsn(transaction.prepare_lsn),
        "seconds": round(age_s(transaction.prepare_ts)),
    }
