"""Queries about the published tables: their names, their columns, and how their rows can be read.

``catalog`` and ``chunks`` run these queries with an empty search_path, like those in ``queries``. A query works on
every supported version, unless its name gives the first version.

``tests/integration/test_postgres_catalog.py`` covers this module.

https://www.postgresql.org/docs/current/catalogs.html
"""

from pgsluice.postgres.queries import ROW_FILTERS_SINCE
from pgsluice.postgres.table_queries import HAS_EVENT_KEY, IDENTITY, KEY, PARTITION_KEYS, TRUSTED, UNIQUE

GENERATED_COLUMNS_SINCE = 12_00_00

# pubtruncate exists only since version 11, and pubviaroot since version 13. On older versions, to_jsonb() gives null
# for them.
PUBLICATIONS = """
SELECT pubname::text, pubinsert, pubupdate, pubdelete,
       coalesce((to_jsonb(p) ->> 'pubtruncate')::boolean, false),
       coalesce((to_jsonb(p) ->> 'pubviaroot')::boolean, false)
FROM pg_publication p
WHERE pubname = ANY (%s::text[])
ORDER BY 1"""

# The tables that the publications carry: those that they include by name, by schema or with FOR ALL TABLES, and all
# partitions of these tables. The query reads only the tables of the catalog. Views and functions that examine a table,
# such as pg_publication_tables, wait for the table's locks, and a prepared ALTER TABLE may hold such a lock for days.
#
# If a publication publishes via the root (publish_via_partition_root), rows are sent under the names of those carried
# tables that are not partitions of another carried table. Otherwise rows are sent under the names of the carried tables
# that hold them.
_CARRIED = """
WITH RECURSIVE member AS (
    SELECT p.oid AS publication, coalesce((to_jsonb(p) ->> 'pubviaroot')::boolean, false) AS via_root,
           to_jsonb(p) ->> 'pubgencols' AS generated, p.pubupdate OR p.pubdelete AS old_rows, c.oid
    FROM pg_publication p
    JOIN pg_class c
      ON p.puballtables
      OR c.oid IN (SELECT prrelid FROM pg_publication_rel WHERE prpubid = p.oid)
      {schemas}
    WHERE p.pubname = ANY (%s::text[]) AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384 {only}
), carried AS (
    SELECT publication, via_root, generated, old_rows, oid, false AS is_partition FROM member
    UNION
    SELECT publication, via_root, generated, old_rows, i.inhrelid, true
    FROM carried
    JOIN pg_class c ON c.oid = carried.oid AND c.relkind = 'p'
    JOIN pg_inherits i ON i.inhparent = c.oid
)"""

# A condition that restricts the query to the publications that carry one table. A publication carries a table if it
# includes the table itself, or one of the roots above it.
_ANCESTRY = """AND c.oid IN (
        WITH RECURSIVE whole AS (
            SELECT {oid}::oid AS oid UNION SELECT i.inhparent FROM whole JOIN pg_inherits i ON i.inhrelid = whole.oid
        )
        SELECT oid FROM whole)"""

# Whether the replica identity of a table identifies its rows.
_HAS_IDENTITY = """c.relreplident = 'f' OR EXISTS (
           SELECT FROM pg_index i
           WHERE i.indrelid = c.oid AND i.indisvalid
             AND CASE c.relreplident
                 WHEN 'd' THEN i.indisprimary AND i.indimmediate
                 WHEN 'i' THEN i.indisreplident
                 ELSE false
             END)"""

# The table that holds a row decides which replica identity applies to the row. So a partition root is replaced by its
# leaves.
_PUBLISHED_TABLES = """
SELECT n.nspname::text, c.relname::text, c.relreplident::text,
       {has_identity},
       bool_or(carried.old_rows)
FROM carried
JOIN pg_class c ON c.oid = carried.oid AND c.relkind = 'r'
JOIN pg_namespace n ON n.oid = c.relnamespace
GROUP BY n.nspname, c.relname, c.relreplident, c.oid
ORDER BY 1, 2""".replace("{has_identity}", _HAS_IDENTITY)

