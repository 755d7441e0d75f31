"""Scenarios for features of publications: partitions, row filters, column lists, generated columns, operations."""

from tests.support.replay import UNKNOWN
from tests.support.scenario import Found, Scenario

BY_REGION = """
    CREATE TABLE t (id int, region text, v text) PARTITION BY LIST (region);
    CREATE TABLE t_eu PARTITION OF t FOR VALUES IN ('eu');
    CREATE TABLE t_us PARTITION OF t FOR VALUES IN ('us');
    ALTER TABLE t_eu ADD PRIMARY KEY (id, region);
    ALTER TABLE t_us ADD PRIMARY KEY (id, region)
"""

TREE = """
    CREATE TABLE t (id int, region text, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
    CREATE TABLE t_eu PARTITION OF t FOR VALUES IN ('eu');
    CREATE TABLE t_us PARTITION OF t FOR VALUES IN ('us') PARTITION BY RANGE (id);
    CREATE TABLE t_us_low PARTITION OF t_us FOR VALUES FROM (0) TO (100);
    CREATE TABLE t_us_high PARTITION OF t_us FOR VALUES FROM (100) TO (1000)
"""

TREE_WORK = """
    INSERT INTO t VALUES (1, 'eu', 'a'), (2, 'us', 'b'), (200, 'us', 'c');
    UPDATE t SET v = v || '!';
    UPDATE t SET region = 'eu' WHERE id = 2;
    UPDATE t SET id = 150 WHERE id = 200;
    UPDATE t SET id = 50 WHERE id = 150;
    DELETE FROM t WHERE id = 1;
"""

GENERATED = "CREATE TABLE t (id int PRIMARY KEY, v int, twice int GENERATED ALWAYS AS (v * 2) STORED)"

FILTERED = "CREATE TABLE t (id int, keep bool, big text, PRIMARY KEY (id, keep))"


def _unchanged_insert(found: Found) -> None:
    """Check which values were not sent. An update makes a row match the filter, but does not change ``big``."""
    assert [event["unchanged"] for event in found.events()] == [[], [], ["big"], [], []]


def _complete(found: Found) -> None:
    assert [event["unchanged"] for event in found.events()] == [[]] * 7
    assert [len(value) for value in found.values("big")] == [9000, 1, 9000, 9000]


def _moved_and_entered(found: Found) -> None:
    assert [event["unchanged"] for event in found.events()] == [[], ["big"], [], ["big"], []]
    assert [event["before_image"] for event in found.events()] == ["none", "none", "key", "key", "key"]


def _one_key(found: Found) -> None:
    assert {tuple(event.key) for event in found.events() if event.key} == {("id", "region")}


def _shapes(found: Found) -> None:
    assert found.fields() == [["id", "w"], ["id", "v"]]


def _no_generated(found: Found) -> None:
    assert found.fields() == [["id", "v"]]


def _generated(found: Found) -> None:
    assert found.fields() == [["id", "v", "stored", "big"]]
    assert found.events()[-1]["unchanged"] == ["big"]


