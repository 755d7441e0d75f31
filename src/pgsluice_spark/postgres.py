"""Reads PostgreSQL for an audit: one session exports a snapshot, and the sessions of Spark's tasks import it.

Used by :mod:`.audit`, :mod:`.compare`, :mod:`.tail` and :mod:`.doctor`. All sessions use PostgreSQL's JDBC driver,
because the executors need it in any case. So a cluster needs no other driver, and the settings for passwords and TLS
have the same effect in all sessions.

``tests/spark/test_audit.py`` covers this module.

https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-SNAPSHOT-SYNCHRONIZATION
https://jdbc.postgresql.org/documentation/use/
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark.errors import PipelineError

DRIVER: Final = "org.postgresql.Driver"

_PROPERTIES: Final[Mapping[str, str]] = {
    "user": "user",
    "password": "password",
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "connect_timeout": "connectTimeout",
    "application_name": "ApplicationName",
    "options": "options",
}
"""libpq's keywords and their names in the JDBC driver. Host, port and dbname are part of the URL."""

_WORD: Final = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)")
_CONNINFO: Final = re.compile(rf"\s*({_WORD.pattern}(\s+|$))*")

_POLL_S: Final = 0.1
_XIDS: Final = 1 << 32
_FETCH_ROWS: Final = 5000
_PAGES_READ: Final = 4096
"""The number of pages of a table that one task reads: 32 MiB."""
_PAGE, _SEGMENT_HEADER, _PAGE_HEADER = 8192, 40, 24

TEXT_SETTINGS: Final = (
    "SET DateStyle = 'ISO'",
    "SET IntervalStyle = 'iso_8601'",
    "SET TimeZone = 'UTC'",
    "SET lc_monetary = 'C'",
    "SET bytea_output = 'hex'",
    "SET extra_float_digits = 3",
    "SET search_path = ''",
    "SET row_security = off",
    "SET statement_timeout = 0",
    "SET idle_in_transaction_session_timeout = 0",
)
"""The settings of a session. They make PostgreSQL write values in the same form as for the daemon (docs/types.md).

With ``row_security`` off, PostgreSQL raises an error if row-level security would hide rows.
"""

_UNFINISHED: Final = """
    SELECT l.transactionid::text, coalesce(l.pid::text, 'prepared'),
        CASE WHEN l.pid IS NOT NULL THEN coalesce(a.state LIKE 'idle in transaction%', false)
            ELSE NOT EXISTS (
                SELECT FROM pg_stat_activity AS c WHERE c.pid != pg_backend_pid() AND (
                    c.backend_type IS NULL OR c.state = 'disabled' OR c.state = 'active'
                    AND c.backend_type NOT IN ('walsender', 'parallel worker', 'autovacuum worker')
                    AND (c.query ~* 'prepared' OR c.backend_type != 'client backend'))) END
    FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
    WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
    AND (a.datname IS NULL OR a.datname = current_database())
"""
"""Selects transactions that have an id and have not ended. The last column is true if a transaction is certainly not in
the middle of its commit."""

_RELATION: Final = """
    SELECT c.oid, c.relkind, CASE WHEN c.relkind = 'p' THEN '' ELSE 'ONLY ' END || format('%I.%I', nspname, relname)
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND nspname = {schema} AND relname = {table}
"""

_FILTERS: Final = "SELECT 1 FROM pg_publication_rel WHERE prrelid = {oid} AND prqual IS NOT NULL"

