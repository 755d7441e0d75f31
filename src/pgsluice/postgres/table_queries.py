"""Parts of queries about published tables: their keys, their replica identities, and whether their owners are trusted.

Used by :mod:`.published_queries`. The parts refer to a row ``c`` of pg_class.

``tests/integration/test_snapshot_hostile.py`` covers this module.

https://www.postgresql.org/docs/current/catalogs.html
"""

# The columns of the index that is the replica identity, without INCLUDE columns (indclass has an entry for each column
# of the key, and none for INCLUDE columns). The array is empty if there is no such index.
IDENTITY = """ARRAY(
            SELECT unnest((i.indkey::int2[])[0:cardinality(i.indclass::oid[]) - 1])
            FROM pg_index i
            WHERE i.indrelid = c.oid
              AND CASE c.relreplident
                  WHEN 'd' THEN i.indisprimary AND i.indimmediate
                  WHEN 'i' THEN i.indisreplident
                  ELSE false
              END)"""

# The names of these columns.
IDENTITY_NAMES = """ARRAY(
                SELECT a.attname::text
                FROM pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum = ANY ({identity})
                ORDER BY 1)""".replace("{identity}", IDENTITY)

# The table itself and all its partitions, for WITH RECURSIVE.
PARTS = """part AS (
            SELECT c.oid, c.relkind, c.relowner
            UNION
            SELECT p.oid, p.relkind, p.relowner
            FROM part
            JOIN pg_inherits i ON part.relkind = 'p' AND i.inhparent = part.oid
            JOIN pg_class p ON p.oid = i.inhrelid
        )"""

# Sets of columns that make a key of all partitions unique in the whole table if the key includes such a set. These are
# the columns of each unique index, without INCLUDE columns (partial indexes and indexes of expressions do not count),
# and the columns by which the table and its partitions are partitioned, because equal values are in the same partition.
UNIQUE = """(
        WITH RECURSIVE {parts}, found AS (
            SELECT ARRAY(
                SELECT a.attname
                FROM pg_attribute a
                WHERE a.attrelid = c.oid
                  AND a.attnum = ANY ((i.indkey::int2[])[0:cardinality(i.indclass::oid[]) - 1])) AS names
            FROM pg_index i
            WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
              AND 0 <> ALL (i.indkey::int2[])
            UNION ALL
            SELECT ARRAY(
                SELECT DISTINCT a.attname
                FROM part
                JOIN pg_partitioned_table k ON k.partrelid = part.oid
                JOIN pg_attribute a ON a.attrelid = part.oid AND a.attnum = ANY (k.partattrs::int2[]))
            WHERE NOT EXISTS (
                SELECT FROM part
                JOIN pg_partitioned_table k ON k.partrelid = part.oid AND 0 = ANY (k.partattrs::int2[]))
        )
        SELECT json_agg(names) FROM found WHERE names <> '{}')""".replace("{parts}", PARTS)

