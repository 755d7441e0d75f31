"""Queries of the system catalog.

A query works on every supported version, unless its name or its comment gives the first version.

``catalog`` and ``chunks`` run these queries with an empty search_path, so names without a schema refer to pg_catalog.
``published_queries`` has the queries about published tables.

``tests/integration/test_postgres_catalog.py`` covers this module.

https://www.postgresql.org/docs/current/catalogs.html
"""

from pgsluice.postgres.table_queries import IDENTITY_NAMES, PARTS, UNIQUE

MISSING_VALUES_SINCE = 11_00_00
MULTIRANGES_SINCE = 14_00_00
ROW_FILTERS_SINCE = 15_00_00


def identifier(name: str) -> str:
    """Return the name as an identifier in SQL, always in quotes."""
    return '"' + name.replace('"', '""') + '"'


SERVER = """
SELECT current_database()::text, session_user::text, current_setting('server_encoding'), pg_is_in_recovery(),
       (SELECT version || ', ' || cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl)"""

MAY_REPLICATE = "SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = session_user"

SETTING = "SELECT setting FROM pg_settings WHERE name = %s"

SLOTS_IN_USE = "SELECT count(*) FROM pg_replication_slots"

# The age, in transactions, of the oldest catalog rows that the slot protects from VACUUM.
SLOT_XMIN_AGE = "SELECT age(catalog_xmin) FROM pg_replication_slots WHERE slot_name = %s"

# This view exists in PostgreSQL 14 and later.
SLOT_STATISTICS = """
SELECT total_bytes, spill_txns, spill_bytes, stream_bytes FROM pg_stat_replication_slots WHERE slot_name = %s"""

WAL_SENDERS_IN_USE = "SELECT count(*) FROM pg_stat_get_wal_senders()"

CURRENT_LSN = """
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END)::text"""

# The end of the server's WAL. A standby that reads WAL from an archive has received nothing, so the end of the WAL that
# it has replayed counts.
WAL_END = """
SELECT (CASE WHEN pg_is_in_recovery() THEN greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())
             ELSE pg_current_wal_lsn() END)::text"""

# A walsender that is about to end waits until the client has read its last messages. Its wait event is then
# ClientWrite. A walsender that streams normally waits for the client with another wait event, WalSenderWriteData.
BLOCKED_BY_CLIENT = "SELECT wait_event = 'ClientWrite' FROM pg_stat_activity WHERE pid = %s"

PROCESS = "SELECT FROM pg_stat_activity WHERE pid = %s"

# The sizes that VACUUM and ANALYZE have stored in the catalog. Functions that return the present size of a table would
# wait for locks on the table. The size of a root is the sum of the sizes of its partitions.
TABLE_SIZES = """
WITH RECURSIVE part AS (
    SELECT c.oid AS root, c.oid FROM pg_class c WHERE c.oid = ANY (%s::oid[])
    UNION
    SELECT part.root, i.inhrelid
    FROM part
    JOIN pg_class c ON c.oid = part.oid AND c.relkind = 'p'
    JOIN pg_inherits i ON i.inhparent = part.oid
)
SELECT part.root, sum(greatest(c.reltuples, 0))::int8,
       (sum(c.relpages + coalesce(toast.relpages, 0)) * current_setting('block_size')::int8)::int8
FROM part
JOIN pg_class c ON c.oid = part.oid AND c.relkind <> 'p'
LEFT JOIN pg_class toast ON toast.oid = c.reltoastrelid
GROUP BY part.root"""


# The layout of a table (pgsluice.layout.Layout). The query reads only tables of the catalog. A partition root stores no
# rows. So only its partitions show whether rows were rewritten, and whether existing rows have a value in a new column.
# Columns of partitions are found by name, because their numbers may differ. A row filter is compared in its stored
# form, because deparsing it would wait for locks.
_LAYOUTS = """
WITH RECURSIVE part AS (
    SELECT c.oid AS root, c.oid FROM pg_class c WHERE c.oid = ANY (%(oids)s::oid[])
    UNION
    SELECT part.root, i.inhrelid
    FROM part
    JOIN pg_class c ON c.oid = part.oid AND c.relkind = 'p'
    JOIN pg_inherits i ON i.inhparent = part.oid
), stored AS (
    SELECT part.root, c.oid, c.relfilenode
    FROM part
    JOIN pg_class c ON c.oid = part.oid AND c.relkind <> 'p'
), filled AS (
    SELECT DISTINCT stored.root, a.attname
    FROM stored
    JOIN pg_attribute a ON a.attrelid = stored.oid AND {missing}
)
SELECT c.oid,
       (SELECT array_agg(ARRAY[a.attnum::text, a.attname::text, a.atttypid::text, a.atttypmod::text, a.xmin::text,
                               (f.attname IS NOT NULL)::int::text] ORDER BY a.attnum)
        FROM pg_attribute a
        LEFT JOIN filled f ON f.root = c.oid AND f.attname = a.attname
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       c.relnatts,
       (SELECT left(md5(string_agg(stored.oid || ':' || stored.relfilenode, ' ' ORDER BY stored.oid)), 16)
        FROM stored WHERE stored.root = c.oid),
       {filter}
FROM pg_class c
WHERE c.oid = ANY (%(oids)s::oid[])"""

# If one of the publications has no filter for the table, all rows are sent, so the result is null.
_LAYOUT_FILTER_SINCE_15 = """(
        SELECT CASE WHEN bool_and(r.prqual IS NOT NULL)
                    THEN left(md5(string_agg(r.prqual::text, ' ' ORDER BY r.prqual::text)), 16) END
        FROM pg_publication p
        LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
        WHERE p.pubname = ANY (%(publications)s::text[])
          AND (r.oid IS NOT NULL OR p.puballtables OR EXISTS (
              SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)))"""


