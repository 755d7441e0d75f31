"""The checks of ``pgsluice check`` for PostgreSQL. They find what would stop ``run`` or cause problems later.

The checks change nothing at the server, and need only the rights that ``run`` needs: LOGIN and REPLICATION.

https://www.postgresql.org/docs/current/logical-replication-config.html
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pgsluice.errors import PgsluiceError, SourceUnavailable
from pgsluice.finding import Finding, Verdict
from pgsluice.lsn import format_lsn
from pgsluice.postgres import failures
from pgsluice.postgres.catalog import Catalog, PublishedTable, Server
from pgsluice.postgres.connection import OLDEST_SERVER, ReplicationConnection
from pgsluice.postgres.options import ConnectionOptions, StreamOptions
from pgsluice.postgres.slot import SlotState
from pgsluice.printable import quoted, sql_identifier

TABLES_NAMED_MAX = 20
"""The maximum number of tables that a finding names. Of the other tables, it says only how many there are."""

_LIMIT = "https://www.postgresql.org/docs/current/runtime-config-replication.html"

_REPLICA_IS_ENOUGH_SINCE = 19_00_00  # since this version, the server raises the WAL level for the first logical slot

_STANDBYS_DECODE_SINCE = 16_00_00

_OLDEST_MAINTAINED_MAJOR = 14

# major version -> the first minor release without the bug. Majors after the listed ones never had the bug, because it
# was fixed before their first release. Majors before the listed ones never got the fix.
_KNOWN_BUGS = (
    (
        "ALTER PUBLICATION and ALTER TYPE can lose changes or exhaust memory if other transactions are open",
        {13: 22, 14: 19, 15: 14, 16: 10, 17: 6},
    ),
    (
        "a new slot can begin in the middle of a transaction",
        {12: 20, 13: 16, 14: 13, 15: 8, 16: 4},
    ),
)


@dataclass(frozen=True, slots=True)
class _Surroundings:
    catalog: Catalog
    server: Server
    options: ConnectionOptions
    slot: str
    publications: Sequence[str]
    create_slot: bool
    stream: StreamOptions


_Look = Callable[[_Surroundings], Awaitable[list[Finding]]]


async def check(
    options: ConnectionOptions,
    slot: str,
    publications: Sequence[str],
    stream: StreamOptions | None = None,
    *,
    create_slot: bool = True,
) -> list[Finding]:
    """Return the findings, good and bad. This opens a replication connection, but does not stream from the slot."""
    async with Catalog(options) as catalog:
        try:
            server = await catalog.server()
        except PgsluiceError as error:
            return [
                Finding(
                    "postgres reachable", Verdict.FAIL, str(error), "Correct the [postgres] settings.", error.exit_code
                )
            ]
        around = _Surroundings(catalog, server, options, slot, publications, create_slot, stream or StreamOptions())
        return [finding for name, look in _LOOKS.items() for finding in await _guarded(name, look, around)]


async def _guarded(name: str, look: _Look, around: _Surroundings) -> list[Finding]:
    try:
        return await look(around)
    except PgsluiceError as error:
        return [Finding(name, Verdict.FAIL, str(error), "See the reason that PostgreSQL gave.", error.exit_code)]


async def _reachable(around: _Surroundings) -> list[Finding]:
    server = around.server
    role = "a standby" if server.in_recovery else "the primary"
    tls = f"TLS ({server.tls})" if server.tls else "no TLS"
    detail = f"database {server.database} as {server.user}, {role}, {tls}"
    if server.in_recovery and server.version < _STANDBYS_DECODE_SINCE:
        remedy = "Connect to the primary, for example with target_session_attrs=read-write."
        detail = f"{detail}: decoding on standbys needs PostgreSQL 16"
        return [Finding("postgres reachable", Verdict.FAIL, detail, remedy)]
    return [Finding("postgres reachable", Verdict.OK, detail)]


async def _version(around: _Surroundings) -> list[Finding]:
    name, server = "postgres version", around.server
    version = f"{server.major}.{server.minor}"
    if server.version < OLDEST_SERVER:
        detail = "before 10, so it has no pgoutput"
        return [Finding(name, Verdict.FAIL, detail, "Upgrade to a maintained major version.")]
    problems = [bug for bug, fixed in _KNOWN_BUGS if _has_bug(server, fixed)]
    if server.major < _OLDEST_MAINTAINED_MAJOR:
        problems.append("its major version is no longer maintained")
    if not problems:
        return [Finding(name, Verdict.OK, version)]
    remedy = "Install the current minor release of a maintained major version."
    return [Finding(name, Verdict.WARN, f"{version}: {'; '.join(problems)}", remedy)]


def _has_bug(server: Server, fixed: dict[int, int]) -> bool:
    if server.major not in fixed:
        return server.major < min(fixed)
    return server.minor < fixed[server.major]


async def _options(around: _Surroundings) -> list[Finding]:
    asked = around.stream.of_server(around.server.version)
    detail = ", ".join(f"{name} {value}" for name, value in asked.items())
    return [Finding("stream options", Verdict.OK, detail or "none")]


async def _replication(around: _Surroundings) -> list[Finding]:
    """Open a replication connection as ``run`` does, because pg_hba.conf has its own rules for these connections."""
    connection = await ReplicationConnection.open(around.options)
    try:
        identity = await connection.identify_system()
    finally:
        await connection.close()
    detail = f"system {identity.systemid}, timeline {identity.timeline}, WAL up to {format_lsn(identity.xlogpos)}"
    return [Finding("replication connection", Verdict.OK, detail)]


async def _wal_level(around: _Surroundings) -> list[Finding]:
    wal_level = await around.catalog.setting("wal_level")
    enough = {"logical", "replica"} if around.server.version >= _REPLICA_IS_ENOUGH_SINCE else {"logical"}
    if wal_level in enough:
        return [Finding("wal_level", Verdict.OK, str(wal_level))]
    remedy = "ALTER SYSTEM SET wal_level = 'logical'; then restart the server."
    return [Finding("wal_level", Verdict.FAIL, f"{wal_level}, but logical decoding needs logical", remedy)]


async def _encoding(around: _Surroundings) -> list[Finding]:
    encoding = around.server.encoding
    if encoding != "SQL_ASCII":
        return [Finding("database encoding", Verdict.OK, encoding)]
    detail = "SQL_ASCII: the first text that is not valid UTF-8 stops the stream for good"
    remedy = "Move the data to a database with encoding UTF8, or make sure that all text in it is UTF-8."
    return [Finding("database encoding", Verdict.WARN, detail, remedy)]


async def _slot(around: _Surroundings) -> list[Finding]:
    name = f"replication slot {around.slot}"
    slot = await around.catalog.slot(around.slot)
    if slot is None and around.create_slot:
        new = Finding(name, Verdict.OK, "does not exist yet; run creates it")
        return [new, await _free_slots(around), *await _prepared_transactions(around)]
    if slot is not None and slot.synced and around.server.in_recovery:
        detail = "a copy of the primary's slot, to be used after this standby's promotion"
        return [Finding(name, Verdict.WARN, detail, "Connect to the primary until then.")]
    problem = failures.unusable(around.slot, slot, around.server.database, around.stream, around.server.version)
    if problem is not None:
        return [Finding(name, Verdict.FAIL, str(problem), exit_code=problem.exit_code)]
    return [Finding(name, Verdict.OK, _describe(slot))] if slot is not None else []


def _describe(slot: SlotState) -> str:
    owner = f"in use by process {slot.active_pid}" if slot.active_pid is not None else "free"
    return f"{owner}, confirmed up to {format_lsn(slot.confirmed_flush_lsn)}"


async def _free_slots(around: _Surroundings) -> Finding:
    used, limit = await around.catalog.slots_in_use(), int(await around.catalog.setting("max_replication_slots") or 0)
    detail = f"{used} of {limit} replication slots are taken"
    if used < limit:
        return Finding("free replication slots", Verdict.OK, detail)
    remedy = "Raise max_replication_slots and restart, or drop slots that nobody needs."
    return Finding("free replication slots", Verdict.FAIL, detail, remedy, SourceUnavailable.exit_code)


async def _prepared_transactions(around: _Surroundings) -> list[Finding]:
    if not (prepared := await around.catalog.prepared_transactions()):
        return []
    detail = f"a new slot waits for the end of {listed(prepared)}"
    remedy = "End forgotten transactions with COMMIT PREPARED or ROLLBACK PREPARED."
    return [Finding("prepared transactions", Verdict.WARN, detail, remedy)]


async def _wal_senders(around: _Surroundings) -> list[Finding]:
    used, limit = await around.catalog.wal_senders_in_use(), int(await around.catalog.setting("max_wal_senders") or 0)
    detail = f"{used} of {limit} walsenders are running"
    if used < limit:
        return [Finding("free walsenders", Verdict.OK, detail)]
    remedy = "Raise max_wal_senders and restart, or end replication connections that nobody needs."
    return [Finding("free walsenders", Verdict.WARN, detail, remedy)]


async def _publications(around: _Surroundings) -> list[Finding]:
    found = {publication.name: publication for publication in await around.catalog.publications(around.publications)}
    findings = []
    for wanted in around.publications:
        name = f"publication {quoted(wanted)}"
        if wanted not in found:
            remedy = f"CREATE PUBLICATION {sql_identifier(wanted)} FOR TABLE ...; before the slot is created."
            findings.append(Finding(name, Verdict.FAIL, "does not exist in this database", remedy))
        else:
            publication = found[wanted]
            commands = ("insert", "update", "delete", "truncate")
            published = [command for command in commands if getattr(publication, command)]
            findings.append(Finding(name, Verdict.OK, f"publishes {', '.join(published)}"))
    return findings


async def _tables(around: _Surroundings) -> list[Finding]:
    tables = await around.catalog.published_tables(around.publications)
    if not tables:
        remedy = "ALTER PUBLICATION ... ADD TABLE ...;"
        return [Finding("published tables", Verdict.WARN, "none: there is nothing to stream", remedy)]
    return [Finding("published tables", Verdict.OK, str(len(tables))), _identities(tables)]


def _identities(tables: Sequence[PublishedTable]) -> Finding:
    name = "replica identity"
    lacking = [table for table in tables if table.publishes_old_rows and not table.has_identity]
    if not lacking:
        return Finding(name, Verdict.OK, "every table whose updates or deletes are published has one")
    names = [quoted(table.schema, table.name) for table in lacking]
    detail = f"missing, so that PostgreSQL refuses UPDATE and DELETE: {listed(names)}"
    identifiers = [sql_identifier(table.schema, table.name) for table in lacking[:TABLES_NAMED_MAX]]
    statements = [f"ALTER TABLE {identifier} REPLICA IDENTITY FULL;" for identifier in identifiers]
    return Finding(name, Verdict.WARN, detail, f"Add primary keys, or: {' '.join(statements)}")


async def _partitions(around: _Surroundings) -> list[Finding]:
    """Return a finding if a partition and its root have replica identities with different columns."""
    found = await around.catalog.partition_identities(around.publications)
    differing = [(root, one) for root, one in found if not one.is_like(root)]
    if not differing:
        return []
    names = [f"{quoted(one.schema, one.table)} (of {quoted(root.schema, root.table)})" for root, one in differing]
    detail = (
        "these partitions are published as their root, but have another replica identity, which decides which columns "
        f"of old rows PostgreSQL sends: {listed(names)}"
    )
    remedy = (
        "ALTER TABLE ... REPLICA IDENTITY for the root and for each partition, with the same kind. Partitions do not "
        "inherit the root's replica identity."
    )
    return [Finding("identity of partitions", Verdict.WARN, detail, remedy)]


async def _column_conflicts(around: _Surroundings) -> list[Finding]:
    findings = []
    if conflicts := await around.catalog.identity_conflicts(around.publications):
        tables = [f"{quoted(one.schema, one.name)} in publication {quoted(one.publication)}" for one in conflicts]
        detail = f"PostgreSQL refuses UPDATE and DELETE of {listed(tables)}"
        remedy = "Use only columns of the replica identity in row filters, and list all of its columns in column lists."
        findings.append(Finding("row filters and column lists", Verdict.WARN, detail, remedy))
    if differing := await around.catalog.differing_columns(around.publications):
        tables = [quoted(schema, name) for schema, name in differing]
        detail = (
            f"the publications send different columns of {listed(tables)}: the first change of such a table ends the "
            "stream"
        )
        remedy = "Publish the same columns in all publications of a pipeline, or use a pipeline for each publication."
        findings.append(Finding("column lists", Verdict.FAIL, detail, remedy))
    return findings


async def _retention(around: _Surroundings) -> list[Finding]:
    """Return findings on the limits of the WAL that the server keeps while pgsluice is stopped."""
    findings = []
    limit = await around.catalog.setting("max_slot_wal_keep_size")
    if limit == "-1":
        detail = "unlimited: while pgsluice is away, WAL piles up until the disk is full"
        findings.append(
            Finding("max_slot_wal_keep_size", Verdict.WARN, detail, f"Limit it, or watch the slot: {_LIMIT}")
        )
    elif limit is not None:
        detail = f"{limit} MB: the slot is invalidated when pgsluice falls further behind"
        findings.append(Finding("max_slot_wal_keep_size", Verdict.OK, detail))
    timeout = await around.catalog.setting("idle_replication_slot_timeout")
    if timeout not in (None, "0"):
        detail = f"{timeout} s: the slot is invalidated when pgsluice is away for longer"
        remedy = "ALTER SYSTEM SET idle_replication_slot_timeout = 0; unless you want this limit."
        findings.append(Finding("idle_replication_slot_timeout", Verdict.WARN, detail, remedy))
    return findings


_LOOKS: dict[str, _Look] = {
    "postgres reachable": _reachable,
    "postgres version": _version,
    "wal_level": _wal_level,
    "database encoding": _encoding,
    "stream options": _options,
    "replication slot": _slot,
    "free walsenders": _wal_senders,
    "replication connection": _replication,
    "publications": _publications,
    "published tables": _tables,
    "identity of partitions": _partitions,
    "row filters and column lists": _column_conflicts,
    "WAL retention": _retention,
}


def listed(names: Sequence[str]) -> str:
    """Return a list of names for a finding: the first names, and the number of the others."""
    more = len(names) - TABLES_NAMED_MAX
    return ", ".join(names[:TABLES_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