# The key by which the rows of a table can be read. It is the key of a unique index. The index has to identify every
# row, and to sort the rows with the operators that a query uses by default. So the index must be neither partial nor
# deferrable, its columns must be NOT NULL, and it must use the columns' own collations and default operator classes.
# The operators have to be in pg_catalog, because the search_path is empty. For a type of an extension (citext), a query
# would therefore use the operators of another type, which sort differently. The queries that read rows write the values
# of keys as string literals. PostgreSQL cannot compare such a literal with a composite type (category C), or with a
# domain over an enum or a range. A domain has the category of its base type, so these domains have category E or R. In
# a comparison with a reg type (regclass), PostgreSQL takes a literal as an oid, not as a name. A column can have nulls
# even if it is NOT NULL, because such a constraint can be NOT VALID (since PostgreSQL 18). If there is a replica
# identity, it has to include the columns of the key, because for an old row, the stream sends only the columns of the
# replica identity.
KEY = """(
        SELECT json_agg(a.attname ORDER BY k.place)
        FROM pg_index i
        JOIN pg_class ic ON ic.oid = i.indexrelid
        JOIN pg_am am ON am.oid = ic.relam AND am.amname = 'btree'
        CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indclass::oid[], i.indcollation::oid[])
            WITH ORDINALITY AS k (attnum, operators, sorting, place)
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
        JOIN pg_opclass o ON o.oid = k.operators
        JOIN pg_type y ON y.oid = a.atttypid
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
          AND i.indpred IS NULL AND k.operators IS NOT NULL
        GROUP BY i.indexrelid, i.indclass, i.indisprimary, i.indisreplident
        HAVING count(*) = cardinality(i.indclass::oid[])
           AND NOT bool_or(y.typcategory = 'C' OR y.typtype = 'd' AND y.typcategory IN ('E', 'R'))
           AND NOT bool_or(o.opcintype = 'oid'::regtype AND 'oid'::regtype::oid NOT IN (y.oid, y.typbasetype))
           AND NOT EXISTS (
               SELECT FROM pg_constraint n
               WHERE n.conrelid = c.oid AND n.contype = 'n' AND NOT n.convalidated
                 AND n.conkey[1] = ANY (array_agg(a.attnum)))
           AND bool_and(a.attnotnull AND o.opcdefault AND o.opcnamespace = 'pg_catalog'::regnamespace
                        AND k.sorting = a.attcollation AND a.attname = ANY ({columns}::text[]))
           AND (cardinality({identity}) = 0 OR bool_and(a.attnum = ANY ({identity})))
        ORDER BY i.indisprimary DESC, i.indisreplident DESC, i.indexrelid
        LIMIT 1)""".replace("{identity}", IDENTITY)

# The owner of a table can run functions with the rights of the role that reads the table, because the planner
# evaluates functions in indexes and in statistics. This is also true for the owners of a root's partitions. The owner
# of the schema can rename the schema between two commands, so that a name refers to another table. So a table is
# trusted if superusers or the database's owner own the table, its partitions and its schema. A table is also trusted if
# a publication names the table itself or one of the roots above it.
TRUSTED = """(NOT EXISTS (
        WITH RECURSIVE {parts}, owner AS (
            SELECT relowner AS oid FROM part
            UNION
            SELECT nspowner FROM pg_namespace WHERE oid = c.relnamespace
        )
        SELECT FROM owner
        JOIN pg_roles o ON o.oid = owner.oid
        WHERE NOT o.rolsuper
          AND o.rolname <> 'pg_database_owner'
          AND o.oid <> (SELECT datdba FROM pg_database WHERE datname = current_database())
    ) OR EXISTS (
        WITH RECURSIVE whole AS (
            SELECT c.oid
            UNION
            SELECT i.inhparent
            FROM whole
            JOIN pg_inherits i ON i.inhrelid = whole.oid
            JOIN pg_class r ON r.oid = i.inhparent AND r.relkind = 'p'
        )
        SELECT FROM pg_publication_rel m
        JOIN pg_publication p ON p.oid = m.prpubid
        WHERE m.prrelid IN (SELECT oid FROM whole) AND p.pubname = ANY ({publications}::text[])
    ))""".replace("{parts}", PARTS)

# The columns of the replica identities of a root's partitions, as arrays of names. PostgreSQL uses these identities for
# old rows, and not that of the root. A partition without such columns is left out.
PARTITION_KEYS = """(
        WITH RECURSIVE {parts}, known AS (
            SELECT DISTINCT {names} AS names
            FROM part
            JOIN pg_class c ON c.oid = part.oid
            WHERE part.relkind <> 'p'
        )
        SELECT json_agg(names ORDER BY names)
        FROM known
        WHERE names <> '{}' AND c.relkind = 'p')""".replace("{parts}", PARTS).replace("{names}", IDENTITY_NAMES)

# Whether the events of a table have a key, unless a rule of the settings names another key. A table has no such key if
# it has only a unique index that is neither the primary key nor the replica identity.
HAS_EVENT_KEY = """(EXISTS (
        SELECT FROM pg_index i
        WHERE i.indrelid = c.oid
          AND (i.indisprimary AND i.indimmediate OR c.relreplident = 'i' AND i.indisreplident)
    ) OR {partition_keys} IS NOT NULL)""".replace("{partition_keys}", PARTITION_KEYS)