SCENARIOS = [
    Scenario(
        "partitions as tables",
        "Partitions that are published individually behave like other tables.",
        setup=BY_REGION,
        tables=["t_eu", "t_us"],
        work="""
            INSERT INTO t VALUES (1, 'eu', 'a'), (2, 'us', 'b');
            UPDATE t SET v = v || '!';
            DELETE FROM t WHERE id = 1;
        """,
        ops={"t_eu": "cud", "t_us": "cu", "t": ""},
    ),
    Scenario(
        "rows that change their partition",
        "A row that moves to another partition is deleted from one table and inserted into the other.",
        since=11,
        lacking="rows can change their partition from PostgreSQL 11 on",
        setup=BY_REGION,
        tables=["t_eu", "t_us"],
        work="""
            INSERT INTO t VALUES (1, 'eu', 'a'), (2, 'us', 'b');
            UPDATE t SET region = 'us' WHERE id = 1;
        """,
        ops={"t_eu": "cd", "t_us": "cc"},
    ),
    Scenario(
        "partitions of a published table",
        "Rows belong to the leaf partitions, and a truncate of the root arrives for all of them.",
        since=13,
        lacking="partitioned tables can be published from PostgreSQL 13 on",
        setup=TREE,
        publication="FOR TABLE t",
        tables=["t_eu", "t_us_low", "t_us_high"],
        work=TREE_WORK,
        while_down="""
            TRUNCATE t;
            INSERT INTO t VALUES (7, 'eu', 'new');
            TRUNCATE t_us_low;
        """,
        ops={"t": "", "t_eu": "cucdtc", "t_us_low": "cud" + "c" + "tt", "t_us_high": "cu" + "dc" + "d" + "t"},
    ),
    Scenario(
        "partitions via the root",
        "All rows belong to the root, even those of a partition that was attached later with another column order.",
        since=13,
        lacking="publish_via_partition_root came with PostgreSQL 13",
        setup=TREE,
        publication="FOR TABLE t WITH (publish_via_partition_root)",
        work=f"""
            {TREE_WORK}
            CREATE TABLE t_asia (dropped int, v text, region text NOT NULL, id int NOT NULL);
            ALTER TABLE t_asia DROP COLUMN dropped;
            ALTER TABLE t ATTACH PARTITION t_asia FOR VALUES IN ('asia');
            INSERT INTO t VALUES (9, 'asia', 'z');
            UPDATE t SET v = 'Z' WHERE id = 9;
            UPDATE t SET region = 'eu' WHERE id = 9;
        """,
        while_down="""
            TRUNCATE t;
            INSERT INTO t VALUES (7, 'eu', 'new');
        """,
        ops={"t": "ccc" + "uuu" + "dc" * 3 + "d" + "cudc" + "tc", "t_eu": "", "t_asia": ""},
        check=_one_key,
    ),
    Scenario(
        "inheritance",
        "A child table is a separate table.",
        setup="""
            CREATE TABLE t (id int PRIMARY KEY, v text);
            CREATE TABLE child (extra int, PRIMARY KEY (id)) INHERITS (t)
        """,
        tables=["t", "child"],
        publication="FOR TABLE t",
        contents={"t": 'SELECT * FROM ONLY "inheritance".t'},
        work="INSERT INTO t VALUES (1, 'a'); INSERT INTO child VALUES (2, 'b', 3); UPDATE t SET v = 'c'",
        ops={"t": "cu", "child": "cu"},
    ),
    Scenario(
        "some operations",
        "Operations that are not published do not change the mirror.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text)",
        publication="FOR TABLE t WITH (publish = 'insert, update')",
        work="""
            INSERT INTO t VALUES (1, 'a'), (2, 'b');
            UPDATE t SET v = 'A' WHERE id = 1;
            DELETE FROM t WHERE id = 2;
        """,
        contents={"t": "SELECT * FROM (VALUES (1, 'A'), (2, 'b')) AS v (id, v)"},
        ops={"t": "ccu"},
    ),
    Scenario(
        "tables come and go",
        "Tables are added to the publication and dropped from it while changes are written.",
        setup="CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE late (id int PRIMARY KEY)",
        publication="FOR TABLE t",
        work="""
            INSERT INTO t VALUES (1);
            INSERT INTO late VALUES (1);
            ALTER PUBLICATION "tables come and go" SET TABLE late;
            INSERT INTO t VALUES (2);
            INSERT INTO late VALUES (2);
        """,
        contents={"t": "SELECT 1 AS id", "late": "SELECT 2 AS id"},
        ops={"t": "c", "late": "c"},
    ),
    Scenario(
        "row filter",
        "A row that begins to match is inserted. A row that ceases to match is deleted. A truncate affects all rows.",
        since=15,
        lacking="row filters came with PostgreSQL 15",
        setup="CREATE TABLE t (id int PRIMARY KEY, v int); ALTER TABLE t REPLICA IDENTITY FULL",
        publication="FOR TABLE t WHERE (v > 10)",
        work="""
            INSERT INTO t VALUES (1, 5), (2, 15), (3, NULL);
            UPDATE t SET v = 20 WHERE id = 1;
            UPDATE t SET v = v + 1;
            UPDATE t SET v = 0 WHERE id = 2;
            UPDATE t SET v = 1 WHERE id = 2;
            DELETE FROM t WHERE id = 2;
        """,
        while_down="TRUNCATE t; INSERT INTO t VALUES (4, 40), (5, 5)",
        contents={"t": 'SELECT * FROM "row filter".t WHERE v > 10'},
        ops={"t": "cc" + "uu" + "d" + "tc"},
    ),
    Scenario(
        "row filter and toast",
        "If a row begins to match, its update becomes an insert, which can lack an unchanged large value.",
        since=15,
        lacking="row filters came with PostgreSQL 15",
        setup=f"{FILTERED}; ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        publication="FOR TABLE t WHERE (keep)",
        work="""
            INSERT INTO t VALUES (1, false, repeat('x', 9000)), (2, true, repeat('y', 9000)), (3, true, 'z');
            UPDATE t SET keep = true WHERE id = 1;
            UPDATE t SET keep = false WHERE id > 1;
        """,
        contents={"t": f"SELECT 1 AS id, true AS keep, '{UNKNOWN}'::text AS big"},
        ops={"t": "cccdd"},
        check=_unchanged_insert,
    ),
    Scenario(
        "row filter and toast, identity full",
        "The old row has the values that the new row lacks, even if the old row did not match the filter.",
        since=15,
        lacking="row filters came with PostgreSQL 15",
        setup=f"{FILTERED}; ALTER TABLE t ALTER big SET STORAGE EXTERNAL; ALTER TABLE t REPLICA IDENTITY FULL",
        publication="FOR TABLE t WHERE (keep)",
        work="""
            INSERT INTO t VALUES (1, false, repeat('x', 9000)), (2, true, repeat('y', 9000)), (3, true, 'z');
            UPDATE t SET keep = true WHERE id = 1;
            UPDATE t SET id = 4 WHERE id = 2;
            UPDATE t SET keep = false WHERE id > 2;
            UPDATE t SET id = 5 WHERE id = 4;
        """,
        contents={"t": 'SELECT * FROM "row filter and toast, identity full".t WHERE keep'},
        ops={"t": "ccc" + "dc" + "dd"},
        check=_complete,
    ),
    Scenario(
        "row filter and toast, identity index",
        "As with the default identity, an update that becomes an insert can lack an unchanged large value.",
        since=15,
        lacking="row filters came with PostgreSQL 15",
        setup="""
            CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL UNIQUE, big text);
            ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
            ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key
        """,
        publication="FOR TABLE t WHERE (code > 'm')",
        work="""
            INSERT INTO t VALUES (1, 'a', repeat('x', 9000)), (2, 'n', repeat('y', 9000));
            UPDATE t SET code = 'z' WHERE id = 1;
            UPDATE t SET code = 'o' WHERE id = 2;
            UPDATE t SET code = 'b' WHERE id = 2;
        """,
        contents={"t": f"SELECT 1 AS id, 'z'::text AS code, '{UNKNOWN}'::text AS big"},
        ops={"t": "c" + "c" + "dc" + "d"},
        check=_moved_and_entered,
    ),
    Scenario(
        "column list",
        "Columns outside the list do not arrive, but an update that changes only them still causes an event.",
        since=15,
        lacking="column lists came with PostgreSQL 15",
        setup="CREATE TABLE t (secret text, id int PRIMARY KEY, v int, w int)",
        publication="FOR TABLE t (w, id)",
        work="""
            INSERT INTO t VALUES ('s', 1, 2, 3);
            UPDATE t SET v = 4;
            ALTER PUBLICATION "column list" SET TABLE t (id, v);
            UPDATE t SET w = 5;
            ALTER TABLE t ADD COLUMN more int;
            UPDATE t SET more = 6;
        """,
        contents={"t": 'SELECT id, v FROM "column list".t'},
        ops={"t": "cuuu"},
        check=_shapes,
    ),
    Scenario(
        "tables in schema",
        "All tables of the schema are published, including those that are created later.",
        since=15,
        lacking="publications of schemas came with PostgreSQL 15",
        setup="CREATE TABLE t (id int PRIMARY KEY)",
        publication='FOR TABLES IN SCHEMA "tables in schema"',
        tables=["t", "later"],
        work="""
            INSERT INTO t VALUES (1);
            BEGIN;
            CREATE TABLE later (id int PRIMARY KEY, v text);
            INSERT INTO later VALUES (1, 'a');
            COMMIT;
            UPDATE later SET v = 'b';
        """,
        ops={"t": "c", "later": "cu"},
    ),
    Scenario(
        "generated columns",
        "Generated columns are sent only if the publication includes them.",
        since=12,
        lacking="generated columns came with PostgreSQL 12",
        setup=GENERATED,
        contents={"t": 'SELECT id, v FROM "generated columns".t'},
        work="INSERT INTO t VALUES (1, 1), (2, 2); UPDATE t SET v = 3 WHERE id = 1; DELETE FROM t WHERE id = 2",
        ops={"t": "ccud"},
        check=_no_generated,
    ),
    Scenario(
        "generated columns, identity full",
        "The old row also lacks generated columns.",
        since=12,
        until=17,
        lacking="generated columns came with PostgreSQL 12, and 18 refuses such updates",
        setup=f"{GENERATED}; ALTER TABLE t REPLICA IDENTITY FULL",
        contents={"t": 'SELECT id, v FROM "generated columns, identity full".t'},
        work="INSERT INTO t VALUES (1, 1), (2, 2); UPDATE t SET v = 3 WHERE id = 1; DELETE FROM t WHERE id = 2",
        ops={"t": "ccud"},
        check=_no_generated,
    ),
    Scenario(
        "generated columns, published",
        "Stored generated columns arrive like others. Virtual ones are never sent.",
        since=18,
        lacking="publish_generated_columns came with PostgreSQL 18",
        setup="""
            CREATE TABLE t (
                id int PRIMARY KEY,
                v int,
                stored int GENERATED ALWAYS AS (v * 2) STORED,
                virtual int GENERATED ALWAYS AS (v * 3) VIRTUAL,
                big text GENERATED ALWAYS AS (repeat(id::text, 9000)) STORED
            );
            ALTER TABLE t ALTER big SET STORAGE EXTERNAL
        """,
        publication="FOR TABLE t WITH (publish_generated_columns = stored)",
        contents={"t": 'SELECT id, v, stored, big FROM "generated columns, published".t'},
        work="INSERT INTO t VALUES (1, 1), (2, 2); UPDATE t SET v = 3 WHERE id = 1",
        ops={"t": "ccu"},
        check=_generated,
    ),
]
