"""A scenario of the replay suite: SQL, and the events that must arrive.

Every scenario has its own schema and publication, which have the scenario's name. So all scenarios of a server version
can run in one database with one daemon.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from sandbox.postgres import Database
from tests.support.reader import Event, Reader
from tests.support.replay import Replay, row_fields

FIRST_VERSION = 10

_STATEMENT = re.compile(r"(?:\$\$.*?\$\$|[^;$]|\$|;(?!\s*(?:\n|\Z)))+", re.DOTALL)
"""Matches a statement up to a semicolon at the end of a line. A semicolon between $$ does not end the statement."""


@dataclass(frozen=True)
class Place:
    """The database and the schema in which a scenario's SQL runs."""

    database: Database
    schema: str

    def connect(self) -> psycopg.Connection:
        """Open a connection whose search path begins with the scenario's schema."""
        connection = self.database.connect()
        connection.execute(sql.SQL("SET search_path = {}, public").format(sql.Identifier(self.schema)))
        return connection

    def run(self, script: str) -> None:
        """Run statements one by one. A statement that is not between BEGIN and COMMIT is a separate transaction."""
        with self.connect() as connection:
            for statement in _STATEMENT.findall(script):
                if statement.strip():
                    connection.execute(statement)


Work = str | Callable[[Place], None]
"""A script, or a function, for example if several connections are needed."""


@dataclass(frozen=True)
class Found:
    """The events of a scenario that have arrived."""

    schema: str
    replay: Replay
    reader: Reader

    def events(self, table: str = "t") -> list[Event]:
        """Return the events of a table, in order."""
        return self.replay.events[f"{self.schema}.{table}"]

    def ops(self, table: str = "t") -> str:
        """Return the operations of a table's events, in order, as one string."""
        return "".join(event["op"] for event in self.events(table))

    def values(self, column: str, table: str = "t") -> list[Any]:
        """Return the values of one field of the new rows, in order."""
        return [event["after"][column] for event in self.events(table) if event["after"] is not None]

    def fields(self, table: str = "t") -> list[list[str]]:
        """Return the names of the row's fields in each schema registered for the table, oldest first."""
        return [[entry["name"] for entry in row_fields(version)] for version in self.versions("value", table)]

    def versions(self, part: str, table: str = "t") -> list[dict[str, Any]]:
        """Return the schemas registered for the table's keys or values, oldest first."""
        subject, registry = f"{self.topic(table)}-{part}", self.reader.registry
        texts = [registry.get_version(subject, version).schema.schema_str for version in registry.get_versions(subject)]
        return [json.loads(text or "") for text in texts]

    def topic(self, table: str = "t") -> str:
        """Return the topic of a table that has had events."""
        (topic,) = {event.topic for event in self.events(table)}
        return topic


@dataclass(frozen=True)
class Scenario:
    """Statements in PostgreSQL, and the events that a consumer must then see."""

    name: str
    about: str
    """One sentence about the purpose of the scenario."""
    setup: str
    """SQL that creates the tables before the daemon starts."""
    work: Work = ""
    while_down: Work = ""
    """Runs while the daemon is stopped."""
    after_restart: Work = ""
    tables: Sequence[str] = ("t",)
    """The tables that are published, and compared at the end."""
    publication: str | None = None
    """The part of CREATE PUBLICATION after the name. The default is FOR TABLE and all of ``tables``."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """Queries for the rows that a mirror of these tables should have. The default is the whole table."""
    ops: Mapping[str, str] = field(default_factory=dict)
    """The operations of each table's events, in order, as one string."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Like ``ops``, but for tables in other schemas, which are named ``schema.table``."""
    check: Callable[[Found], None] | None = None
    """Further checks of the events."""
    since: int = FIRST_VERSION
    until: int = 99
    lacking: str = ""
    """The feature that versions before ``since`` or after ``until`` lack."""
    rules: Sequence[Mapping[str, Any]] = ()
    """Entries of [[tables.rules]]. ``match`` is the name of a table of the scenario."""
    exclude: Sequence[str] = ()
    """Tables of the scenario that are listed in tables.exclude."""

    def runs_on(self, version: int) -> bool:
        """Return whether a server version has the features of the scenario."""
        return self.since <= version <= self.until

    @property
    def tombstones(self) -> list[str]:
        """The tables whose deletes are followed by a tombstone."""
        return [rule["match"] for rule in self.rules if rule.get("tombstones")]

    @property
    def known(self) -> set[str]:
        """The tables that may have events, as ``schema.table``."""
        return {f"{self.name}.{table}" for table in (*self.tables, *self.contents, *self.ops)} | self.elsewhere.keys()

    def prepare(self, database: Database) -> None:
        """Create the schema, the tables and the publication."""
        with database.connect() as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.name)))
        place = Place(database, self.name)
        place.run(self.setup)
        tables = ", ".join(quoted(table) for table in self.tables)
        place.run(f"CREATE PUBLICATION {quoted(self.name)} {self.publication or f'FOR TABLE {tables}'}")

    def do(self, work: Work, database: Database) -> None:
        """Run one part of the scenario."""
        place = Place(database, self.name)
        if callable(work):
            work(place)
        else:
            place.run(work)

    def expected(self) -> dict[str, str]:
        """Return the query for the expected contents of each table."""
        names = {table: f"SELECT * FROM {quoted(self.name)}.{quoted(table)}" for table in self.tables}
        return {**names, **self.contents}

    def settings(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the rules and the exclusions, in which tables are named ``schema.table``."""
        rules = [{**rule, "match": f"{self.name}.{rule['match']}"} for rule in self.rules]
        return rules, [f"{self.name}.{table}" for table in self.exclude]


def quoted(name: str) -> str:
    """Return ``name`` in double quotes, so that SQL accepts any name."""
    return '"' + name.replace('"', '""') + '"'
