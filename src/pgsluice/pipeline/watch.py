"""Watches a session: asks for the end of the server's WAL, and warns if the session makes no progress.

``tests/unit/pipeline/test_session.py`` covers this module by running whole sessions.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, NoReturn

import structlog

from pgsluice.errors import PgsluiceError
from pgsluice.pipeline.ends import Source
from pgsluice.pipeline.session_status import STALL_S, SessionStatus, age_s
from pgsluice.transaction import Transaction

log = structlog.get_logger(__name__)

WATCH_S: Final = 2.0
"""The interval at which the server is asked for its position."""

PAUSED_AGAIN_S: Final = 600.0
"""The interval at which the log repeats that the pipeline is paused."""

PREPARED_LONG_S: Final = 60.0
PREPARED_AGAIN_S: Final = 300.0
"""A prepared transaction that is older than PREPARED_LONG_S causes a warning, which is repeated every
PREPARED_AGAIN_S."""


class SessionWatch:
    """Watches one session."""

    def __init__(self, source: Source, status: SessionStatus, is_paused: Callable[[], bool]) -> None:
        self._source = source
        self._is_paused = is_paused
        self._said_paused_at: float | None = None
        """When the log last said that the pipeline is paused. None while the pipeline is not paused."""
        self._status = status
        self._listened_at = time.monotonic()
        self._warned_at = float("-inf")

    def on_listening(self) -> None:
        """Record that the session is reading the stream now, so the session itself notices the end of the stream."""
        self._listened_at = time.monotonic()

    async def run(self) -> NoReturn:
        """Ask regularly for the end of the server's WAL.

        If a request fails, raise its error in two cases: if Kafka is stalled, or if nobody has read the stream for
        STALL_S. Otherwise, ask again.

        A server that shuts down ends ordinary connections immediately, and then waits for its walsenders. If nobody
        reads the stream at that time, a failed request is the only sign of the shutdown.
        """
        said = None
        while True:
            self._say_pause()
            await asyncio.sleep(WATCH_S)
            said = self._warn_of_stall(said)
            self._warn_of_prepares()
            try:
                self._status.hear_of(await self._source.flushed_lsn())
            except PgsluiceError:
                if self._status.is_stalled or time.monotonic() - self._listened_at > STALL_S:
                    raise

    def _warn_of_stall(self, said: str | None) -> str | None:
        """Log once why the session makes no progress. Return the reason, or None if it makes progress."""
        reason = self._status.stall
        if reason is not None and said is None:
            log.warning("nothing moves", reason=reason)
        return reason

    def _say_pause(self) -> None:
        """Log that the pipeline is paused, repeat this from time to time, and log when the pipeline continues."""
        now, said_at, status = time.monotonic(), self._said_paused_at, self._status
        if self._is_paused():
            if said_at is None or now - said_at >= PAUSED_AGAIN_S:
                self._said_paused_at = now
                log.warning(
                    "the pipeline is paused: nothing is delivered, and PostgreSQL keeps its WAL, until `pgsluice "
                    "resume`",
                    confirmed_lsn=status.confirmed_lsn,
                    server_lsn=status.server_lsn,
                )
        elif said_at is not None:
            self._said_paused_at = None
            log.info("the pipeline continues after a pause")

    def _warn_of_prepares(self) -> None:
        """Log from time to time which prepared transaction keeps the slot from advancing."""
        oldest, now = self._status.oldest_prepared, time.monotonic()
        if oldest is None or age_s(oldest.prepare_ts) < PREPARED_LONG_S or now - self._warned_at < PREPARED_AGAIN_S:
            return
        self._warned_at = now
        log.warning(
            "a prepared transaction keeps the slot from moving: end the transaction with COMMIT PREPARED or "
            "ROLLBACK PREPARED",
            gid=oldest.gid,
            xid=oldest.xid,
            prepare_lsn=oldest.prepare_lsn,
            seconds=round(age_s(oldest.prepare_ts)),
        )


def warn_of_bare_commit(transaction: Transaction) -> None:
    """Warn that the commit of a prepared transaction has arrived without its rows."""
    log.warning(
        "COMMIT PREPARED of a transaction that was not received: it had no changes, or somebody else acknowledged its "
        "PREPARE",
        xid=transaction.xid,
        commit_lsn=transaction.commit_lsn,
    )