# Tables by name, published or not, each with the tables that hold its rows: the table itself, or its partitions.
NAMED_TABLES = """
WITH RECURSIVE part AS (
    SELECT c.oid AS root, c.oid, c.relkind
    FROM unnest(%s::text[], %s::text[]) AS wanted (schema, name)
    JOIN pg_namespace n ON n.nspname = wanted.schema
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name AND c.relkind IN ('r', 'p')
    UNION
    SELECT part.root, p.oid, p.relkind
    FROM part
    JOIN pg_inherits i ON part.relkind = 'p' AND i.inhparent = part.oid
    JOIN pg_class p ON p.oid = i.inhrelid
)
SELECT rn.nspname::text, r.relname::text, n.nspname::text, c.relname::text, r.relpersistence = 'p', c.relkind = 'r',
       {has_identity},
       has_schema_privilege(n.oid, 'USAGE'), has_table_privilege(c.oid, 'SELECT')
FROM part
JOIN pg_class r ON r.oid = part.root
JOIN pg_namespace rn ON rn.oid = r.relnamespace
JOIN pg_class c ON c.oid = part.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY 1, 2, 3, 4""".replace("{has_identity}", _HAS_IDENTITY)

# The names of the tables that the publications carry, of both roots and partitions.
_CARRIED_NAMES = """
SELECT DISTINCT n.nspname::text, c.relname::text
FROM carried
JOIN pg_class c ON c.oid = carried.oid
JOIN pg_namespace n ON n.oid = c.relnamespace"""

# The roots under whose names rows are sent, and their partitions, with the replica identities of both.
_PARTITION_IDENTITIES = """, root AS (
    SELECT oid FROM carried WHERE via_root AND old_rows GROUP BY publication, oid HAVING NOT bool_or(is_partition)
), part AS (
    SELECT oid AS root, oid FROM root
    UNION
    SELECT part.root, i.inhrelid
    FROM part
    JOIN pg_class c ON c.oid = part.oid AND c.relkind = 'p'
    JOIN pg_inherits i ON i.inhparent = c.oid
), named AS (
    SELECT c.oid, n.nspname::text AS schema, c.relname::text AS name, c.relkind, c.relreplident::text AS identity,
           (SELECT coalesce(json_agg(a.attname ORDER BY a.attname), '[]')
            FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = ANY ({identity})) AS key,
           {unique} AS unique_keys
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid IN (SELECT root FROM part UNION SELECT oid FROM part)
)
SELECT r.schema, r.name, r.identity, r.key, r.unique_keys, p.schema, p.name, p.identity, p.key
FROM part
JOIN named r ON r.oid = part.root AND r.relkind = 'p'
JOIN named p ON p.oid = part.oid AND p.relkind = 'r'
ORDER BY 1, 2, 6, 7"""

# The columns that each publication sends for each table.
_SENT = """, published AS (
    SELECT publication, generated, {listed} AS listed, c.oid, c.relnamespace, c.relname, c.relreplident
    FROM carried
    JOIN pg_class c ON c.oid = carried.oid {only}
    GROUP BY publication, via_root, generated, c.oid, c.relnamespace, c.relname, c.relreplident, c.relkind
    HAVING CASE WHEN via_root THEN NOT bool_or(is_partition) ELSE c.relkind = 'r' END
), sent AS (
    SELECT c.publication, c.oid, n.nspname, c.relname, c.relreplident, a.attnum, a.attname, a.atttypid, a.atttypmod
    FROM published c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
     AND coalesce(a.attnum = ANY (c.listed), {as_a_rule})
)"""

# This query does not return the columns, because all tables together may have millions of columns. A table without
# columns is left out, because no rows of it are sent.
_PUBLISHED_NAMES = """
SELECT c.oid, n.nspname::text, c.relname::text, c.relnatts, {trusted}
FROM (SELECT DISTINCT oid FROM published) p
JOIN pg_class c ON c.oid = p.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
ORDER BY 2, 3"""

