"""The part of ``pgsluice check`` that finds out which tables can be loaded, and estimates how long loading takes.

A table that cannot be read does not stop ``run``, so no finding of these checks has the verdict FAIL. There may be
thousands of tables. So there is one finding for each kind of problem, not for each table, and one summary.

https://www.postgresql.org/docs/current/ddl-priv.html
https://www.postgresql.org/docs/current/ddl-rowsecurity.html
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from pgsluice.errors import PrimaryUnavailable, TableUnreadable
from pgsluice.finding import Finding, Verdict
from pgsluice.postgres.catalog import Catalog, LoadableTable
from pgsluice.postgres.checks import TABLES_NAMED_MAX, listed
from pgsluice.postgres.chunks import ChunkReader
from pgsluice.postgres.connection import ReplicationConnection
from pgsluice.postgres.options import ConnectionOptions
from pgsluice.postgres.primary import Primary
from pgsluice.printable import quoted, sql_identifier
from pgsluice.relation import PublishedName
from pgsluice.snapshot import TableSize
from pgsluice.tables import TablePolicy

ROWS_PER_S: Final = 40_000
BYTES_PER_S: Final = 15_000_000
TABLE_S: Final = 0.25
"""Cautious estimates of how many rows and bytes are read per second, and how many seconds each table adds. In a
measurement on two cores, shared with PostgreSQL and Kafka, pgsluice read 52,000 rows of ten columns per second, 22 MB
of large rows per second, or four small tables per second."""

_NAME: Final = "snapshot"


async def check_primary(stream: ConnectionOptions, primary: ConnectionOptions) -> list[Finding]:
    """Return the problems with the primary from which rows are read if pgsluice streams from a standby.

    The primary is compared with the server of the stream in the same way as in a session.
    """
    replication = await ReplicationConnection.open(stream)
    try:
        server = await replication.identify_system()
    finally:
        await replication.close()
    reader = ChunkReader(primary, (), Primary(server.systemid, server.timeline))
    try:
        await reader.look()
    except PrimaryUnavailable as error:
        return [Finding(_NAME, Verdict.WARN, f"no table can be loaded: {error}")]
    finally:
        await reader.close()
    return []


async def check(
    catalog: Catalog,
    publications: Sequence[str],
    policy_of: Callable[[str, str], TablePolicy | None],
    *,
    without_key_max: int,
    rows_per_s: int | None,
) -> list[Finding]:
    """Return the findings on the published tables whose rows are to be read.

    ``policy_of`` takes the schema and the name of a table, and returns how the table is published, or None if it is not
    published. ``without_key_max`` is the size in bytes of the largest table that may be read without a key.
    ``rows_per_s`` limits how many rows may be read per second. None means no limit.
    """
    server = await catalog.server()
    if server.in_recovery:
        remedy = "Set snapshot.primary to the primary, or connect to the primary."
        return [Finding(_NAME, Verdict.WARN, "the server is a standby, from which no table can be loaded", remedy)]
    found = await catalog.loadable_tables(publications)
    policies = {table.oid: policy_of(table.schema, table.name) for table in found}
    wanted = [table for table in found if (policy := policies[table.oid]) is not None and policy.is_loaded]
    found_sizes = await catalog.table_sizes([table.oid for table in wanted])
    sizes = {table.oid: found_sizes.get(table.oid, TableSize()) for table in wanted}
    named = {oid for oid, policy in policies.items() if policy is not None and policy.named}
    strange = [table for table in wanted if not table.is_trusted and table.oid not in named]
    readable = [table for table in wanted if table.is_readable and not table.is_hidden and table not in strange]
    keyless = [table for table in readable if not _is_read_by_key(table, policies[table.oid])]
    large = [table for table in keyless if sizes[table.oid].bytes > without_key_max]
    loaded = [table for table in readable if table not in large]
    return [
        *_problems(wanted, server.user),
        *_strange(strange),
        *_keyless([table for table in keyless if table not in large], large, sizes),
        _summary(loaded, len(found) - len(wanted), sizes, rows_per_s),
    ]


def _is_read_by_key(table: LoadableTable, policy: TablePolicy | None) -> bool:
    """Return whether the rows are read in chunks. Otherwise the table is read as a whole."""
    names_key = policy is not None and bool(policy.keys)
    return bool(table.key) and (table.has_event_key or names_key)


async def check_conditions(
    options: ConnectionOptions, publications: Sequence[str], policy_of: Callable[[str, str], TablePolicy | None]
) -> list[Finding]:
    """Return a finding if PostgreSQL refuses a rule's condition on the rows of a table (``where``).

    ``options`` are the connection options of the server from which rows are read.
    """
    reader, refused = ChunkReader(options, publications), list[str]()
    try:
        async with Catalog(options) as catalog:
            names = await catalog.published_names(publications)
            policies = {one.oid: policy_of(one.namespace, one.name) for one in names}
            wanted = {oid: policy for oid, policy in policies.items() if policy is not None and policy.where}
        for table in names:
            if table.oid in wanted:
                refused += await _refused_condition(reader, table, wanted[table.oid])
    finally:
        await reader.close()
    if not refused:
        return []
    more = f" (and {len(refused) - 1} more tables)" if len(refused) > 1 else ""
    remedy = "Correct `where` in [[tables.rules]], or solve the problem that PostgreSQL reports."
    return [Finding("snapshot conditions", Verdict.WARN, f"some rows cannot be read: {refused[0]}{more}", remedy)]


async def _refused_condition(reader: ChunkReader, table: PublishedName, policy: TablePolicy) -> list[str]:
    """Return PostgreSQL's reason for refusing the condition on a table's rows, or an empty list."""
    shape = await reader.shape(table)
    if shape is not None and (shape.is_trusted or policy.named):
        try:
            await reader.check_readable(replace(shape, where=policy.where))
        except TableUnreadable as error:
            return [str(error)]
    return []


def _problems(tables: Sequence[LoadableTable], role: str) -> list[Finding]:
    findings = []
    if forbidden := [table for table in tables if not table.is_readable]:
        detail = f"the right to read is missing, so these tables are not loaded: {_names(forbidden)}"
        findings.append(Finding("snapshot rights", Verdict.WARN, detail, _grants(forbidden, role)))
    if hidden := [table for table in tables if table.is_hidden]:
        detail = f"row security would hide rows from role {quoted(role)}, so these tables are not loaded: "
        remedy = f'ALTER ROLE {sql_identifier(role)} BYPASSRLS; or snapshot = "skip" in a [[tables.rules]] entry.'
        findings.append(Finding("snapshot row security", Verdict.WARN, detail + _names(hidden), remedy))
    return findings


def _strange(tables: Sequence[LoadableTable]) -> list[Finding]:
    if not tables:
        return []
    detail = (
        "the owner of a table can run functions with the rights of the role that reads it. These tables are not "
        "loaded, because they, one of their partitions or their schema belong to a role that is neither a superuser "
        f"nor the owner of the database: {_names(tables)}"
    )
    remedy = "If you trust their owners, name the tables in the publication (FOR TABLE) or in tables.include."
    return [Finding("snapshot owners", Verdict.WARN, detail, remedy)]


def _keyless(
    small: Sequence[LoadableTable], large: Sequence[LoadableTable], sizes: Mapping[int, TableSize]
) -> list[Finding]:
    """Return the findings on tables without a key. The ``small`` ones are loaded, and the ``large`` ones are not."""
    findings = []
    remedy = 'Add primary keys, or set snapshot = "skip" in a [[tables.rules]] entry'
    if small:
        most = max((sizes[table.oid] for table in small), key=lambda size: size.bytes)
        detail = (
            f"without a key, each of these tables is read as a whole, and the changes of all tables wait meanwhile "
            f"({_bytes(most.bytes)} at most, {_duration(_seconds(1, most, None))}): {_names(small)}"
        )
        findings.append(Finding("snapshot keys", Verdict.WARN, detail, f"{remedy}."))
    if large:
        detail = (
            "these tables are not loaded, because they have no key and are larger than snapshot.without_key_max: "
            f"{_names(large)}"
        )
        findings.append(Finding("snapshot large tables", Verdict.WARN, detail, f"{remedy}; or raise the limit."))
    return findings


def _grants(tables: Sequence[LoadableTable], role: str) -> str:
    """Return the statements that give the role the rights to read the tables."""
    named, to = tables[:TABLES_NAMED_MAX], f"TO {sql_identifier(role)};"
    schemas = ", ".join(dict.fromkeys(sql_identifier(table.schema) for table in named))
    names = ", ".join(sql_identifier(table.schema, table.name) for table in named)
    return f"GRANT USAGE ON SCHEMA {schemas} {to} GRANT SELECT ON {names} {to}"


def _summary(
    tables: Sequence[LoadableTable], skipped: int, sizes: Mapping[int, TableSize], rows_per_s: int | None
) -> Finding:
    """Return the amount of data to read and the estimated time, according to PostgreSQL's statistics."""
    if not tables:
        return Finding(_NAME, Verdict.OK, "there is no table to load")
    of = [sizes[table.oid] for table in tables]
    size = TableSize(sum(one.rows for one in of), sum(one.bytes for one in of))
    largest = max(tables, key=lambda table: sizes[table.oid].bytes)
    detail = (
        f"{len(tables)} tables can be loaded: about {size.rows} rows and {_bytes(size.bytes)} as of the last ANALYZE, "
        f"the largest is {_names([largest])} ({sizes[largest.oid].rows} rows); loading takes "
        f"{_duration(_seconds(len(tables), size, rows_per_s))}"
    )
    return Finding(_NAME, Verdict.OK, f"{detail}; tables left out by the settings: {skipped}" if skipped else detail)


def _seconds(tables: int, size: TableSize, rows_per_s: int | None) -> float:
    """Return how long it takes to read ``tables`` tables with this total ``size``."""
    rate = ROWS_PER_S if rows_per_s is None else min(rows_per_s, ROWS_PER_S)
    return tables * TABLE_S + max(size.rows / rate, size.bytes / BYTES_PER_S)


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"about {seconds / length:.0f} {unit}"
    return "a minute or two" if seconds >= 60 else "less than a minute"  # noqa: PLR2004


def _bytes(size: int) -> str:
    for unit, length in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= length:
            return f"{size / length:.1f} {unit}"
    return f"{size / 2**10:.0f} KiB"


def _names(tables: Sequence[LoadableTable]) -> str:
    return listed([quoted(table.schema, table.name) for table in tables])
