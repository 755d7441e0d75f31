"""Tests partitions that are published as their root, but whose replica identity differs from that of the root."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from pgsluice.app import cli
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.support.log import restored_logging  # noqa: F401 - a fixture
from tests.support.parts import LARGE, PARTS
from tests.support.reader import Event, Reader
from tests.support.versions import covered
from tests.support.weather import wait_until

VERSIONS = covered([13, 14, 16, 18])
SETUP = f"""
{PARTS}
CREATE UNIQUE INDEX code_of_low ON low (code);
CREATE PUBLICATION pgsluice FOR TABLE parts WITH (publish_via_partition_root);
"""

LAST = 199
"""The key of a row that :func:`events` writes, so that the pipeline delivers everything before this row."""

Follow = Callable[[int, str], Any]
"""Starts a daemon. The arguments are the server's version, and statements that run before the start."""


@pytest.fixture
def follow(new_database: Callable[..., Database], kafka: Kafka) -> Follow:
    """Provide a function that starts a daemon on a partitioned table."""

    @contextmanager
    def start(version: int, more: str) -> Iterator[tuple[psycopg.Connection, Daemon]]:
        database = new_database(version)
        with (
            database.connect() as connection,
            Daemon(f"r{uuid4().hex[:10]}", database.conninfo(), kafka.bootstrap_servers, at_once=False) as daemon,
        ):
            connection.execute(SETUP + more)
            daemon.start()
            yield connection, daemon

    return start


def run(connection: psycopg.Connection, *statements: str) -> None:
    for statement in statements:
        connection.execute(statement.encode())


def events(connection: psycopg.Connection, daemon: Daemon, kafka: Kafka) -> list[Event]:
    """Return all events so far, in the order of their positions."""
    row = connection.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()
    assert row is not None, "the query returns one row"
    run(connection, f"INSERT INTO parts VALUES ({LAST}, {LAST}, NULL)")
    with closing(Reader(kafka.bootstrap_servers, daemon.url, daemon.name, lambda: None)) as reader:
        found = [event for cut in reader.read_until(int(row[0])) for event in cut.events if event.value is not None]
    # The row ``LAST`` may have been read or not, so leave it out.
    return [
        event for event in sorted(found, key=lambda event: event.position) if (event["after"] or {}).get("id") != LAST
    ]


CHANGES = (
    f"INSERT INTO parts VALUES (1, 1, '{LARGE}'), (2, 2, 'y')",
    "UPDATE parts SET code = 3 WHERE id = 1",
    "UPDATE parts SET id = 4 WHERE id = 1",
    "DELETE FROM parts WHERE id = 2",
)


@pytest.mark.parametrize("version", VERSIONS)
def test_identity_full_of_the_root_does_not_turn_missing_values_into_nulls(
    version: int, follow: Follow, kafka: Kafka
) -> None:
    with follow(version, "ALTER TABLE parts REPLICA IDENTITY FULL") as (connection, daemon):
        run(connection, *CHANGES)
        _, _, updated, gone, come, deleted, *_ = events(connection, daemon, kafka)
    assert [one.op for one in (updated, gone, come, deleted)] == ["u", "d", "c", "d"]
    assert updated["unchanged"] == ["large"]
    assert (come["after"], come["unchanged"]) == ({"id": 4, "code": 3, "large": None}, ["large"])
    for one, key in ((gone, 1), (come, 1), (deleted, 2)):
        assert (one["before"], one["before_image"]) == ({"id": key, "code": None, "large": None}, "key")


@pytest.mark.parametrize("version", VERSIONS)
def test_missing_values_do_not_become_nulls_after_an_alter_or_with_a_new_partition(
    version: int, follow: Follow, kafka: Kafka
) -> None:
    with follow(version, "") as (connection, daemon):
        run(connection, "INSERT INTO parts VALUES (2, 2, 'y'), (101, 1, 'z')")
        run(connection, "ALTER TABLE parts REPLICA IDENTITY FULL", "ALTER TABLE high REPLICA IDENTITY FULL")
        run(connection, "DELETE FROM parts WHERE id = 101", "DELETE FROM parts WHERE id = 2")
        run(connection, "CREATE TABLE higher PARTITION OF parts FOR VALUES FROM (200) TO (300)")
        run(connection, "INSERT INTO parts VALUES (201, 1, 'z')", "DELETE FROM parts WHERE id = 201")
        found = [event for event in events(connection, daemon, kafka) if event.op == "d"]
    assert [one["before"]["id"] for one in found] == [101, 2, 201]
    for one in found[1:]:
        assert (one["before"]["code"], one["before"]["large"], one["before_image"]) == (None, None, "key")


@pytest.mark.parametrize("version", VERSIONS)
def test_old_rows_are_complete_if_all_partitions_have_identity_full(version: int, follow: Follow, kafka: Kafka) -> None:
    full = "; ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("parts", "low", "high"))
    with follow(version, full) as (connection, daemon):
        run(connection, *CHANGES)
        *_, come, deleted = events(connection, daemon, kafka)
    assert (come["after"], come["unchanged"]) == ({"id": 4, "code": 3, "large": LARGE}, [])
    assert (deleted["before"], deleted["before_image"]) == ({"id": 2, "code": 2, "large": "y"}, "full")


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_with_different_keys_go_into_quarantine(version: int, follow: Follow) -> None:
    """If the key of a row in ``low`` changes, PostgreSQL does not send the old key."""
    with follow(version, "ALTER TABLE low REPLICA IDENTITY USING INDEX code_of_low") as (connection, daemon):
        run(connection, "INSERT INTO parts VALUES (1, 1, 'x')", "UPDATE parts SET id = 3 WHERE id = 1")
        wait_until(lambda: daemon.status()["quarantined"], "the table to be in quarantine")
        assert "do not all have the same replica identity" in str(daemon.status()["quarantined"])


@pytest.mark.parametrize(
    ("more", "named", "refused"),
    [
        ("", "", False),
        (
            "ALTER TABLE parts REPLICA IDENTITY FULL",
            "public.high (of public.parts), public.low (of public.parts)",
            False,
        ),
        ("ALTER TABLE low REPLICA IDENTITY FULL", "public.low (of public.parts)", False),
        ("ALTER TABLE low REPLICA IDENTITY USING INDEX code_of_low", "public.low (of public.parts)", True),
    ],
)
@pytest.mark.usefixtures("restored_logging")
def test_check_names_such_partitions_and_warns_if_a_session_would_refuse_them(
    more: str,
    named: str,
    *,
    refused: bool,
    new_database: Callable[..., Database],
    kafka: Kafka,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database = new_database(14)
    with database.connect() as connection:
        connection.execute((SETUP + more).encode())
    with Daemon("parts", database.conninfo(), kafka.bootstrap_servers, at_once=False) as daemon:
        daemon.config_file.write_text(daemon.configuration())
        assert cli.main(["check", "-c", str(daemon.config_file), "--json"]) == 0
        stopping = ["--set", "tables.refused=stop"]
        found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
        assert cli.main(["check", "-c", str(daemon.config_file), *stopping]) == (78 if refused else 0)
    assert found.get("identity of partitions", {}).get("detail", "").endswith(named)
    assert ("identity of partitions" in found) is bool(named)
    assert ("do not all have the same replica identity" in found["tables"]["detail"]) is refused
