"""Reads the state of the slot at regular intervals, independently of the sessions, for the metrics.

The daemon creates the watch. A slot keeps WAL even if no process streams from it. So the watch has its own connection,
which does not depend on a session. Nothing here can stop or delay the pipeline.

``tests/integration/test_slot_watch.py`` covers this module.

https://www.postgresql.org/docs/current/view-pg-replication-slots.html
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NoReturn

import structlog

from pgsluice.errors import PgsluiceError, SourceUnavailable
from pgsluice.lsn import INVALID_LSN
from pgsluice.postgres.catalog import Catalog
from pgsluice.postgres.options import Address, ConnectionOptions
from pgsluice.postgres.slot import SlotState, SlotStatistics

PERIOD_S = 10.0
"""The interval at which the slot's state is read. Alerts fire only after minutes, so a shorter interval has no use."""

DEADLINE_S = 20.0
"""The time limit for reading the slot's state, including the time to connect. Each query has a shorter limit (see
``catalog``), but the resolution of a host name may have no limit."""

BREAK_S = 0.1
"""How long to wait until a task notices that we have broken its connection. After that, we break the connection
again."""

LOOK_S = 0.5
"""How often to check whether the slot's state has to be read."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SlotSample:
    """The slot, and the end of the server's WAL.

    ``slot`` is None if there is no such slot. ``wal_end`` is None if it is not known.
    """

    slot: SlotState | None
    wal_end: int | None
    sampled_at: float
    """The time just before the server was asked, by the monotonic clock."""
    timestamp_s: float
    """The same time as a Unix timestamp."""
    xmin_age: int | None = None
    """The age of the slot's catalog_xmin, in transactions."""
    statistics: SlotStatistics | None = None

    @property
    def retained_bytes(self) -> int | None:
        """Return how much WAL the server keeps for the slot.

        None means that the server keeps no WAL for the slot, or that the amount is not known.
        """
        if self.slot is None or self.slot.restart_lsn == INVALID_LSN or self.wal_end is None:
            return None
        return max(0, self.wal_end - self.slot.restart_lsn)


class SlotWatch:
    """Reads the state of one pipeline's slot, as soon as :meth:`follow` has named the server.

    ``options`` is called for each connection, because the password may have changed.
    """

    def __init__(self, slot: str, options: Callable[[], ConnectionOptions]) -> None:
        self._slot = slot
        self._options = options
        self._address: Address | None = None
        """The server that has the slot."""
        self._catalog: Catalog | None = None
        self._catalog_address: Address | None = None
        """The server of the present connection."""
        self._due_at = 0.0
        self._has_failed = False
        self.sample: SlotSample | None = None
        """The last successful sample, even if it is old."""

    def follow(self, address: Address) -> None:
        """Read the slot's state on this server from now on."""
        if address != self._address:
            self._address, self._due_at = address, 0.0

    async def run(self, is_wanted: Callable[[], bool], is_streaming: Callable[[], bool]) -> NoReturn:
        """Read the slot's state regularly while ``is_wanted`` returns true.

        If reading fails several times in a row, log only the first failure.

        Keep the connection only while ``is_streaming`` returns true. The server or the role may allow only a few
        connections, and the watch must not take one that the next session needs.
        """
        was_streaming = False
        try:
            while True:
                if is_streaming() and not was_streaming:
                    self._due_at = 0.0  # read the slot's state immediately, because the slot may be new
                was_streaming = is_streaming()
                if not is_wanted():
                    self.sample, self._due_at = None, 0.0  # this process is a standby, and the owner watches the slot
                elif self._address is not None and time.monotonic() >= self._due_at:
                    self._due_at = time.monotonic() + PERIOD_S
                    await self._look(self._address)
                if not (is_wanted() and is_streaming()):
                    await self._disconnect()
                await asyncio.sleep(LOOK_S)
        finally:
            await self._disconnect()

    async def _look(self, address: Address) -> None:
        try:
            catalog = await self._connected_to(address)
            self.sample = await _within_deadline(self._ask(catalog), catalog)
            self._has_failed = False
        except Exception as error:  # noqa: BLE001 - no error of the watch may stop the pipeline
            await self._disconnect()
            if not self._has_failed:
                reason = str(error) if isinstance(error, PgsluiceError) else repr(error)
                log.warning(
                    "the slot cannot be read: its metrics become unknown, until a later attempt succeeds", reason=reason
                )
            self._has_failed = True

    async def _connected_to(self, address: Address) -> Catalog:
        """Return the connection to this server. Close the present connection if it is to another server."""
        if self._catalog is not None and self._catalog_address != address:
            await self._disconnect()
        if self._catalog is None:
            self._catalog, self._catalog_address = Catalog(self._options().at(address)), address
        return self._catalog

    async def _ask(self, catalog: Catalog) -> SlotSample:
        sampled_at, timestamp_s = time.monotonic(), time.time()
        slot = await catalog.slot(self._slot)
        wal_end, xmin_age = await catalog.wal_end(), await catalog.slot_xmin_age(self._slot)
        statistics = await catalog.slot_statistics(self._slot)
        return SlotSample(slot, wal_end, sampled_at, timestamp_s, xmin_age, statistics)

    async def _disconnect(self) -> None:
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            await catalog.close()


async def _within_deadline(asking: Coroutine[Any, Any, SlotSample], catalog: Catalog) -> SlotSample:
    """Return the server's answer. Raise SourceUnavailable if it does not arrive in time.

    At the deadline, or when the daemon stops, break the connection instead of cancelling the query. If a query is
    cancelled, psycopg asks the server to cancel it, and waits for an answer that may never come.
    """
    task = asyncio.create_task(asking, name="slot")
    try:
        await asyncio.wait((task,), timeout=DEADLINE_S)
        if task.done():
            return task.result()
        raise SourceUnavailable(f"PostgreSQL did not answer within {DEADLINE_S:g} s")
    finally:
        while not task.done():
            if not catalog.break_off():
                task.cancel()  # the task is still connecting, which can be cancelled
            await asyncio.wait((task,), timeout=BREAK_S)
