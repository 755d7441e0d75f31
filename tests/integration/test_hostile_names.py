"""Tests arbitrary names of tables, columns, types, labels, publications and prepared transactions.

Each row must arrive with its true names, or as a dead letter. No name may inject commands into text that people read.
"""

import asyncio
import html
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from psycopg import sql

from pgsluice.avro.schema import avro_name
from pgsluice.finding import Finding, Verdict
from pgsluice.postgres.checks import check
from pgsluice.printable import printable, quoted, sql_identifier
from pgsluice.tables import Tables
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import DEFAULT_VERSION, Database, Postgres
from tests.support.kafka import read_committed
from tests.support.replication import options_for
from tests.support.weather import PATIENCE_S, SETTINGS, Pipeline, prepare, wait_until

NASTY = (
    *("\x01", "\x07", "\x08", "\t", "\n", "\r", "\x1b[2J", "\x1b]0;x\x07", "\x7f", "\x85", "\u2028", "\u2029"),
    *("\u202e", "\u2066", "\u200f", "\u200b", "\ufeff", "\u0301", "\U000e0041", "\U0010ffff", "🐎", "é", "ß"),
    *("'", '"', "`", "\\", ".", "..", "/", " ", "%s", "%00", "{prefix}", "{table!r}", "$x", "*", "?", "[", "]", "<b>"),
    *("transactions", "checkpoint", "schemas", "messages", "dead_letters", "_x0041_", "_xFFFFFF_", "select", "-", "_"),
    *("_x00E9é", "éx00E9_", "z: OK all fine. table public.orders"),
)
BAD = "bad"
"""The name of a column for which a rule chooses an impossible type, so that its table goes into quarantine."""


def names(longest: int = 63) -> st.SearchStrategy[str]:
    """Return a strategy for identifiers of up to ``longest`` bytes in UTF-8 that PostgreSQL accepts."""
    any_text = st.text(st.characters(exclude_categories=["Cs"], min_codepoint=1), max_size=9)
    parts = st.one_of(st.sampled_from(NASTY), any_text)
    repeated = st.sampled_from(NASTY).map(lambda one: one * longest)
    joined = st.one_of(repeated, st.lists(parts, min_size=1, max_size=12).map("".join))
    cut = joined.map(lambda name: name.encode()[:longest].decode(errors="ignore"))
    return cut.filter(lambda name: name.strip("_") and not name.startswith("pg_"))


@dataclass(frozen=True)
class Names:
    """The names that a user gives to their objects."""

    schema: str
    table: str
    column: str
    type_: str
    label: str
    gid: str
    is_bad: bool


ALL = st.builds(Names, names(), names(), names(), names(), names(), names(190), st.booleans()).filter(
    lambda one: one.column not in ("id", BAD)
)


@pytest.fixture(scope="module")
def pipeline(postgres_server: Callable[..., Postgres], kafka: Kafka) -> Iterator[Pipeline]:
    """Provide a pipeline with prepared transactions. Its publication also has a hostile name."""
    publication = "\x1b[31m\u202e'\"\n.{prefix}%s"
    with postgres_server(DEFAULT_VERSION).database() as database:
        prepare(database)
        with database.connect() as connection:
            connection.execute(sql.SQL("ALTER PUBLICATION pgsluice RENAME TO {}").format(sql.Identifier(publication)))
        own: dict[str, dict[str, Any]] = {
            "tables": {"rules": [{"match": "*.*", "types": {BAD: "uuid"}}]},
            "postgres": {"dsn": database.conninfo(), "publications": [publication], "two_phase": True},
        }
        daemon = Daemon(
            f"w{uuid4().hex[:10]}",
            database.conninfo(),
            kafka.bootstrap_servers,
            {**SETTINGS, **own},
            wait_for="active",
        )
        with daemon:
            yield Pipeline(database, kafka, daemon)


def make(database: Database, names: Names) -> None:
    """Create a table, and write one row in a prepared transaction."""
    schema, table = sql.Identifier(names.schema), sql.Identifier(names.schema, names.table)
    kind = sql.Identifier(names.schema, f"t{names.type_}".encode()[:63].decode(errors="ignore"))
    columns = [sql.SQL("id int PRIMARY KEY"), sql.SQL("{} {}").format(sql.Identifier(names.column), kind)]
    if names.is_bad:
        columns.append(sql.SQL("{} int").format(sql.Identifier(BAD)))
    with database.connect() as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(schema))
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        connection.execute(sql.SQL("CREATE TYPE {} AS ENUM ({})").format(kind, sql.Literal(names.label)))
        connection.execute(sql.SQL("CREATE TABLE {} ({})").format(table, sql.SQL(", ").join(columns)))
        connection.execute("BEGIN")
        into = sql.SQL("INSERT INTO {} (id, {}) VALUES (1, {})")
        connection.execute(into.format(table, sql.Identifier(names.column), sql.Literal(names.label)))
        connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(names.gid)))