# The columns as Relation and Type messages describe them. For a domain, these messages give the domain's own OID, but
# the name of its base type.
_DESCRIBED = """, described AS (
    SELECT DISTINCT c.oid, c.nspname::text AS namespace, c.relname::text AS name, c.relreplident::text AS identity,
           c.attname::text AS "column", c.atttypid, base.namespace AS type_namespace, base.name AS type_name,
           c.atttypmod, c.attnum
    FROM sent c
    CROSS JOIN LATERAL (
        WITH RECURSIVE made_of AS (
            SELECT p.typbasetype, p.typnamespace, p.typname FROM pg_type p WHERE p.oid = c.atttypid
            UNION ALL
            SELECT p.typbasetype, p.typnamespace, p.typname FROM made_of JOIN pg_type p ON p.oid = made_of.typbasetype
        )
        SELECT s.nspname::text AS namespace, made_of.typname::text AS name
        FROM made_of JOIN pg_namespace s ON s.oid = made_of.typnamespace
        WHERE made_of.typbasetype = 0
    ) AS base
)"""

_PUBLISHED_COLUMNS = (
    _DESCRIBED
    + """
SELECT * FROM described ORDER BY namespace, name, attnum"""
)

_DIFFERING_COLUMNS = """
SELECT nspname::text, relname::text
FROM (SELECT nspname, relname, array_agg(attnum ORDER BY attnum) AS columns FROM sent GROUP BY publication, 1, 2) c
GROUP BY 1, 2
HAVING count(DISTINCT columns) > 1
ORDER BY 1, 2"""


# The facts that decide whether the rows of the published tables can be read. The query reads only tables of the
# catalog. If a publication publishes via the root, the right to read the root is enough to read its partitions.
_LOADABLE_TABLES = """
SELECT c.oid, n.nspname::text, c.relname::text,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'),
       row_security_active(c.oid), {trusted}, {has_event_key}, {key}
FROM (SELECT oid, array_agg(DISTINCT attname::text) AS columns FROM sent GROUP BY oid) sent
JOIN pg_class c ON c.oid = sent.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY 2, 3"""

# A row filter may use only columns of the replica identity, and a column list must have all of these columns. Otherwise
# the server refuses updates and deletes. The columns that a filter uses are read from its expression tree.
IDENTITY_CONFLICTS_SINCE_15 = r"""
WITH member AS (
    SELECT r.prrelid, r.prattrs::int2[] AS listed, r.prqual::text AS filter, p.pubname, c.relreplident,
           ARRAY(
               SELECT attnum
               FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)
               WHERE i.indrelid = c.oid AND k.place <= i.indnkeyatts  -- without INCLUDE columns
                 AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END
           ) AS identity
    FROM pg_publication_rel r
    JOIN pg_publication p ON p.oid = r.prpubid
    JOIN pg_class c ON c.oid = r.prrelid
    WHERE p.pubname = ANY (%s::text[]) AND (p.pubupdate OR p.pubdelete)
)
SELECT n.nspname::text, c.relname::text, m.pubname::text
FROM member m
JOIN pg_class c ON c.oid = m.prrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE m.relreplident <> 'f' AND EXISTS (
          SELECT FROM regexp_matches(m.filter, ':varattno (\d+)', 'g') AS used
          WHERE used[1]::int2 <> ALL (m.identity))
   OR m.listed IS NOT NULL AND (m.relreplident = 'f' OR NOT m.identity <@ m.listed)
ORDER BY 1, 2, 3"""

# Everything about a table that affects how its rows are read, as one JSON text. Any change of the table changes the
# text.
_SHAPE = """
SELECT json_build_object(
    'kind', c.relkind, 'schema', n.nspname, 'table', c.relname, 'identity', c.relreplident,
    'columns', (
        SELECT json_agg(json_build_array(
            d.attnum, d."column", d.atttypid::int8, d.type_namespace, d.type_name, d.atttypmod, a.xmin::text
        ) ORDER BY d.attnum)
        FROM described d JOIN pg_attribute a ON a.attrelid = d.oid AND a.attnum = d.attnum),
    'identity_columns', (
        SELECT json_agg(a.attname ORDER BY a.attnum)
        FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum = ANY ({identity})),
    'partition_keys', {partition_keys},
    'key', {key},
    'filter', {filter},
    'trusted', {trusted},
    'replaces', (
        SELECT bool_and(p.pubdelete AND coalesce((to_jsonb(p) ->> 'pubtruncate')::boolean, true))
        FROM pg_publication p
        WHERE p.pubname = ANY ({publications}::text[]))
)::text
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN (SELECT oid, array_agg("column") AS columns FROM described GROUP BY oid) sent ON sent.oid = c.oid""".replace(
    "{identity}", IDENTITY
)