_COLUMNS: Final = """
    SELECT a.attname, scalar.typname, scalar.arrays
    FROM pg_attribute AS a CROSS JOIN LATERAL (
        WITH RECURSIVE part AS (
            SELECT a.atttypid AS oid, 0 AS arrays, 0 AS level
            UNION ALL
            SELECT coalesce(e.oid, t.typbasetype), p.arrays + (e.oid IS NOT NULL)::int, p.level + 1
            FROM part AS p JOIN pg_type AS t ON t.oid = p.oid LEFT JOIN pg_type AS e ON e.typarray = t.oid
            WHERE e.oid IS NOT NULL OR t.typbasetype != 0
        )
        SELECT t.typname, p.arrays FROM part AS p JOIN pg_type AS t ON t.oid = p.oid ORDER BY p.level DESC LIMIT 1
    ) AS scalar
    WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""

_PAGES: Final = """
    WITH RECURSIVE tree AS (
        SELECT {oid}::oid AS oid
        UNION ALL
        SELECT i.inhrelid FROM pg_inherits AS i JOIN tree ON i.inhparent = tree.oid WHERE {is_root}
    )
    SELECT max(pg_relation_size(oid) / current_setting('block_size')::bigint) FROM tree
"""


@dataclass(frozen=True, slots=True)
class Source:
    """The JDBC URL of PostgreSQL, and the properties of a connection."""

    url: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, text: str) -> "Source":
        """Parse a connection string in libpq's form (``host=... dbname=...``), or a JDBC URL."""
        if text.startswith("jdbc:postgresql:"):
            return cls(text)
        words = _words(text)
        place = f"{words.pop('host', 'localhost')}:{words.pop('port', '5432')}"
        url = f"jdbc:postgresql://{place}/{words.pop('dbname', words.get('user', ''))}"
        if unknown := sorted(set(words) - set(_PROPERTIES)):
            raise ValueError(
                f"the connection string of PostgreSQL has {', '.join(unknown)}, which the JDBC driver does not know. "
                f"It takes host, port, dbname, {', '.join(_PROPERTIES)}, or a URL: jdbc:postgresql://..."
            )
        return cls(url, {_PROPERTIES[name]: value for name, value in words.items()})


def _unquoted(value: str) -> str:
    return value[1:-1] if value.startswith("'") else value


def _words(text: str) -> dict[str, str]:
    """Return the keywords and values of a connection string in libpq's form."""
    if not _CONNINFO.fullmatch(text):
        raise ValueError("the connection string of PostgreSQL is not of the form host=... dbname=... user=...")
    return {name: re.sub(r"\\(.)", r"\1", _unquoted(value)) for name, value in _WORD.findall(text)}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An exported snapshot: its name, the transactions that it sees, and a WAL position after all of them."""

    name: str
    text: str
    wal_lsn: int

    @property
    def xmax(self) -> int:
        """The lowest transaction id, in 64 bits, that was not assigned yet when the snapshot was taken."""
        return int(self.text.split(":")[1])

    @property
    def running(self) -> list[int]:
        """The transactions below ``xmax`` that had not ended when the snapshot was taken."""
        return [int(xid) for xid in self.text.split(":")[2].split(",") if xid]

    def sees(self, xid: Column) -> Column:
        """Return whether the snapshot sees a transaction. ``xid`` has the lower 32 bits of its id, as in the stream."""
        ahead = F.pmod(xid.cast("long") - F.lit(self.xmax), F.lit(_XIDS))
        wide = F.lit(self.xmax) + F.when(ahead >= _XIDS // 2, ahead - _XIDS).otherwise(ahead)
        return (wide < self.xmax) & ~wide.isin(self.running)


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as a snapshot sees it.

    ``columns`` has the name and the type of each column, and the number of arrays around the type, which is 0 if the
    column is no array. Domains are replaced by their base types.
    """

    source: Source
    snapshot: Snapshot
    version: int
    sql: str
    pages: int
    columns: Sequence[tuple[str, str, int]]
    refusal: str = ""

    def read(self, spark: SparkSession, selected: Sequence[str]) -> DataFrame:
        """Return the rows of the table. Spark reads several ranges of pages at the same time."""
        table = f"(SELECT {', '.join([*selected, 'ctid AS place'])} FROM {self.sql}) AS t"  # noqa: S608 - quoted
        options = {
            **self.source.properties,
            "driver": DRIVER,
            "fetchsize": str(_FETCH_ROWS),
            "sessionInitStatement": import_statement(self.snapshot),
        }
        return spark.read.jdbc(self.source.url, table, predicates=_ranges(self.pages), properties=options)


