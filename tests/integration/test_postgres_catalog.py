"""Tests the catalog and the checks with a role that has only LOGIN and REPLICATION."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from pgsluice.errors import PermissionDenied, SourceUnavailable, TableRefused
from pgsluice.finding import Finding, Verdict
from pgsluice.lsn import parse_lsn
from pgsluice.postgres.catalog import Catalog, IdentityConflict, Publication, PublishedTable
from pgsluice.postgres.checks import check
from pgsluice.postgres.options import ConnectionOptions
from sandbox.postgres import Database, Postgres
from tests.support.replication import PUBLICATION, SLOT, options_for, replication, streaming
from tests.support.versions import covered

VERSIONS = covered()


@pytest.fixture
def poor_role(new_database: Callable[..., Database]) -> Iterator[Callable[..., tuple[Database, ConnectionOptions]]]:
    """Provide a function that creates a database, and a role that may connect and replicate, but not read tables."""
    dropped: list[tuple[Database, str]] = []

    def make(version: int = 17) -> tuple[Database, ConnectionOptions]:
        database = new_database(version)
        role = f"poor_{database.name}"
        with database.connect() as admin:
            admin.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
        dropped.append((database, role))
        return database, options_for(database, user=role)

    yield make
    for database, role in dropped:
        with database.connect() as admin:
            admin.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_catalog_describes_tables_and_types(
    version: int, poor_role: Callable[..., tuple[Database, ConnectionOptions]]
) -> None:
    database, options = poor_role(version)
    with database.connect() as admin:
        admin.execute("CREATE SCHEMA hidden")
        admin.execute('CREATE TABLE hidden.keyed (a int, "B" int, c int, PRIMARY KEY ("B", a))')
        admin.execute("CREATE TABLE hidden.keyless (a int)")
        admin.execute("CREATE TABLE hidden.whole (a int)")
        admin.execute("ALTER TABLE hidden.whole REPLICA IDENTITY FULL")
        admin.execute("CREATE TABLE hidden.indexed (a int NOT NULL UNIQUE)")
        admin.execute("ALTER TABLE hidden.indexed REPLICA IDENTITY USING INDEX indexed_a_key")
        admin.execute("CREATE TABLE hidden.late (a int PRIMARY KEY DEFERRABLE)")
        admin.execute("CREATE TABLE hidden.nothing (a int PRIMARY KEY)")
        admin.execute("ALTER TABLE hidden.nothing REPLICA IDENTITY NOTHING")
        admin.execute("CREATE PUBLICATION published FOR ALL TABLES")
        admin.execute("CREATE PUBLICATION inserts FOR TABLE hidden.keyless WITH (publish = 'insert')")
        async with Catalog(options) as catalog:
            server = await catalog.server()
            assert (server.major, server.database, server.encoding) == (version, database.name, "UTF8")
            assert server.tls is None
            assert not server.in_recovery

            assert await catalog.primary_key(oid(admin, "hidden.keyed")) == ("B", "a")
            assert await catalog.primary_key(oid(admin, "hidden.keyless")) == ()
            assert await catalog.primary_key(oid(admin, "hidden.late")) == ()
            assert await catalog.primary_key(4_294_967_295) is None

            assert await catalog.missing_publications([PUBLICATION, "absent", "inserts"]) == ["absent"]
            assert await catalog.publications([PUBLICATION, "inserts"]) == [
                Publication("inserts", insert=True, update=False, delete=False, truncate=False),
                Publication(PUBLICATION, insert=True, update=True, delete=True, truncate=version >= 11),
            ]
            tables = {table.name: table for table in await catalog.published_tables([PUBLICATION])}
            assert {name: (table.replica_identity, table.has_identity) for name, table in tables.items()} == {
                "indexed": ("i", True),
                "keyed": ("d", True),
                "keyless": ("d", False),
                "late": ("d", False),
                "nothing": ("n", False),
                "whole": ("f", True),
            }
            assert all(table.publishes_old_rows for table in tables.values())
            assert await catalog.published_tables(["inserts"]) == [
                PublishedTable("hidden", "keyless", "d", has_identity=False, publishes_old_rows=False)
            ]
            admin.execute("DROP TABLE hidden.keyed")

            assert await catalog.setting("wal_level") == "logical"
            assert await catalog.setting("no_such_setting") is None
            before = await catalog.current_wal_lsn()
            assert before <= current_lsn(admin)
            assert await catalog.slot(SLOT) is None
            taken = await catalog.slots_in_use()
            async with streaming(database, options):
                slot = await catalog.slot(SLOT)
                assert slot is not None
                assert slot.active_pid is not None
                assert slot.confirmed_flush_lsn >= before
                assert await catalog.slots_in_use() == taken + 1
                assert await catalog.wal_senders_in_use() >= 1


def oid(admin: psycopg.Connection, name: str) -> int:
    row = admin.execute("SELECT %s::regclass::oid", [name]).fetchone()
    assert row is not None
    return int(row[0])


def current_lsn(admin: psycopg.Connection) -> int:
    row = admin.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    return parse_lsn(row[0])


async def test_a_primary_key_leaves_out_included_columns(
    poor_role: Callable[..., tuple[Database, ConnectionOptions]],
) -> None:
    database, options = poor_role()
    with database.connect() as admin:
        admin.execute("CREATE TABLE t (extra int, id int, PRIMARY KEY (id) INCLUDE (extra))")
        async with Catalog(options) as catalog:
            assert await catalog.primary_key(oid(admin, "t")) == ("id",)


@pytest.mark.parametrize("version", covered([13, 14, 18]))
async def test_the_catalog_describes_partitions(
    version: int, poor_role: Callable[..., tuple[Database, ConnectionOptions]]
) -> None:
    database, options = poor_role(version)
    with database.connect() as admin:
        admin.execute("CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        admin.execute("CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (9)")
        admin.execute("CREATE TABLE plain PARTITION OF root DEFAULT")
        admin.execute("ALTER TABLE plain REPLICA IDENTITY NOTHING")
        admin.execute("CREATE PUBLICATION leaves FOR TABLE root")
        admin.execute("CREATE PUBLICATION roots FOR TABLE root WITH (publish_via_partition_root)")
        async with Catalog(options) as catalog:
            for publication in ("leaves", "roots"):
                assert await catalog.published_tables([publication]) == [
                    PublishedTable("public", "leaf", "d", has_identity=True, publishes_old_rows=True),
                    PublishedTable("public", "plain", "n", has_identity=False, publishes_old_rows=True),
                ]
            assert await catalog.primary_key(oid(admin, "root")) == ("id",)


SHAPES = (
    (10, "CREATE TABLE a (id int, price numeric, dropped int, tags text[])"),
    (10, "ALTER TABLE a DROP COLUMN dropped"),
    (10, "CREATE TABLE b (id int)"),
    (10, "CREATE UNLOGGED TABLE unlogged (id int)"),
    (10, "CREATE TABLE child () INHERITS (b)"),
    (10, "CREATE SCHEMA other"),
    (10, "CREATE TABLE other.c (id int, note text)"),
    (10, "CREATE TABLE root (id int, at date) PARTITION BY RANGE (id)"),
    (10, "CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (9)"),
    (10, "CREATE TABLE high PARTITION OF root FOR VALUES FROM (9) TO (99) PARTITION BY RANGE (id)"),
    (10, "CREATE TABLE highest PARTITION OF high FOR VALUES FROM (50) TO (99)"),
    (12, "CREATE TABLE made (id int, twice int GENERATED ALWAYS AS (id * 2) STORED)"),
    (10, "CREATE PUBLICATION p_all FOR ALL TABLES"),
    (10, "CREATE PUBLICATION p_some FOR TABLE a, b"),
    (13, "CREATE PUBLICATION p_leaves FOR TABLE root, a"),
    (13, "CREATE PUBLICATION p_roots FOR TABLE root, high, b WITH (publish_via_partition_root)"),
    (13, "CREATE PUBLICATION p_middle FOR TABLE high WITH (publish_via_partition_root)"),
    (13, "CREATE PUBLICATION p_all_roots FOR ALL TABLES WITH (publish_via_partition_root)"),
    (15, "CREATE PUBLICATION p_schema FOR TABLES IN SCHEMA other, TABLE a, low"),
    (15, "CREATE PUBLICATION p_lists FOR TABLE a (id, tags), low (at)"),
    (15, "CREATE PUBLICATION p_root_list FOR TABLE root (at) WITH (publish_via_partition_root)"),
    (18, "CREATE PUBLICATION p_made FOR TABLE made WITH (publish_generated_columns = stored)"),
    (18, "CREATE PUBLICATION p_listed FOR TABLE made (twice)"),
)


PARTITIONED = {"public.root", "public.high", "public.low", "public.highest"}


@pytest.mark.parametrize("version", VERSIONS)
async def test_published_relations_equal_the_servers_view(
    version: int, poor_role: Callable[..., tuple[Database, ConnectionOptions]]
) -> None:
    """The view is ``pg_publication_tables``. Its columns are compared only from PostgreSQL 16 on.

    In PostgreSQL 15, the view includes generated columns. In earlier versions, it does not list columns. Unlike the
    view, the query of pgsluice must not wait for tables that somebody has locked.
    """
    database, options = poor_role(version)
    columns = "t.attnames::text[]" if version >= 16 else "NULL::text[]"
    sql = f"SELECT schemaname || '.' || tablename, {columns} FROM pg_publication_tables t WHERE pubname = %s"
    with database.connect() as admin, database.connect(autocommit=False) as altering:
        for since, statement in SHAPES:
            if version >= since:
                admin.execute(statement)
        publications = [name for (name,) in admin.execute("SELECT pubname FROM pg_publication").fetchall()]
        expected: dict[str, dict[str, list[str] | None]] = {
            name: dict(admin.execute(sql, [name]).fetchall()) for name in publications
        }
        altering.execute("LOCK TABLE a, b, other.c, root")
        async with Catalog(options) as catalog:
            for publication, tables in expected.items():
                found = await columns_of(catalog, publication)
                assert list(found) == sorted(tables), publication
                assert {name: tables[name] or columns for name, columns in found.items()} == found, publication
                leaves = {f"{one.schema}.{one.name}" for one in await catalog.published_tables([publication])}
                assert leaves - {"public.low", "public.highest"} == set(tables) - PARTITIONED, publication
            found = await columns_of(catalog, "p_all", "p_some", "absent")
            assert found["public.a"] == ["id", "price", "tags"]
            if version >= 15:
                assert await columns_of(catalog, "p_lists") == {
                    "public.a": ["id", "tags"],
                    "public.low": ["at"],
                }
                assert await catalog.differing_columns(["p_all", "p_some", "p_lists"]) == [
                    ("public", "a"),
                    ("public", "low"),
                ]
            assert await catalog.differing_columns(["p_all", "p_some"]) == []
            assert found.get("public.made", ["id"]) == ["id"]


async def columns_of(catalog: Catalog, *publications: str) -> dict[str, list[str]]:
    """Return the columns of the published tables. The catalog reads only a few tables at a time."""
    names = await catalog.published_names(publications)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pgsluice.relation.COLUMNS_AT_ONCE", 2 * max((one.columns for one in names), default=0))
        found = [one async for one in catalog.published_relations(publications, names)]
    assert [(one.oid, one.namespace, one.name) for one in found] == [
        (one.oid, one.namespace, one.name) for one in names
    ]
    return {f"{one.namespace}.{one.name}": [column.name for column in one.columns] for one in found}


@pytest.mark.parametrize("version", covered([15, 16, 18]))
async def test_the_catalog_describes_row_filters_and_column_lists(
    version: int, poor_role: Callable[..., tuple[Database, ConnectionOptions]]
) -> None:
    database, options = poor_role(version)
    with database.connect() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
        admin.execute("CREATE TABLE whole (a int, b int)")
        admin.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
        admin.execute("CREATE TABLE wide (id int, a int, b int, PRIMARY KEY (id) INCLUDE (a))")
        admin.execute("CREATE PUBLICATION fine FOR TABLE t (id, a) WHERE (id > 0), whole WHERE (b > 0), wide (id, b)")
        admin.execute("CREATE PUBLICATION filters FOR TABLE t WHERE (id > 0 AND a > 0)")
        admin.execute("CREATE PUBLICATION harmless FOR TABLE t WHERE (a > 0) WITH (publish = 'insert')")
        admin.execute("CREATE PUBLICATION lists FOR TABLE t (a, b), whole (a)")
        async with Catalog(options) as catalog:
            assert await catalog.identity_conflicts(["fine", "harmless"]) == []
            assert await catalog.identity_conflicts(["fine", "filters", "lists"]) == [
                IdentityConflict("public", "t", "filters"),
                IdentityConflict("public", "t", "lists"),
                IdentityConflict("public", "whole", "lists"),
            ]
            assert await catalog.differing_columns(["filters", "harmless"]) == []
            assert await catalog.differing_columns(["fine", "filters"]) == [("public", "t")]
        # The server itself must refuse a DELETE because of the publications with conflicts, and only because of these.
        for publication, refused in (("fine", False), ("filters", True), ("lists", True)):
            others = {"fine", "filters", "harmless", "lists"} - {publication}
            admin.execute("BEGIN")
            admin.execute(f"DROP PUBLICATION {', '.join(others)}")
            try:
                admin.execute("DELETE FROM t")
                assert not refused
            except psycopg.errors.InvalidColumnReference:
                assert refused
            admin.execute("ROLLBACK")


async def test_a_lost_connection_is_opened_again(database: Database) -> None:
    async with Catalog(options_for(database)) as catalog:
        with database.connect() as admin:
            await catalog.current_wal_lsn()
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'pgsluice' AND datname = current_database()"
            )
        assert await catalog.current_wal_lsn() > 0


async def test_the_catalog_only_reads_and_does_not_wait_for_ever(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsluice.postgres.catalog._SESSION_SETTINGS", {"statement_timeout": "50"})
    with database.connect(autocommit=False) as admin:
        admin.execute("LOCK TABLE pg_publication")
        async with Catalog(options_for(database)) as catalog:
            with pytest.raises(SourceUnavailable, match=r"reading PostgreSQL's catalog: .*57014"):
                await catalog.publications([PUBLICATION])
            assert await catalog.current_wal_lsn() > 0
    async with Catalog(options_for(database, user="nobody-at-all")) as catalog:
        with pytest.raises(PermissionDenied, match="does not exist"):
            await catalog.server()


# --- checks ------------------------------------------------------------------------------------------------


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    names = {finding.name: finding for finding in findings}
    assert len(names) == len(findings)
    return names


def verdicts(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.verdict.value for finding in findings}


async def test_types_that_consist_of_too_many_others_are_refused(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who may create types must not be able to make pgsluice read an unlimited number of types."""
    monkeypatch.setattr("pgsluice.postgres.catalog.TYPES_AT_ONCE", 2)
    with database.connect() as admin:
        for number in range(5):
            admin.execute(f"CREATE TYPE part{number} AS (a int, b int)")
        admin.execute(f"CREATE TYPE whole AS ({', '.join(f'p{number} part{number}' for number in range(5))})")
        (oid,) = admin.execute("SELECT 'whole'::regtype::oid").fetchone() or ()
    async with Catalog(options_for(database)) as catalog:
        assert len(await catalog.describe_types([oid])) == 6
        monkeypatch.setattr("pgsluice.postgres.catalog.PARTS_MAX", 10)
        with pytest.raises(TableRefused, match="contain more than 10 other types"):
            await catalog.describe_types([oid])