# A row is sent if it passes the filter of at least one publication. A publication without a filter sends all rows. The
# view pg_publication_tables reads all tables of a publication and waits for the locks of each table. So it is used only
# for a table that has a filter.
_FILTER_SINCE_15 = """CASE WHEN EXISTS (
        SELECT FROM pg_publication_rel m WHERE m.prrelid = c.oid AND m.prqual IS NOT NULL
    ) THEN (
        SELECT CASE WHEN bool_and(t.rowfilter IS NOT NULL)
                    THEN string_agg('(' || t.rowfilter || ')', ' OR ' ORDER BY t.pubname) END
        FROM pg_publication_tables t
        WHERE t.pubname = ANY ({publications}::text[]) AND t.schemaname = n.nspname AND t.tablename = c.relname)
    END"""


def loadable_tables(server_version: int) -> str:
    """Return the query for the facts that decide whether the rows of the published tables can be read.

    Both parameters of the query are the list of publications.
    """
    trusted, key = TRUSTED.format(publications="%s"), KEY.format(columns="sent.columns")
    found = _LOADABLE_TABLES.format(trusted=trusted, has_event_key=HAS_EVENT_KEY, key=key)
    return _carried(server_version) + _sent(server_version) + found


def published_tables(server_version: int) -> str:
    """Return the query for the tables whose rows the publications carry."""
    return _carried(server_version) + _PUBLISHED_TABLES


def partition_identities(server_version: int) -> str:
    """Return the query for the replica identities of roots and of their partitions, if rows are sent via the root."""
    return _carried(server_version) + _PARTITION_IDENTITIES.replace("{identity}", IDENTITY).replace("{unique}", UNIQUE)


def carried_names(server_version: int) -> str:
    """Return the query for the names of the tables that the publications carry, of both roots and partitions."""
    return _carried(server_version) + _CARRIED_NAMES


def published_names(server_version: int) -> str:
    """Return the query for the tables under whose names rows are published.

    Both parameters of the query are the list of publications.
    """
    found = _PUBLISHED_NAMES.format(trusted=TRUSTED.format(publications="%s"))
    return _carried(server_version) + _sent(server_version) + found


def published_columns(server_version: int) -> str:
    """Return the query for the columns of some published tables. A table's columns are sorted by position.

    The query has two parameters: the list of publications, and the list of these tables' oids.
    """
    return _carried(server_version) + _sent(server_version, "AND c.oid = ANY (%s::oid[])") + _PUBLISHED_COLUMNS


def differing_columns(server_version: int) -> str:
    """Return the query for the tables for which the publications send different columns."""
    return _carried(server_version) + _sent(server_version) + _DIFFERING_COLUMNS


def _carried(server_version: int, only: str = "") -> str:
    of_schema = "OR c.relnamespace IN (SELECT pnnspid FROM pg_publication_namespace WHERE pnpubid = p.oid)"
    return _CARRIED.format(schemas=of_schema if server_version >= ROW_FILTERS_SINCE else "", only=only)


def _sent(server_version: int, only: str = "") -> str:
    listed = "(SELECT prattrs::int2[] FROM pg_publication_rel WHERE prpubid = publication AND prrelid = c.oid)"
    return _SENT.format(
        only=only,
        listed=listed if server_version >= ROW_FILTERS_SINCE else "NULL::int2[]",
        as_a_rule="a.attgenerated IN ('', c.generated)" if server_version >= GENERATED_COLUMNS_SINCE else "true",
    )


def shape(server_version: int, oid: int, publications: str) -> str:
    """Return the query for the shape of a published table. ``publications`` is an SQL array of publication names."""
    carried = _carried(server_version, _ANCESTRY.format(oid=oid)).replace("%s::text[]", publications)
    described = _sent(server_version, f"AND c.oid = {oid}") + _DESCRIBED
    has_filters = server_version >= ROW_FILTERS_SINCE
    found = _FILTER_SINCE_15.format(publications=publications) if has_filters else "NULL::text"
    key = KEY.format(columns="sent.columns")
    trusted = TRUSTED.format(publications=publications)
    return (
        carried
        + described
        + _SHAPE.format(
            key=key, filter=found, trusted=trusted, publications=publications, partition_keys=PARTITION_KEYS
        )
    )
