"""``pgsluice slot``: manages the replication slot without a pipeline.

``tests/integration/test_cli.py`` covers this module.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pgsluice.app.wiring import connection_options
from pgsluice.config import Settings
from pgsluice.errors import SlotInUse, UnavailableError
from pgsluice.lsn import INVALID_LSN, format_lsn
from pgsluice.postgres.connection import ReplicationConnection
from pgsluice.postgres.slot import SlotState

T = TypeVar("T")


def create_slot(settings: Settings) -> int:
    """Create the slot and return its consistent point. Raise UnavailableError if it exists already."""

    async def create(connection: ReplicationConnection) -> int:
        try:
            return await connection.create_slot(settings.slot_name, failover=settings.postgres.failover)
        except SlotInUse:
            found = await connection.slot(settings.slot_name)
            if found is None:
                raise
            raise UnavailableError(_exists(found)) from None

    return asyncio.run(_with_replication(settings, create))


def slot_status(settings: Settings) -> dict[str, object] | None:
    """Return the state of the slot, as names and values to print, or None if there is no slot."""

    async def look(connection: ReplicationConnection) -> dict[str, object] | None:
        found = await connection.slot(settings.slot_name)
        return None if found is None else _shown(found, await connection.wal_end())

    return asyncio.run(_with_replication(settings, look))


def drop_slot(settings: Settings) -> None:
    """Drop the slot. Undelivered changes are lost. Raise UnavailableError if it is in use or does not exist."""

    async def drop(connection: ReplicationConnection) -> None:
        if await connection.slot(settings.slot_name) is None:
            raise UnavailableError(
                f"Replication slot {settings.slot_name!r} does not exist on this server, so nothing was dropped. "
                "Check postgres.slot and the host."
            )
        await connection.drop_slot(settings.slot_name)

    asyncio.run(_with_replication(settings, drop))


async def _with_replication(settings: Settings, action: Callable[[ReplicationConnection], Coroutine[Any, Any, T]]) -> T:
    connection = await ReplicationConnection.open(connection_options(settings))
    try:
        return await action(connection)
    finally:
        await connection.close()


def _exists(slot: SlotState) -> str:
    user = "nobody streams from it" if slot.active_pid is None else f"process {slot.active_pid} streams from it"
    return (
        f"Replication slot {slot.name!r} exists already, and {user}. Nothing was created or changed. `pgsluice slot "
        "status` shows it. To start over, drop it first. Changes that were not delivered from it are then lost."
    )


def _shown(slot: SlotState, wal_end: int | None) -> dict[str, object]:
    keeps_wal = slot.restart_lsn != INVALID_LSN and wal_end is not None
    return {
        "name": slot.name,
        "plugin": slot.plugin,
        "slot_type": slot.slot_type,
        "database": slot.database,
        "temporary": slot.temporary,
        "active_pid": slot.active_pid,
        "restart_lsn": format_lsn(slot.restart_lsn),
        "confirmed_flush_lsn": format_lsn(slot.confirmed_flush_lsn),
        "wal_status": slot.wal_status,
        "retained_bytes": max(0, wal_end - slot.restart_lsn) if keeps_wal and wal_end is not None else None,
        "safe_bytes": slot.safe_wal_size,
        "two_phase": slot.two_phase,
        "failover": slot.failover,
        "synced": slot.synced,
        "invalidation": slot.invalidation,
    }
