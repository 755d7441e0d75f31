"""``pgsluice setup-sql``: prints the SQL that prepares PostgreSQL for a pipeline, without executing it.

The SQL grants only the rights that the pipeline needs.

``tests/integration/test_setup_sql.py`` covers this module.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pgsluice.app.wiring import connection_options
from pgsluice.config import Settings
from pgsluice.errors import PgsluiceError, UsageError
from pgsluice.postgres.catalog import Catalog, NamedTable, Publication
from pgsluice.postgres.options import ConnectionOptions
from pgsluice.printable import quoted, sql_identifier
from pgsluice.tables import TablePattern

Names = Sequence[tuple[str, str]]
"""Schema and name of tables."""

_PUBLISHES_PARTITIONED_TABLES = 130000
"""The first version, as server_version_num, whose publications can name partitioned tables."""


@dataclass(frozen=True, slots=True)
class _Present:
    """What exists on the server. If the server was not queried, only ``role`` and ``database`` are known."""

    role: str
    database: str
    version: int = 0
    """The version of the server, or 0 if the server was not queried."""
    wal_level: str = "logical"
    may_replicate: bool = False
    tables: Sequence[NamedTable] = ()
    publication: Publication | None = None
    carried: Collection[tuple[str, str]] = ()
    """The names of the tables that the publication includes, among them partitioned tables and partitions."""


def statements(settings: Settings, tables: Sequence[str], *, offline: bool) -> list[str]:
    """Return the lines of SQL that prepare these tables, which are written as schema.table.

    Unless ``offline`` is true, leave out what the server has already. If the server was not queried, a comment says
    why. Raise UsageError if a table is not written as schema.table, or does not exist.
    """
    names, publication = [_name(table) for table in tables], settings.postgres.publications[0]
    options, reason = connection_options(settings), "because of --offline"
    present = _Present(*options.role_and_database())
    if not offline:
        try:
            present = asyncio.run(_look(options, publication, names))
        except UsageError:
            raise
        except PgsluiceError as error:
            reason = str(error)
    sql = [
        *_role(present),
        *(_reading(present, names) if settings.snapshot.mode != "never" else []),
        *_publication(present, publication, names),
        *_identities(present),
    ]
    if not present.version:
        sql = [f"-- The server was not asked what it has already ({reason}).", *sql, *_UNKNOWN]
    elif not sql:
        return ["-- Nothing is missing."]
    return [f"-- For a superuser, in database {quoted(present.database)}.", *sql]


_UNKNOWN = (
    "-- wal_level has to be logical: ALTER SYSTEM SET wal_level = 'logical'; then restart the server.",
    "-- Before PostgreSQL 13, a publication has to name partitions instead of their partitioned table.",
    "-- The rows of partitions are read from the partitions themselves: GRANT SELECT on each of them.",
    "-- A published table without a primary key needs: ALTER TABLE ... REPLICA IDENTITY FULL;",
)


def _name(table: str) -> tuple[str, str]:
    try:
        name = TablePattern.parse(table).only
    except ValueError:
        name = None
    if name is None:
        raise UsageError(f"{table!r} is not the name of one table: write schema.table, like public.orders")
    return name


async def _look(options: ConnectionOptions, publication: str, names: Names) -> _Present:
    async with Catalog(options) as catalog:
        server, tables = await catalog.server(), await catalog.named_tables(names)
        if missing := set(names) - {table.asked for table in tables}:
            raise UsageError(f"there is no table {_named(missing)} in database {quoted(server.database)}")
        if unlogged := {table.asked for table in tables if not table.is_logged}:
            raise UsageError(
                f"PostgreSQL cannot publish {_named(unlogged)}, because only the WAL of permanent tables has rows"
            )
        return _Present(
            server.user,
            server.database,
            server.version,
            await catalog.setting("wal_level") or "",
            await catalog.may_replicate(),
            tables,
            next(iter(await catalog.publications([publication])), None),
            await catalog.carried_names([publication]),
        )


def _named(names: Iterable[tuple[str, str]]) -> str:
    return ", ".join(quoted(*name) for name in sorted(names))


def _role(present: _Present) -> list[str]:
    role, lines = sql_identifier(present.role), list[str]()
    if present.wal_level != "logical":
        lines.append("ALTER SYSTEM SET wal_level = 'logical';  -- then restart the server")
    if not present.version:
        lines.append(f"CREATE ROLE {role} LOGIN REPLICATION;  -- \\password in psql sets its password")
        lines.append(f"GRANT CONNECT ON DATABASE {sql_identifier(present.database)} TO {role};")
    elif not present.may_replicate:
        lines.append(f"ALTER ROLE {role} REPLICATION;")
    return lines


def _reading(present: _Present, names: Names) -> list[str]:
    """Return the GRANT statements for reading existing rows.

    Rows are read from the table under whose name they are published: a partition, or the root of the partitions.
    """
    role = sql_identifier(present.role)
    if present.version:
        via_root = present.publication is not None and present.publication.via_root
        read = [one for one in present.tables if ((one.schema, one.name) == one.asked if via_root else one.has_rows)]
        schemas = dict.fromkeys(one.schema for one in read if not one.has_usage)
        unread = list(dict.fromkeys((one.schema, one.name) for one in read if not one.has_select))
    else:
        schemas, unread = dict.fromkeys(schema for schema, _ in names), list(names)
    lines = [f"GRANT USAGE ON SCHEMA {sql_identifier(schema)} TO {role};" for schema in schemas]
    return [*lines, f"GRANT SELECT ON TABLE {_listed(unread)} TO {role};"] if unread else lines


def _publication(present: _Present, publication: str, names: Names) -> list[str]:
    name, names = sql_identifier(publication), _publishable(present, names)
    if present.publication is None:
        return [f"CREATE PUBLICATION {name} FOR TABLE {_listed(names)};"]
    new = [one for one in names if one not in present.carried]
    return [f"ALTER PUBLICATION {name} ADD TABLE {_listed(new)};"] if new else []


def _publishable(present: _Present, names: Names) -> Names:
    """Return the tables that the publication has to name. Before PostgreSQL 13, these cannot be partitioned tables."""
    if not present.version or present.version >= _PUBLISHES_PARTITIONED_TABLES:
        return names
    return list(dict.fromkeys((one.schema, one.name) for one in present.tables if one.has_rows))


def _identities(present: _Present) -> list[str]:
    lacking = dict.fromkeys((one.schema, one.name) for one in present.tables if one.has_rows and not one.has_identity)
    if not lacking:
        return []
    return [
        "-- For UPDATE and DELETE, a published table needs a replica identity. A primary key is better than FULL.",
        *(f"ALTER TABLE {sql_identifier(*name)} REPLICA IDENTITY FULL;" for name in lacking),
    ]


def _listed(names: Names) -> str:
    return ", ".join(sql_identifier(*name) for name in names)
