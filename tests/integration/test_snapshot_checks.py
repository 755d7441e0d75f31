"""Tests what ``pgsluice check`` reports about loading, on real servers and with a role that lacks a right."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from pgsluice.app import cli
from pgsluice.finding import Finding, Verdict
from pgsluice.postgres.catalog import Catalog
from pgsluice.postgres.chunks import ChunkReader
from pgsluice.postgres.snapshot_checks import check
from pgsluice.relation import Relation
from pgsluice.snapshot import TableSize
from pgsluice.tables import TableRule, Tables
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from tests.support.log import restored_logging  # noqa: F401 - a fixture
from tests.support.replication import PUBLICATION, options_for
from tests.support.versions import covered

pytestmark = pytest.mark.usefixtures("restored_logging")

VERSIONS = covered((10, 12, 13, 14, 18))

TABLES = """
CREATE TABLE good (id int PRIMARY KEY, v text);
CREATE TABLE keyless (v text);
CREATE TABLE forbidden (id int PRIMARY KEY);
CREATE TABLE hidden (id int PRIMARY KEY);
ALTER TABLE hidden ENABLE ROW LEVEL SECURITY;
CREATE TABLE skipped (id int PRIMARY KEY);
CREATE TABLE root (id int NOT NULL) PARTITION BY RANGE (id);
CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (1000);
INSERT INTO good SELECT n, repeat('x', 100) FROM generate_series(1, 1000) n;
"""

READABLE = "good, keyless, hidden, skipped, root"


@pytest.fixture
def reader_role(new_database: Callable[..., Database]) -> Iterator[Callable[[int], tuple[Database, str]]]:
    """Provide a function that creates a database with tables, and a role that can read only some of them."""
    made: list[tuple[Database, str]] = []

    def make(version: int) -> tuple[Database, str]:
        database = new_database(version)
        role = f"reader_{database.name}"
        made.append((database, role))
        with database.connect() as admin:
            admin.execute(TABLES.encode())
            admin.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
            admin.execute(f"GRANT SELECT ON {READABLE} TO {role}")
            via_root = " WITH (publish_via_partition_root)" if version >= 13 else ""
            admin.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES{via_root}")
            admin.execute("ANALYZE")
        return database, role

    yield make
    for database, role in made:
        with database.connect() as admin:
            admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


POLICIES = Tables("shop", rules=[TableRule("public.skipped", is_loaded=False)])


async def found(database: Database, role: str) -> dict[str, Finding]:
    async with Catalog(options_for(database, user=role)) as catalog:
        findings = await check(catalog, [PUBLICATION], POLICIES.policy, without_key_max=2**30, rows_per_s=None)
    assert len({finding.name for finding in findings}) == len(findings)
    return {finding.name: finding for finding in findings}


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_problem_is_found_and_the_remedy_solves_it(
    version: int, reader_role: Callable[[int], tuple[Database, str]]
) -> None:
    database, role = reader_role(version)
    findings = await found(database, role)
    rights, row_security, keys = (findings[f"snapshot {name}"] for name in ("rights", "row security", "keys"))
    assert {one.verdict for one in (rights, row_security, keys)} == {Verdict.WARN}
    assert rights.detail.endswith("public.forbidden" if version >= 13 else "public.forbidden, public.leaf")
    assert row_security.detail.endswith("public.hidden")
    assert "changes of all tables wait" in keys.detail
    assert "public.keyless" in keys.detail
    assert "the largest is public.good (1000 rows)" in findings["snapshot"].detail
    assert findings["snapshot"].detail.endswith("tables left out by the settings: 1")
    with database.connect() as admin:
        for remedy in (rights.remedy, row_security.remedy):
            for statement in remedy.split(";")[:-1]:
                admin.execute(statement.encode())
    again = await found(database, role)
    assert "snapshot rights" not in again
    assert "snapshot row security" not in again


async def test_tables_of_untrusted_owners_are_left_out_until_they_are_named(
    reader_role: Callable[[int], tuple[Database, str]],
) -> None:
    database, role = reader_role(18)
    with database.connect() as admin:
        admin.execute(f"ALTER TABLE good OWNER TO {role}")
        finding = (await found(database, role))["snapshot owners"]
        assert finding.verdict is Verdict.WARN
        assert finding.detail.endswith("nor the owner of the database: public.good")
        admin.execute(f"DROP PUBLICATION {PUBLICATION}")
        admin.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE good")
    assert "snapshot owners" not in await found(database, role)


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_reported_rights_are_those_that_a_lock_needs(
    version: int, reader_role: Callable[[int], tuple[Database, str]]
) -> None:
    database, role = reader_role(version)
    async with Catalog(options_for(database, user=role)) as catalog:
        tables = await catalog.loadable_tables([PUBLICATION])
    with database.connect() as connection:
        connection.execute(f"SET ROLE {role}")
        for table in tables:
            try:
                connection.execute(f"BEGIN; LOCK TABLE {table.name} IN ACCESS SHARE MODE")
                may_lock = True
            except psycopg.errors.InsufficientPrivilege:
                may_lock = False
            connection.execute("ROLLBACK")
            assert may_lock == table.is_readable, table


@pytest.mark.parametrize("version", VERSIONS)
async def test_keys_and_owners_are_the_same_as_when_reading(
    version: int, reader_role: Callable[[int], tuple[Database, str]]
) -> None:
    database, role = reader_role(version)
    with database.connect() as admin:
        admin.execute(f"ALTER TABLE good OWNER TO {role}")
        admin.execute("CREATE TABLE partly (a int, b int NOT NULL UNIQUE, c int UNIQUE)")
        admin.execute("CREATE TABLE late (a int PRIMARY KEY DEFERRABLE)")
        if version >= 15:
            admin.execute("CREATE TABLE lacking (a int PRIMARY KEY, b int)")
            admin.execute("CREATE PUBLICATION listed FOR TABLE lacking (b) WITH (publish = 'insert')")
    publications = [PUBLICATION]
    reader = ChunkReader(options_for(database), publications)
    async with Catalog(options_for(database)) as catalog:
        tables = {table.oid: table for table in await catalog.loadable_tables(publications)}
        async for relation in catalog.published_relations(publications, await catalog.published_names(publications)):
            shape = await reader.shape(relation)
            assert shape is not None
            assert without_key(shape.relation) == without_key(relation)
            assert shape.key == tables[relation.oid].key, relation
            assert shape.is_trusted == tables[relation.oid].is_trusted == (relation.name != "good")
        if version >= 15:
            (lacking,) = await catalog.loadable_tables(["listed"])
            assert lacking.key == ()
    await reader.close()


def without_key(relation: Relation) -> Relation:
    """Return the relation without its key, because ``Catalog.published_relations`` yields relations without keys."""
    return replace(relation, columns=tuple(replace(column, is_key=False) for column in relation.columns))


@pytest.mark.parametrize("version", [10, 18])
async def test_the_sizes_of_tables_are_reported(
    version: int, reader_role: Callable[[int], tuple[Database, str]]
) -> None:
    """Check the reported sizes, including that of a locked table."""
    database, role = reader_role(version)
    with database.connect() as admin:
        admin.execute("INSERT INTO leaf SELECT generate_series(1, 500)")
        admin.execute("ANALYZE leaf")
        named = admin.execute(
            "SELECT relname, oid FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        ).fetchall()
        oids = {str(name): int(oid) for name, oid in named}
        admin.execute("BEGIN; LOCK TABLE good, root")
        async with Catalog(options_for(database, user=role)) as catalog:
            sizes = await catalog.table_sizes([oids["good"], oids["root"], oids["keyless"], 1])
            assert await catalog.loadable_tables([PUBLICATION])
    assert sizes[oids["good"]].rows == 1000
    assert 100_000 < sizes[oids["good"]].bytes < 500_000
    assert sizes[oids["root"]].rows == 500
    assert sizes[oids["keyless"]] == TableSize(0, 0)
    assert 1 not in sizes


async def test_a_large_table_without_key_is_not_loaded(reader_role: Callable[[int], tuple[Database, str]]) -> None:
    database, role = reader_role(18)
    with database.connect() as admin:
        admin.execute("INSERT INTO keyless SELECT repeat('x', 100) FROM generate_series(1, 1000)")
        admin.execute("ANALYZE")
    async with Catalog(options_for(database, user=role)) as catalog:
        findings = await check(catalog, [PUBLICATION], POLICIES.policy, without_key_max=50_000, rows_per_s=None)
    (large,) = [finding for finding in findings if finding.name == "snapshot large tables"]
    assert large.detail.endswith("public.keyless")


async def test_tables_whose_events_have_no_key_are_reported(
    reader_role: Callable[[int], tuple[Database, str]],
) -> None:
    """A unique index is a key only if it is also the primary key or the replica identity, or if a rule names it."""
    database, role = reader_role(18)
    with database.connect() as admin:
        for name in ("only_unique", "by_rule", "by_index"):
            admin.execute(f"CREATE TABLE {name} (id int NOT NULL UNIQUE); GRANT SELECT ON {name} TO {role}".encode())
        admin.execute("ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_id_key")
        admin.execute("CREATE TABLE whole (id int NOT NULL, at int NOT NULL) PARTITION BY LIST (at)")
        admin.execute("CREATE TABLE part PARTITION OF whole (PRIMARY KEY (id, at)) FOR VALUES IN (1)")
        admin.execute(f"CREATE UNIQUE INDEX ON whole (id, at); GRANT SELECT ON whole TO {role}".encode())
    policies = Tables("shop", rules=[TableRule("public.by_rule", keys=("id",))])
    async with Catalog(options_for(database, user=role)) as catalog:
        findings = await check(catalog, [PUBLICATION], policies.policy, without_key_max=2**30, rows_per_s=None)
    (keys,) = [finding for finding in findings if finding.name == "snapshot keys"]
    assert keys.detail.endswith(": public.keyless, public.only_unique, public.root")


async def test_a_standby_is_reported() -> None:
    with Postgres(18) as primary, primary.standby() as standby:
        async with Catalog(options_for(Database(standby, "postgres"))) as catalog:
            (finding,) = await check(catalog, [PUBLICATION], POLICIES.policy, without_key_max=0, rows_per_s=None)
    assert finding.verdict is Verdict.WARN
    assert "standby" in finding.detail


def test_check_reports_a_thousand_tables_in_one_line(
    database: Database, kafka: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with database.connect() as admin:
        for number in range(1000):
            admin.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY)")
        admin.execute("CREATE TABLE skipped (v text); ALTER TABLE skipped REPLICA IDENTITY FULL")
        admin.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES")
    config = tmp_path / "config.toml"
    config.write_text(f"""
version = 1
name = "c{uuid4().hex[:8]}"
postgres.dsn = "{database.conninfo()}"
kafka.bootstrap_servers = "{kafka.bootstrap_servers}"
kafka.topic_prefix = "{uuid4().hex}"
snapshot.mode = "initial"
buffer.spill_dir = "{tmp_path}"
[[tables.rules]]
match = "public.skipped"
snapshot = "skip"
""")
    assert cli.main(["check", "-c", str(config)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if re.match(r"\w+ +snapshot", line)]
    assert "1000 tables can be loaded" in line
    assert line.endswith("tables left out by the settings: 1")