def layouts(server_version: int) -> str:
    """Return the query for the layouts of tables, by their oids."""
    return _LAYOUTS.format(
        missing="a.atthasmissing" if server_version >= MISSING_VALUES_SINCE else "false",
        filter=_LAYOUT_FILTER_SINCE_15 if server_version >= ROW_FILTERS_SINCE else "NULL::text",
    )


# The result is one row with null for a table without primary key, and no row for a table that does not exist any more.
# A deferrable key does not count, because two rows may have the same values for a moment. PostgreSQL's default replica
# identity ignores such a key as well. conkey is used because it does not contain INCLUDE columns, unlike the index.
PRIMARY_KEY = """
SELECT a.attname::text
FROM pg_class t
LEFT JOIN pg_constraint c ON c.conrelid = t.oid AND c.contype = 'p' AND NOT c.condeferrable
LEFT JOIN LATERAL unnest(c.conkey) WITH ORDINALITY AS k (attnum, place) ON true
LEFT JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = k.attnum
WHERE t.oid = %s
ORDER BY k.place"""

# The columns of a table's replica identity, published or not. There is no row for a table that does not exist any more.
IDENTITY_COLUMNS = """
SELECT {names}
FROM pg_class c
WHERE c.oid = %s""".replace("{names}", IDENTITY_NAMES)

# The partitions of a root, as identity.Partitions describes them.
PARTITIONS = (
    """
SELECT c.relkind = 'p',
       (WITH RECURSIVE {parts}
        SELECT json_agg(json_build_array(c.oid::bigint, {names}))
        FROM part JOIN pg_class c ON c.oid = part.oid WHERE part.relkind <> 'p'),
       {unique},
       (SELECT bool_or(p.pubupdate OR p.pubdelete)
        FROM pg_publication p WHERE p.pubname = ANY (%(publications)s::text[]))
FROM pg_class c
WHERE c.oid = %(root)s""".replace("{parts}", PARTS)
    .replace("{names}", IDENTITY_NAMES)
    .replace("{unique}", UNIQUE)
)

# Types, and the types of their parts, as pgbinary.conversions describes them. The values of a domain are values of its
# base type, so its base type is its only part.
_TYPES = """
SELECT t.oid, n.nspname::text, t.typname::text,
       CASE WHEN t.typtype = 'd' THEN 'domain' ELSE coalesce(p.proname::text, '') END,
       CASE
           WHEN t.typtype = 'd' THEN ARRAY[t.typbasetype]
           WHEN t.typtype = 'r' THEN ARRAY(SELECT rngsubtype FROM pg_range WHERE rngtypid = t.oid)
           {multiranges}
           WHEN t.typtype = 'c' THEN ARRAY(
               SELECT DISTINCT atttypid FROM pg_attribute
               WHERE attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped)
           WHEN p.proname = 'array_send' THEN ARRAY[t.typelem]
           ELSE '{{}}'
       END::int8[],
       t.typdelim::text
FROM pg_type t
JOIN pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_proc p ON p.oid = t.typsend
WHERE t.oid = ANY (%s::oid[])"""

TYPES = _TYPES.format(multiranges="")

TYPES_SINCE_14 = _TYPES.format(
    multiranges="WHEN t.typtype = 'm' THEN ARRAY(SELECT rngtypid FROM pg_range WHERE rngmultitypid = t.oid)"
)

# The transaction that a walsender is waiting for while it creates a slot. The walsender waits for the running
# transactions one after the other, each time for the lock of one transaction. A prepared transaction has no process,
# so its pid is null.
SLOT_CREATION_BLOCKERS = """
SELECT holder.pid, a.usename::text, a.datname::text, p.gid, p.owner::text, p.database::text, p.prepared::text
FROM pg_locks waiter
JOIN pg_locks holder
  ON holder.locktype = 'transactionid' AND holder.transactionid = waiter.transactionid AND holder.granted
LEFT JOIN pg_stat_activity a ON a.pid = holder.pid
LEFT JOIN pg_prepared_xacts p ON p.transaction = holder.transactionid
WHERE waiter.pid = %s AND waiter.locktype = 'transactionid' AND NOT waiter.granted"""

PREPARED_TRANSACTIONS = """
SELECT gid, owner::text, database::text, prepared::text FROM pg_prepared_xacts ORDER BY prepared"""

# The unfinished transactions that may have changed a table, or one of its partitions. A transaction that changes rows
# holds a lock on the table until its commit is visible to others. This is also true for prepared transactions. A
# virtual transaction id identifies the transaction, because a backend never uses an id twice.
WRITERS = """
WITH RECURSIVE part AS (
    SELECT {oid}::oid AS oid
    UNION
    SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid
)
SELECT DISTINCT virtualtransaction
FROM pg_locks
WHERE locktype = 'relation' AND relation IN (SELECT oid FROM part) AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND mode IN ('RowExclusiveLock', 'AccessExclusiveLock')"""

# The position is read after the snapshot, so all commits that the snapshot sees are before this position. The insert
# position is used, because asynchronous commits are visible before they are flushed.
SNAPSHOT = """
SELECT txid_current_snapshot()::text, pg_current_wal_insert_lsn()::text,
       ((extract(epoch FROM now()) - 946684800) * 1000000)::int8, pg_size_bytes(current_setting('wal_segment_size')),
       current_setting('wal_block_size')::int"""

# The size of a table with its partitions. If other tables inherit from the table, their size is included as well,
# although their rows are not read. So the result is an upper bound.
SIZE = """
WITH RECURSIVE part AS (
    SELECT {oid}::oid AS oid
    UNION
    SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid
)
SELECT sum(pg_table_size(oid)) FROM part"""
