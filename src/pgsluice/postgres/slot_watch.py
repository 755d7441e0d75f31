"""Looks at the slot again and again, beside the sessions, for the metrics.

The daemon creates it. A slot keeps WAL even if no process streams from it. So the watch has its own connection, which
stays open at the end of a session. Nothing here can stop or delay the pipeline.

``tests/integration/test_slot_watch.py`` covers it.

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
"""How often to look at the slot. A look is two small queries, and alerts wait for minutes anyway."""

DEADLINE_S = 20.0
"""The limit for one look, including the time to connect. A query has a shorter limit (``catalog``), but the resolution
of a name may have none."""

BREAK_S = 0.1
"""How long it takes until a broken connection is noticed."""

LOOK_S = 0.5
"""How often to check whether a look is due."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SlotSample:
    """The slot, and the end of the server's WAL.

    None means that there is no such slot, or that the WAL is not known.
    """

    slot: SlotState | None
    wal_end: int | None
    sampled_at: float
    """The time just before the server was asked, by the monotonic clock."""
    timestamp_s: float
    """The same as Unix time."""
    xmin_age: int | None = None
    """The age of the slot's catalog_xmin, in transactions."""
    statistics: SlotStatistics | None = None

    @property
    def retained_bytes(self) -> int | None:
        """Return how much WAL the server keeps for the slot.

        None means that it keeps none, or that this is not known.
        """
        if self.slot is None or self.slot.restart_lsn == INVALID_LSN or self.wal_end is None:
            return None
        return max(0, self.wal_end - self.slot.restart_lsn)


class SlotWatch:
    """Looks at the slot of one pipeline, as soon as :meth:`follow` has named the server.

    ``options`` is called for each connection, because the password may have changed.
    """

    def __init__(self, slot: str, options: Callable[[], ConnectionOptions]) -> None:
        self._slot = slot
        self._options = options
        self._address: Address | None = None
        """The server that has the slot."""
        self._catalog: Catalog | None = None
        self._catalog_address: Address | None = None
        """The server that the connection leads to."""
        self._due_at = 0.0
        self._has_failed = False
        self.sample: SlotSample | None = None
        """The last successful sample, however old it is."""

    def follow(self, address: Address) -> None:
        """Look at the slot on this server from now on."""
        if address != self._address:
            self._address, self._due_at = address, 0.0

    async def run(self, is_wanted: Callable[[], bool], is_streaming: Callable[[], bool]) -> NoReturn:
        """Look at the slot while ``is_wanted``. Log a failed look once, and try again.

        The connection is kept only while a session ``is_streaming``. The server or the role may have few connections,
        and this one must not take the place of a connection that the next session needs.
        """
        was_streaming = False
        try:
            while True:
                if is_streaming() and not was_streaming:
                    self._due_at = 0.0  # the slot may be new, and it is in use again
                was_streaming = is_streaming()
                if not is_wanted():
                    self.sample, self._due_at = None, 0.0  # the process that streams looks at the slot itself
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
                    "the slot cannot be read, so its metrics are unknown until a later look succeeds", reason=reason
                )
            self._has_failed = True

    async def _connected_to(self, address: Address) -> Catalog:
        """Return the connection to this server. Close the last connection if it leads to another server."""
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
    """Return the server's answer. Raise SourceUnavailable if it does not come in time.

    Cancelling the query would help neither here nor when the daemon stops, because psycopg would ask the server to
    cancel it, and wait.
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
                task.cancel()  # it is still connecting, which can be cancelled
            await asyncio.wait((task,), timeout=BREAK_S)