@pytest.mark.parametrize("version", covered())
async def test_a_correct_server_has_no_problems(
    version: int, poor_role: Callable[..., tuple[Database, ConnectionOptions]]
) -> None:
    database, options = poor_role(version)
    with database.connect() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
        admin.execute("CREATE PUBLICATION published FOR TABLE t")
    findings = await check(options, SLOT, [PUBLICATION])
    expected = {
        "postgres reachable": "OK",
        "postgres version": "OK" if version >= 14 else "WARN",
        "wal_level": "OK",
        "database encoding": "OK",
        "stream options": "OK",
        f"replication slot {SLOT}": "OK",
        "free replication slots": "OK",
        "free walsenders": "OK",
        "replication connection": "OK",
        f"publication {PUBLICATION}": "OK",
        "published tables": "OK",
        "replica identity": "OK",
    }
    assert verdicts(findings) == expected | ({"max_slot_wal_keep_size": "WARN"} if version >= 13 else {})

    async with streaming(database, options):
        slot = by_name(await check(options, SLOT, [PUBLICATION]))[f"replication slot {SLOT}"]
    assert slot.verdict is Verdict.OK
    assert slot.detail.startswith("in use by process ")


async def test_every_problem_of_a_server_is_found() -> None:
    settings = {
        "wal_level": "replica",
        "max_replication_slots": "1",
        "max_wal_senders": "1",
        "max_slot_wal_keep_size": "1GB",
        "idle_replication_slot_timeout": "1d",
    }
    with Postgres(18, settings) as server, server.connect() as admin:
        admin.execute("CREATE TABLE keyless (a int)")
        admin.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
        admin.execute("SELECT pg_create_physical_replication_slot('somebody')")
        admin.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        admin.execute("CREATE PUBLICATION part FOR TABLE t (a)")
        admin.execute("CREATE DATABASE ascii TEMPLATE template0 ENCODING 'SQL_ASCII'")
        admin.execute("BEGIN; CREATE TABLE u (a int); PREPARE TRANSACTION 'left over'")
        postgres, ascii_ = Database(server, "postgres"), Database(server, "ascii")
        wanted = ["everything", "part", 'a"b']
        async with replication(options_for(postgres)):
            findings = await check(options_for(postgres), SLOT, wanted)
        assert {name: verdict for name, verdict in verdicts(findings).items() if verdict != "OK"} == {
            "wal_level": "FAIL",
            "free replication slots": "FAIL",
            "prepared transactions": "WARN",
            "free walsenders": "WARN",
            "replication connection": "FAIL",
            'publication "a""b"': "FAIL",
            "replica identity": "WARN",
            "row filters and column lists": "WARN",
            "column lists": "FAIL",
            "idle_replication_slot_timeout": "WARN",
        }
        found = by_name(findings)
        assert found["free replication slots"].exit_code == 69
        assert found['publication "a""b"'].remedy.startswith('CREATE PUBLICATION "a""b" FOR TABLE')
        assert (
            "prepared transaction 'left over' of postgres in database postgres" in found["prepared transactions"].detail
        )
        assert found["replica identity"].detail.endswith(": public.keyless")
        assert 'ALTER TABLE "public"."keyless" REPLICA IDENTITY FULL;' in found["replica identity"].remedy
        assert found["max_slot_wal_keep_size"].detail.startswith("1024 MB")
        assert found["idle_replication_slot_timeout"].detail.startswith("86400 s")

        found = by_name(await check(options_for(ascii_), SLOT, [], create_slot=False))
        assert found["database encoding"].verdict is Verdict.WARN
        assert found[f"replication slot {SLOT}"].verdict is Verdict.FAIL
        assert found["published tables"].verdict is Verdict.WARN


