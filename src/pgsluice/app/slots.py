"""``pgsluice slot``: manages the replication slot without a pipeline.

``tests/integration/test_cli.py`` covers it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pgsluice.app.wiring import connection_options
from pgsluice.config import Settings
from pgsluice.postgres.connection import ReplicationConnection
from pgsluice.postgres.slot import SlotState

T = TypeVar("T")


def create_slot(settings: Settings) -> int:
    """Create the slot and return its consistent point."""
    return asyncio.run(
        _with_replication(
            settings, lambda one: one.create_slot(settings.slot_name, failover=settings.postgres.failover)
        )
    )


def slot_status(settings: Settings) -> SlotState | None:
    """Return the slot's state, or None if there is no slot."""
    return asyncio.run(_with_replication(settings, lambda one: one.slot(settings.slot_name)))


def drop_slot(settings: Settings) -> None:
    """Drop the slot. What was not delivered from it is lost."""
    asyncio.run(_with_replication(settings, lambda one: one.drop_slot(settings.slot_name)))


async def _with_replication(settings: Settings, action: Callable[[ReplicationConnection], Coroutine[Any, Any, T]]) -> T:
    connection = await ReplicationConnection.open(connection_options(settings))
    try:
        return await action(connection)
    finally:
        await connection.close()
