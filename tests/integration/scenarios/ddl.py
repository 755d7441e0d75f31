"""Scenarios in which tables are altered while their changes are streamed.

The stream does not contain DDL. A mirror learns the new shape of a table from the next row, so the scenarios update
every row after an ALTER.
"""

from collections.abc import Callable

from tests.support.replay import row_fields
from tests.support.scenario import Found, Scenario


def _keyed(found: Found) -> None:
    assert [event.key and event.key["id"] for event in found.events()] == [1, 2, 1, 2, 2]


def _shapes(*expected: list[str]) -> Callable[[Found], None]:
    """Return a check that the registered schemas have exactly these distinct lists of fields."""

    def check(found: Found) -> None:
        assert [list(names) for names in dict.fromkeys(map(tuple, found.fields()))] == list(expected)

    return check


def _widening(found: Found) -> None:
    """Check that the field of a widened column stays wide, even if the column becomes narrow again."""
    types = [
        {entry["name"]: entry["type"][1] for entry in row_fields(event.schema)}
        for event in found.events()
        if event.schema is not None
    ]
    assert [(kind["i"], kind["f"], kind["n"]["precision"]) for kind in types] == [
        *[("int", "float", 10)] * 2,
        *[("long", "double", 20)] * 4,
    ]


SCENARIOS = [
    Scenario(
        "add column",
        "Rows that are written after the column was added have the field, even in the same transaction.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text)",
        work="""
            INSERT INTO t VALUES (1, 'a');
            BEGIN;
            INSERT INTO t VALUES (2, 'b');
            ALTER TABLE t ADD COLUMN added int DEFAULT 7;
            INSERT INTO t VALUES (3, 'c', 8);
            UPDATE t SET v = v || '!';
            COMMIT;
        """,
        while_down="""
            UPDATE t SET v = 'down';
            ALTER TABLE t ADD COLUMN later text NOT NULL DEFAULT 'x';
            UPDATE t SET v = 'down again'
        """,
        ops={"t": "ccc" + "uuu" * 3},
        check=_shapes(["id", "v"], ["id", "v", "added"], ["id", "v", "added", "later"]),
    ),
    Scenario(
        "drop and add column",
        "A column that is added again gets its former field if the type is the same, and otherwise a new field.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text)",
        work="""
            INSERT INTO t VALUES (1, 'a'), (2, 'b');
            BEGIN;
            ALTER TABLE t DROP COLUMN v;
            UPDATE t SET id = id;
            ALTER TABLE t ADD COLUMN v text;
            UPDATE t SET v = 'again';
            ALTER TABLE t DROP COLUMN v, ADD COLUMN v int;
            UPDATE t SET v = 5;
            COMMIT;
            ALTER TABLE t DROP COLUMN v, ADD COLUMN v text;
            UPDATE t SET v = 'and again';
        """,
        ops={"t": "cc" + "uu" * 4},
        check=_shapes(["id", "v"], ["id"], ["id", "v__2"]),
    ),
    Scenario(
        "rename column",
        "A renamed column gets another field, and the mirror still has the same rows.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text, w text)",
        work="""
            INSERT INTO t VALUES (1, 'a', 'b'), (2, 'c', 'd');
            BEGIN;
            ALTER TABLE t RENAME v TO x;
            ALTER TABLE t RENAME w TO v;
            UPDATE t SET x = x || '!';
            COMMIT;
        """,
        ops={"t": "ccuu"},
        check=_shapes(["id", "v", "w"], ["id", "x", "v"]),
    ),
    Scenario(
        "rename key column",
        "A renamed key column gets another field in the row and in the key.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text)",
        work="""
            INSERT INTO t VALUES (1, 'a'), (2, 'b');
            ALTER TABLE t RENAME id TO number;
            UPDATE t SET v = 'A';
            UPDATE t SET number = 3 WHERE number = 1;
        """,
        ops={"t": "ccuudc"},
    ),
    Scenario(
        "widen types",
        "If all readers can read the wider type, the field keeps its name, gets the wider type, and stays wide.",
        setup="CREATE TABLE t (id int PRIMARY KEY, i int, f real, n numeric(10,2), s varchar(10))",
        work="""
            INSERT INTO t VALUES (1, 1, 1.1, 1.25, 'a'), (2, -2147483648, 16777216, 12345678.90, 'b');
            ALTER TABLE t ALTER i TYPE bigint, ALTER f TYPE double precision, ALTER n TYPE numeric(20,2);
            UPDATE t SET i = i + 8589934592;
            ALTER TABLE t ALTER s TYPE varchar(20);
            ALTER TABLE t ALTER i TYPE int USING 7, ALTER f TYPE real, ALTER n TYPE numeric(10,2);
            UPDATE t SET s = 'longer than before';
        """,
        ops={"t": "ccuuuu"},
        check=_widening,
    ),
    Scenario(
        "change types",
        "If the new type is not wider, the column gets a new field. Old values can still be read with their old type.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(10,2), d date)",
        work="""
            INSERT INTO t VALUES (1, '1', 1.25, '2020-01-01'), (2, '2', 2.50, NULL);
            ALTER TABLE t ALTER v TYPE int USING v::int, ALTER n TYPE numeric(12,4), ALTER d TYPE timestamp;
            UPDATE t SET v = v + 1;
            ALTER TABLE t ALTER v TYPE text, ALTER n TYPE numeric(10,2), ALTER d TYPE date;
            UPDATE t SET v = v || '!';
        """,
        ops={"t": "ccuuuu"},
        check=_shapes(["id", "v", "n", "d"], ["id", "v__2", "n__2", "d__2"]),
    ),
    Scenario(
        "change the key's type",
        "After the change, the key has the wider type, and identifies the same row.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text)",
        work="""
            INSERT INTO t VALUES (1, 'a'), (2, 'b');
            ALTER TABLE t ALTER id TYPE bigint;
            UPDATE t SET v = 'A';
            UPDATE t SET id = 9000000000 WHERE id = 1;
            DELETE FROM t WHERE id = 2;
        """,
        ops={"t": "ccuudcd"},
    ),
    Scenario(
        "change the identity",
        "Each change has the row images of the replica identity with which it was made, even within one transaction.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text, code text NOT NULL UNIQUE)",
        work="""
            BEGIN;
            INSERT INTO t VALUES (1, 'a', 'x');
            UPDATE t SET v = 'b';
            ALTER TABLE t REPLICA IDENTITY FULL;
            UPDATE t SET v = 'c';
            ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key;
            UPDATE t SET v = 'd';
            UPDATE t SET code = 'y';
            ALTER TABLE t REPLICA IDENTITY NOTHING;
            INSERT INTO t VALUES (2, 'a', 'z');
            ALTER TABLE t REPLICA IDENTITY DEFAULT;
            UPDATE t SET id = 10 WHERE id = 1;
            COMMIT;
        """,
        ops={"t": "cuuudccdc"},
    ),
    Scenario(
        "change the primary key",
        "The key of events always has the columns of the current primary key.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text, code text NOT NULL)",
        work="""
            INSERT INTO t VALUES (1, 'a', 'x'), (2, 'b', 'y');
            BEGIN;
            ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (code, id);
            UPDATE t SET v = 'A';
            COMMIT;
            ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (code);
            UPDATE t SET code = 'z' WHERE id = 1;
            DELETE FROM t WHERE id = 2;
        """,
        ops={"t": "ccuudcd"},
    ),
    Scenario(
        "rolled back",
        "DDL that is rolled back, in a transaction or after a savepoint, registers no schema.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text)",
        work="""
            BEGIN;
            ALTER TABLE t ADD COLUMN never int;
            INSERT INTO t VALUES (0, 'never', 1);
            ROLLBACK;
            INSERT INTO t VALUES (1, 'a');
            BEGIN;
            INSERT INTO t VALUES (2, 'b');
            SAVEPOINT s;
            ALTER TABLE t ADD COLUMN never int, ALTER v TYPE varchar(7);
            INSERT INTO t VALUES (3, 'never', 1);
            UPDATE t SET never = 2;
            ROLLBACK TO s;
            INSERT INTO t VALUES (3, 'c');
            SAVEPOINT s;
            ALTER TABLE t DROP COLUMN v;
            DELETE FROM t;
            ROLLBACK TO s;
            UPDATE t SET v = 'd' WHERE id = 3;
            COMMIT;
        """,
        ops={"t": "cccu"},
        check=_shapes(["id", "v"]),
    ),
    Scenario(
        "rename table",
        "A renamed table has another topic.",
        setup="CREATE TABLE t (id int PRIMARY KEY)",
        publication="FOR TABLE t",
        tables=["renamed"],
        work="""
            INSERT INTO t VALUES (1);
            BEGIN;
            DELETE FROM t;
            ALTER TABLE t RENAME TO renamed;
            INSERT INTO renamed VALUES (2);
            COMMIT;
        """,
        ops={"t": "cd", "renamed": "c"},
    ),
    Scenario(
        "drop and create table",
        "A new table of the same name has the same topic. Fields whose types differ get new names.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text, w int)",
        work="""
            INSERT INTO t VALUES (1, 'a', 1);
            BEGIN;
            DELETE FROM t;
            DROP TABLE t;
            CREATE TABLE t (v text PRIMARY KEY, id text, w int);
            ALTER PUBLICATION "drop and create table" ADD TABLE t;
            INSERT INTO t VALUES ('b', 'x', 2);
            COMMIT;
            UPDATE t SET id = 'y';
        """,
        ops={"t": "cdcu"},
        check=_shapes(["id", "v", "w"], ["v", "id__2", "w"]),
    ),
    Scenario(
        "drop table, identity full",
        "If a table is dropped before its changes are decoded, the catalog lacks it. Its events still have their key.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t REPLICA IDENTITY FULL",
        contents={"t": "SELECT 1 AS id, 'b'::text AS v"},
        tables=[],
        publication="FOR TABLE t",
        work="INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        while_down="""
            UPDATE t SET v = 'b';
            DELETE FROM t WHERE id = 2;
            DROP TABLE t;
        """,
        ops={"t": "ccuud"},
        check=_keyed,
    ),
    Scenario(
        "rewrites",
        "Commands that change no values cause no events: VACUUM FULL, CLUSTER, a new default, an index, a rewrite.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text)",
        work="""
            INSERT INTO t VALUES (1, 'a'), (2, 'b');
            VACUUM FULL t;
            CLUSTER t USING t_pkey;
            ALTER TABLE t ALTER v SET DEFAULT 'x', ALTER v SET NOT NULL, ADD CHECK (v <> '');
            CREATE INDEX ON t (v);
            ALTER TABLE t ALTER v TYPE varchar(30);
            COMMENT ON TABLE t IS 'silent';
            ANALYZE t;
            UPDATE t SET v = 'B' WHERE id = 2;
        """,
        ops={"t": "ccu"},
    ),
    Scenario(
        "values of an enum",
        "New and renamed labels need no new schema.",
        setup="CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE TABLE t (id int PRIMARY KEY, v mood)",
        work="""
            INSERT INTO t VALUES (1, 'sad');
            ALTER TYPE mood ADD VALUE 'ok' AFTER 'sad';
            INSERT INTO t VALUES (2, 'ok');
            ALTER TYPE mood RENAME VALUE 'happy' TO 'glad';
            INSERT INTO t VALUES (3, 'glad');
        """,
        ops={"t": "ccc"},
        check=_shapes(["id", "v"]),
    ),
]