async def test_check_on_a_standby_advises_to_connect_to_the_primary() -> None:
    with Postgres(15) as primary, primary.standby() as standby:
        found = by_name(await check(options_for(Database(standby, "postgres")), SLOT, [PUBLICATION]))
        assert found["postgres reachable"].verdict is Verdict.FAIL
        assert found["postgres reachable"].remedy.startswith("Connect to the primary")
        async with Catalog(options_for(Database(standby, "postgres"))) as catalog:
            assert await catalog.current_wal_lsn() > 0
            (blocker,) = await catalog.slot_creation_blockers(0)
            assert "SELECT pg_log_standby_snapshot()" in blocker


async def test_a_server_that_does_not_exist_is_reported() -> None:
    (finding,) = await check(ConnectionOptions({"host": "127.0.0.1", "port": "1"}), SLOT, [PUBLICATION])
    assert finding.verdict is Verdict.FAIL
    assert "Connection refused" in finding.detail


async def test_roles_that_may_not_replicate_are_reported(new_database: Callable[..., Database]) -> None:
    database = new_database()
    with database.connect() as admin:
        admin.execute("CREATE ROLE mere_reader LOGIN")
        try:
            found = by_name(await check(options_for(database, user="mere_reader"), SLOT, [PUBLICATION]))
        finally:
            admin.execute("DROP ROLE mere_reader")
    assert found["replication connection"].verdict is Verdict.FAIL
    assert "ALTER ROLE ... REPLICATION" in found["replication connection"].detail
    assert found["wal_level"].verdict is Verdict.OK