def forget(database: Database) -> None:
    """Roll back the open transaction of a failed example, because the transaction locks tables."""
    with database.connect() as connection:
        for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
            connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))


def end(database: Database, names: Names) -> None:
    with database.connect() as connection:
        connection.execute(sql.SQL("COMMIT PREPARED {}").format(sql.Literal(names.gid)))


def rows(pipeline: Pipeline, topic: str) -> list[dict[str, object]]:
    context = SerializationContext(topic, MessageField.VALUE)
    with SchemaRegistryClient({"url": pipeline.daemon.url}) as registry:
        read = AvroDeserializer(registry)
        return [read(message.value(), context) for message in read_committed(pipeline.kafka, topic)]


def assert_safe(text: str) -> None:
    """Check that the text has no control characters except line breaks and tabs. Others could control a terminal."""
    assert not [character for character in text if not character.isprintable() and character not in "\n\t"]


@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(several=st.lists(ALL, min_size=10, max_size=10, unique_by=(lambda one: one.schema, lambda one: one.gid)))
def test_rows_arrive_under_arbitrary_names(pipeline: Pipeline, several: list[Names]) -> None:
    daemon = pipeline.daemon
    forget(pipeline.database)
    for found in several:
        make(pipeline.database, found)
    gids = {found.gid for found in several}
    wait_until(lambda: gids <= {one["gid"] for one in daemon.status()["prepared"]}, "the prepared transactions")
    assert_safe(html.unescape(re.sub(r"<[^>]*>", "", httpx2.get(daemon.url, timeout=PATIENCE_S).text)))
    for found in several:
        end(pipeline.database, found)
    pipeline.wait_until_confirmed()
    reasons = {one["table"]: one["reason"] for one in daemon.status()["quarantined"]}
    quarantined = reasons.keys()
    for found in several:
        if found.is_bad:
            table = quoted(found.schema, found.table)
            assert f"table {table}: column {BAD} of type int4 cannot be uuid" in reasons[table]
    dead_letters = rows(pipeline, f"{daemon.name}.dead_letters") if quarantined else []
    letters = {(one["schema"], one["table"]) for one in dead_letters}
    for found in several:
        if quoted(found.schema, found.table) in quarantined:
            assert (found.schema, found.table) in letters
        else:
            assert not found.is_bad
            assert_arrived(pipeline, found)


def assert_arrived(pipeline: Pipeline, names: Names) -> None:
    policy = Tables(pipeline.daemon.name).policy(names.schema, names.table)
    assert policy is not None
    last: Any = rows(pipeline, policy.topic)[-1]
    assert (last["schema"], last["table"], last["op"]) == (names.schema, names.table, "c")
    assert last["after"][avro_name(names.column)] == names.label


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names())
def test_proposed_sql_has_the_intended_name(pipeline: Pipeline, name: str) -> None:
    proposed = sql_identifier(name)
    assert_safe(proposed)
    with pipeline.database.connect() as connection:
        described = connection.execute(f"SELECT 1 AS {proposed}".encode()).description
    assert described is not None
    assert described[0].name == name


@pytest.mark.long
@settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(names(), names(), names())
def test_printed_remedies_solve_the_problem(pipeline: Pipeline, publication: str, schema: str, table: str) -> None:
    """Operators copy the remedies from a terminal, so the printed text must work."""
    with pipeline.database.server.database() as database, database.connect() as connection:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        connection.execute(sql.SQL("CREATE TABLE {} (id int)").format(sql.Identifier(schema, table)))
        missing = found_fault(database, publication)[f"publication {quoted(publication)}"]
        statement, _, _ = missing.remedy.partition(" FOR TABLE ")
        connection.execute(f"{printable(statement)} FOR ALL TABLES".encode())
        lacking = found_fault(database, publication)["replica identity"]
        assert quoted(schema, table) in lacking.detail
        connection.execute(printable(lacking.remedy).partition("or: ")[2].encode())
        assert (
            not {"replica identity", f"publication {quoted(publication)}"} & found_fault(database, publication).keys()
        )


def found_fault(database: Database, publication: str) -> dict[str, Finding]:
    findings = asyncio.run(check(options_for(database), "pgsluice_shop", [publication]))
    return {finding.name: finding for finding in findings if finding.verdict is not Verdict.OK}


def test_texts_for_people_contain_no_control_characters(pipeline: Pipeline) -> None:
    """This test runs after all tests above, so the texts contain the hostile names of these tests."""
    daemon = pipeline.daemon
    assert [json.loads(line) for line in daemon.log_text().splitlines()]
    assert_safe(daemon.log_text())
    assert list(text_string_to_metric_families(daemon.metrics()))
    assert_safe(daemon.metrics())
    for command in ("check", "status"):
        done = subprocess.run(
            [sys.executable, "-m", "pgsluice", command, "-c", str(daemon.config_file)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout
        assert_safe(done.stdout + done.stderr)
    pipeline.write(3)
    pipeline.assert_complete()
