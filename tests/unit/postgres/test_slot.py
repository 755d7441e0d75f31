import pytest

from pgsluice.postgres.slot import SlotState, parse_slot, slot_query

COLUMNS = (
    "slot_name",
    "plugin",
    "slot_type",
    "database",
    "temporary",
    "active_pid",
    "restart_lsn",
    "confirmed_flush_lsn",
    "wal_status",
    "safe_wal_size",
    "two_phase",
    "conflicting",
    "failover",
    "synced",
    "invalidation_reason",
)


def row(**columns: str | None) -> list[str | None]:
    usual: dict[str, str | None] = dict.fromkeys(COLUMNS)
    usual |= {"slot_name": "s", "plugin": "pgoutput", "slot_type": "logical", "database": "shop"}
    usual |= {"restart_lsn": "1/0", "confirmed_flush_lsn": "1/00000A00", "wal_status": "reserved"}
    usual |= dict.fromkeys(("temporary", "two_phase", "conflicting", "failover", "synced"), "false")
    return list((usual | columns).values())


@pytest.mark.parametrize(
    ("server_version", "since_then"),
    [
        (120022, ()),
        (130023, ("wal_status", "safe_wal_size")),
        (150018, ("wal_status", "safe_wal_size", "two_phase")),
        (160014, ("wal_status", "safe_wal_size", "two_phase", "conflicting")),
        (170010, COLUMNS[8:]),
    ],
)
def test_a_server_is_asked_for_the_columns_that_it_has(server_version: int, since_then: tuple[str, ...]) -> None:
    query = slot_query(server_version, "slot_name = 's'")
    assert query.endswith(" FROM pg_catalog.pg_replication_slots WHERE slot_name = 's'")
    asked = query.removeprefix("SELECT ").split(" FROM ")[0].split(", ")
    assert [f"{name}::text" for name in COLUMNS[:8]] == asked[:8]
    for name, column in zip(COLUMNS[8:], asked[8:], strict=True):
        assert (column == f"{name}::text") == (name in since_then)


def test_every_column_is_read() -> None:
    assert parse_slot(
        row(temporary="true", active_pid="7", safe_wal_size="123", two_phase="true", failover="true", synced="true")
    ) == SlotState(
        name="s",
        plugin="pgoutput",
        slot_type="logical",
        database="shop",
        temporary=True,
        active_pid=7,
        restart_lsn=0x1_0000_0000,
        confirmed_flush_lsn=0x1_0000_0A00,
        wal_status="reserved",
        safe_wal_size=123,
        two_phase=True,
        failover=True,
        synced=True,
        invalidation=None,
    )


def test_a_physical_slot_has_no_plugin_and_no_position() -> None:
    slot = parse_slot(row(plugin=None, slot_type="physical", database=None, restart_lsn=None, confirmed_flush_lsn=None))
    assert slot.plugin is slot.database is None
    assert slot.restart_lsn == slot.confirmed_flush_lsn == 0


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"invalidation_reason": "idle_timeout", "wal_status": "lost"}, "idle_timeout"),
        ({"wal_status": "lost"}, "wal_removed"),
        ({"conflicting": "true"}, "conflicting with recovery"),
        ({"wal_status": "unreserved"}, None),
    ],
)
def test_an_invalidated_slot_has_a_reason(columns: dict[str, str], reason: str | None) -> None:
    assert parse_slot(row(**columns)).invalidation == reason