def _ranges(pages: int) -> list[str]:
    """Return conditions that divide a table by its pages. The last one has no upper bound, because tables grow."""
    bounds = list(range(_PAGES_READ, pages - _PAGES_READ // 2, _PAGES_READ))
    begins = ["true", *(f"place >= '({page},0)'::tid" for page in bounds)]
    ends = [*(f"place < '({page},0)'::tid" for page in bounds), "true"]
    return [f"{begin} AND {end}" for begin, end in zip(begins, ends, strict=True)]


class Session:
    """A session on the primary."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - py4j has no types
        self._connection = connection
        self.version = int(self._row("SHOW server_version_num")[0] or 0) // 10000

    def rows(self, sql: str) -> list[list[str | None]]:
        """Return the rows of a query, with all values as text."""
        with self._statement() as statement:
            found = statement.executeQuery(sql)
            width = found.getMetaData().getColumnCount()
            rows = []
            while found.next():
                rows.append([found.getString(number + 1) for number in range(width)])
            return rows

    def execute(self, sql: str) -> None:
        """Carry out a statement."""
        with self._statement() as statement:
            statement.execute(sql)

    @contextmanager
    def _statement(self) -> Iterator[Any]:
        statement = self._connection.createStatement()
        try:
            yield statement
        except Py4JJavaError as error:
            raise PipelineError(
                f"PostgreSQL refused a statement of the audit: {error.java_exception.getMessage()}. Nothing was "
                "compared. Either the role lacks SELECT on a table or USAGE on its schema, or another session locks a "
                "table"
            ) from None
        finally:
            statement.close()

    def _row(self, sql: str) -> list[str | None]:
        return self.rows(sql)[0]

    def check_primary(self) -> None:
        """Raise an error on a standby, because its snapshots do not show which transactions were still running."""
        if self._row("SELECT pg_is_in_recovery()") == ["t"]:
            raise PipelineError(
                "the server is a standby, and its snapshots do not show which transactions were still running. Nothing "
                "was compared. Give the connection string of the primary"
            )

    def wait_for_commits(self, wait_s: float) -> None:
        """Wait for the transactions that are in the middle of their commit at the time of the call."""
        end = time.monotonic() + wait_s
        pending = {xid for xid, _, is_safe in self.rows(_UNFINISHED) if is_safe != "t"}
        while pending:
            found = {xid: pid for xid, pid, is_safe in self.rows(_UNFINISHED) if is_safe != "t"}
            pending &= found.keys()
            if pending and time.monotonic() > end:
                who = ", ".join(f"{xid} (pid {found[xid]})" for xid in sorted(filter(None, pending))[:5])
                raise PipelineError(
                    f"transactions that may be in the middle of their commit have not ended within {wait_s:g} s: "
                    f"{who}. Nothing was compared. Repeat the audit when they have ended, or with a longer wait. If "
                    "they wait for a synchronous standby, repair the standby. If the role may not see what other "
                    "roles do, grant it pg_read_all_stats"
                )
            time.sleep(_POLL_S if pending else 0)

    def begin(self, tables: Sequence[str]) -> None:
        """Begin the transaction of the snapshot. The tables cannot be altered or truncated until it ends."""
        self._connection.setAutoCommit(False)
        self.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        for setting in (*TEXT_SETTINGS, "SET lock_timeout = '10s'"):
            self.execute(setting)
        for table in tables:
            self.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE")

    def snapshot(self) -> Snapshot:
        """Export the snapshot of the session's transaction, and return it."""
        name = self._row("SELECT pg_export_snapshot()")[0]
        current = "pg_current_snapshot()" if self.version >= 13 else "txid_current_snapshot()"  # noqa: PLR2004 - a version
        text = self._row(f"SELECT {current}::text")[0]
        lsn, segment = self._row(
            "SELECT pg_current_wal_insert_lsn() - '0/0', setting::bigint * CASE unit WHEN '8kB' THEN 8192 ELSE 1 END "
            "FROM pg_settings WHERE name = 'wal_segment_size'"
        )
        return Snapshot(str(name), str(text), before_header(int(lsn or 0), int(segment or 0)))

    def relation(self, schema: str, table: str) -> tuple[str, str, str] | None:
        """Return a table's oid, its kind, and its name as it is written in SQL.

        Return None if there is no such table.
        """
        rows = self.rows(_RELATION.format(schema=_literal(schema), table=_literal(table)))
        return (str(rows[0][0]), str(rows[0][1]), str(rows[0][2])) if rows else None

    def table(self, source: Source, snapshot: Snapshot, relation: tuple[str, str, str]) -> SourceTable:
        """Return a table as a snapshot of this session sees it. The session has to hold a lock on the table."""
        oid, kind, sql = relation
        found = self.rows(_COLUMNS.format(oid=oid))
        columns = [(str(name), str(type_), int(arrays or 0)) for name, type_, arrays in found]
        pages = self._row(_PAGES.format(oid=oid, is_root="true" if kind == "p" else "false"))[0]
        return SourceTable(source, snapshot, self.version, sql, int(pages or 0), columns, self._refusal(oid))

    def sees_all_sessions(self) -> bool:
        """Return whether the role may see the activity of other roles' sessions."""
        return self._row("SELECT pg_has_role('pg_read_all_stats', 'usage')") == ["t"]

    def denial(self, oid: str) -> str:
        """Return the reason why the role cannot read all rows of a table. It is empty if the role can."""
        can_select, is_filtered = self._row(f"SELECT has_table_privilege({oid}, 'SELECT'), row_security_active({oid})")
        if can_select != "t":
            return "the role has no SELECT on it"
        return "row-level security applies to the role" if is_filtered == "t" else ""

    def _refusal(self, oid: str) -> str:
        if self.version < 15:  # noqa: PLR2004 - a version
            return ""
        return "a publication has a row filter for it" if self.rows(_FILTERS.format(oid=oid)) else ""


def before_header(lsn: int, segment: int) -> int:
    """Return the insert position ``lsn``, or the end of the previous page if ``lsn`` is just after a page header."""
    if segment and lsn % segment == _SEGMENT_HEADER:
        return lsn - _SEGMENT_HEADER
    return lsn - _PAGE_HEADER if lsn % _PAGE == _PAGE_HEADER else lsn


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@contextmanager
def connected(spark: SparkSession, source: Source) -> Iterator[Session]:
    """Open a session. Its transaction ends with the context."""
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no other way to Java
    properties = jvm.java.util.Properties()
    for name, value in source.properties.items():
        properties.setProperty(name, value)
    try:
        connection = jvm.org.postgresql.Driver().connect(source.url, properties)
    except TypeError:
        raise PipelineError(
            "Spark does not have PostgreSQL's JDBC driver. Nothing was compared. Add org.postgresql:postgresql to "
            "spark.jars.packages, or its jar to spark.jars"
        ) from None
    except Py4JError as error:
        reason = getattr(error, "java_exception", error)
        raise PipelineError(f"PostgreSQL cannot be reached: {reason}. Nothing was compared") from None
    try:
        yield Session(connection)
    finally:
        connection.close()


def import_statement(snapshot: Snapshot) -> str:
    """Return the first statement of a session that has to read at the snapshot.

    Spark executes it as ``sessionInitStatement``. At that time, the session is in a transaction, because Spark turns
    off autocommit if a ``fetchsize`` is set. Outside of a transaction, PostgreSQL would refuse the import, so nothing
    is ever read at another snapshot.
    """
    own = ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY", f"SET TRANSACTION SNAPSHOT '{snapshot.name}'")
    return "; ".join((*own, *TEXT_SETTINGS))
