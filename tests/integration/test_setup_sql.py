"""Tests that a pipeline starts and delivers if only the statements from ``pgsluice setup-sql`` have been run."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pgsluice.app import cli
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from tests.support.log import restored_logging  # noqa: F401 - a fixture
from tests.support.weather import wait_until

pytestmark = pytest.mark.usefixtures("restored_logging")

ROOT = Path(__file__).parents[2]

TABLES = """
    REVOKE ALL ON DATABASE "{database}" FROM public;
    REVOKE ALL ON SCHEMA public FROM public;
    CREATE SCHEMA "Sales";
    CREATE TABLE "Sales"."Order lines" (id int, note text);
    CREATE TABLE parts (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
    CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (1) TO (2);
    ALTER TABLE parts_1 REPLICA IDENTITY NOTHING;
    INSERT INTO "Sales"."Order lines" VALUES (1, 'old');
"""
NAMES = ("Sales.Order lines", "public.parts")


@pytest.fixture(params=[14, 18])
def database(request: pytest.FixtureRequest, postgres_server: Callable[..., Postgres]) -> Iterator[Database]:
    with postgres_server(request.param).database() as database, database.connect() as admin:
        admin.execute(TABLES.format(database=database.name).encode())
        yield database


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    name = f"Role {uuid4().hex[:8]}"
    yield name
    with database.connect() as admin:
        if admin.execute("SELECT FROM pg_roles WHERE rolname = %s", [name]).fetchall():
            admin.execute(f'DROP OWNED BY "{name}"'.encode())
            admin.execute(f'DROP ROLE "{name}"'.encode())


def configuration(path: Path, dsn: str, kafka: Kafka) -> str:
    """Write the configuration of a pipeline whose publication does not exist yet. Return the path of the file."""
    dsn = dsn.replace("\\", "\\\\").replace('"', '\\"')
    path.write_text(
        f'version = 1\nname = "shop"\npostgres.dsn = "{dsn}"\npostgres.publications = ["its changes"]\n'
        f'kafka.bootstrap_servers = "{kafka.bootstrap_servers}"\nkafka.topic_prefix = "shop"\n'
    )
    return str(path)


@pytest.fixture
def file(tmp_path: Path, database: Database, kafka: Kafka, role: str) -> str:
    return configuration(tmp_path / "pgsluice.toml", database.conninfo(user=role), kafka)


def sql(file: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["setup-sql", "-c", file, *NAMES, *arguments]) == 0
    return capsys.readouterr().out


def test_the_printed_statements_suffice(
    database: Database, kafka: Kafka, role: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = sql(file, capsys)
    assert first.startswith(f"-- For a superuser, in database {database.name}.\n-- The server was not asked what it")
    assert "does not exist" in first.splitlines()[1]
    with database.connect() as admin:
        admin.execute(first.encode())
        second = sql(file, capsys)
        assert [line for line in second.splitlines() if not line.startswith("--")] == [
            f'GRANT SELECT ON TABLE "public"."parts_1" TO "{role}";',
            'ALTER TABLE "Sales"."Order lines" REPLICA IDENTITY FULL;',
            'ALTER TABLE "public"."parts_1" REPLICA IDENTITY FULL;',
        ]
        admin.execute(second.encode())
        assert sql(file, capsys) == "-- Nothing is missing.\n"
    settings: dict[str, dict[str, Any]] = {
        "postgres": {"publications": ["its changes"]},
        "snapshot": {"mode": "initial"},
    }
    name = f"s{uuid4().hex[:10]}"
    with Daemon(name, database.conninfo(user=role), kafka.bootstrap_servers, settings, wait_for="active") as daemon:
        wait_until(lambda: loaded(daemon) == 2, "both tables to be loaded")


def test_the_documented_statements_remove_the_role_and_the_publication(
    database: Database, role: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    statements = re.findall(r"`DROP (PUBLICATION|OWNED BY|ROLE) pgsluice`", (ROOT / "docs/deploy.md").read_text())
    assert statements == ["PUBLICATION", "OWNED BY", "ROLE"]
    with database.connect() as admin:
        admin.execute(sql(file, capsys).encode())
        for what in statements:
            name = "its changes" if what == "PUBLICATION" else role
            admin.execute(f'DROP {what} "{name}"'.encode())
        assert admin.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).fetchall() == []


def loaded(daemon: Daemon) -> int:
    snapshot = daemon.status()["snapshot"]
    return 0 if snapshot is None else int(snapshot["tables"]["loaded"])


def test_only_missing_things_are_printed(
    database: Database, role: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with database.connect() as admin:
        admin.execute(f'CREATE ROLE "{role}" LOGIN; GRANT CONNECT ON DATABASE "{database.name}" TO "{role}"'.encode())
        admin.execute('CREATE PUBLICATION "its changes" FOR TABLE parts')
    found = sql(file, capsys, "--set", "snapshot.mode=never")
    assert [line for line in found.splitlines() if not line.startswith("--")][:2] == [
        f'ALTER ROLE "{role}" REPLICATION;',
        'ALTER PUBLICATION "its changes" ADD TABLE "Sales"."Order lines";',
    ]
    assert cli.main(["setup-sql", "-c", file, "public.gone"]) == 2
    assert "there is no table public.gone" in capsys.readouterr().err
    with database.connect() as admin:
        admin.execute("CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)")
    assert cli.main(["setup-sql", "-c", file, "public.unlogged"]) == 2
    assert "PostgreSQL cannot publish public.unlogged" in capsys.readouterr().err


def test_before_version_13_the_publication_names_the_partitions(
    postgres_server: Callable[..., Postgres], kafka: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with postgres_server(12).database() as database, database.connect() as admin:
        admin.execute("""
            CREATE TABLE parts (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
            CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (1) TO (10) PARTITION BY RANGE (day);
            CREATE TABLE parts_1_1 PARTITION OF parts_1 FOR VALUES FROM (1) TO (2);
            CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
        """)
        file = configuration(tmp_path / "pgsluice.toml", database.conninfo(), kafka)
        assert cli.main(["setup-sql", "-c", file, "public.parts"]) == 0
        printed = capsys.readouterr().out
        assert 'CREATE PUBLICATION "its changes" FOR TABLE "public"."parts_1_1", "public"."parts_2";' in printed
        admin.execute(printed.encode())
        assert cli.main(["setup-sql", "-c", file, "public.parts"]) == 0
        assert capsys.readouterr().out == "-- Nothing is missing.\n"


def test_statements_can_be_printed_offline(file: str, role: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = sql(file, capsys, "--offline")
    assert "because of --offline" in found
    assert f'CREATE ROLE "{role}" LOGIN REPLICATION;' in found
    assert cli.main(["setup-sql", "--offline", "-c", file, "public.*"]) == 2
    assert "is not the name of one table" in capsys.readouterr().err
