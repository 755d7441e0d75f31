"""A logical replication slot as ``pg_replication_slots`` shows it, for all versions of the server.

The replication connection and the catalog read the slot's state. ``failures`` and the checks decide whether the slot is
usable.

https://www.postgresql.org/docs/current/view-pg-replication-slots.html
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.lsn import INVALID_LSN, parse_lsn

# column -> (the server version that added it, its substitute on older versions)
_COLUMNS = {
    "slot_name": (10_00_00, ""),
    "plugin": (10_00_00, ""),
    "slot_type": (10_00_00, ""),
    "database": (10_00_00, ""),
    "temporary": (10_00_00, ""),
    "active_pid": (10_00_00, ""),
    "restart_lsn": (10_00_00, ""),
    "confirmed_flush_lsn": (10_00_00, ""),
    "wal_status": (13_00_00, "NULL"),
    "safe_wal_size": (13_00_00, "NULL"),
    "two_phase": (14_00_00, "false"),
    "conflicting": (16_00_00, "false"),
    "failover": (17_00_00, "false"),
    "synced": (17_00_00, "false"),
    "invalidation_reason": (17_00_00, "NULL"),
}


@dataclass(frozen=True, slots=True)
class SlotState:
    """One row of ``pg_replication_slots``."""

    name: str
    plugin: str | None
    slot_type: str
    database: str | None
    temporary: bool
    active_pid: int | None
    restart_lsn: int
    confirmed_flush_lsn: int
    wal_status: str | None
    safe_wal_size: int | None
    two_phase: bool
    failover: bool
    synced: bool
    invalidation: str | None
    """The reason why the server has invalidated the slot. None if the slot is valid."""


@dataclass(frozen=True, slots=True)
class SlotStatistics:
    """How much the server has decoded, spilled to disk and streamed for a slot since the slot's statistics were reset.

    https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-REPLICATION-SLOTS-VIEW
    """

    decoded_bytes: int
    spilled_transactions: int
    spilled_bytes: int
    streamed_bytes: int


def slot_query(server_version: int, condition: str) -> str:
    """Return the query whose rows :func:`parse_slot` reads.

    All columns are text, so the simple and the extended query protocol return the same values.
    """
    columns = ", ".join(
        f"{name}::text" if server_version >= since else f"{substitute}::text"
        for name, (since, substitute) in _COLUMNS.items()
    )
    return f"SELECT {columns} FROM pg_catalog.pg_replication_slots WHERE {condition}"  # noqa: S608 -- constants


def parse_slot(row: Sequence[str | None]) -> SlotState:
    """Return the slot that one row of :func:`slot_query` describes."""
    value = dict(zip(_COLUMNS, row, strict=True))
    return SlotState(
        name=value["slot_name"] or "",
        plugin=value["plugin"],
        slot_type=value["slot_type"] or "",
        database=value["database"],
        temporary=value["temporary"] == "true",
        active_pid=_number(value["active_pid"]),
        restart_lsn=_lsn(value["restart_lsn"]),
        confirmed_flush_lsn=_lsn(value["confirmed_flush_lsn"]),
        wal_status=value["wal_status"],
        safe_wal_size=_number(value["safe_wal_size"]),
        two_phase=value["two_phase"] == "true",
        failover=value["failover"] == "true",
        synced=value["synced"] == "true",
        invalidation=_invalidation(value),
    )


def _invalidation(value: dict[str, str | None]) -> str | None:
    """Return the reason for the invalidation, as PostgreSQL 17 and later name it, or None if the slot is valid.

    For older servers, derive the reason from other columns.
    """
    if value["invalidation_reason"] is not None:
        return value["invalidation_reason"]
    if value["wal_status"] == "lost":
        return "wal_removed"
    return "conflicting with recovery" if value["conflicting"] == "true" else None


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _lsn(text: str | None) -> int:
    return INVALID_LSN if text is None else parse_lsn(text)
