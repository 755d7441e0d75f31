"""Scenarios with names that are difficult for Avro, Kafka or SQL."""

from tests.support.scenario import Found, Scenario

STREET = 'Straße "ж" ☃.x'
COLUMNS = '"ID" int, id int, "naïve col" text, "1st" text, "a.b" text, _x0041_ text, "select" text, "😀" text'


def _fields(found: Found) -> None:
    (names,) = found.fields(STREET)
    assert names == [
        "ID",
        "id__2",  # many readers do not distinguish upper and lower case
        "na_x00EF_ve_x0020_col",
        "_x0031_st",
        "a_x002E_b",
        "_x005F_x0041_",
        "select",
        "_x1F600_",
    ]
    assert [event["table"] for event in found.events(STREET)] == [STREET] * 3
    assert [event.key for event in found.events(STREET)] == [{"ID": 1, "_x0031_st": "x"}] * 3


def _composite(found: Found) -> None:
    """Check that the key's columns have the order of the table, and not the order in the constraint."""
    assert [event.key for event in found.events()][-2:] == [{"a": "x", "B": 2}, {"a": "y", "B": 2}]


def _is_id(found: Found) -> None:
    assert [event.key for event in found.events()] == [{"id": 1}] * 2


SCENARIOS = [
    Scenario(
        'Names "odd" ☃ é',
        "Each name can be decoded, and different names are never encoded as the same name.",
        setup=f"""
            CREATE TABLE "Straße ""ж"" ☃.x" ({COLUMNS}, PRIMARY KEY ("1st", "ID"));
            CREATE TABLE "a.b" (id int PRIMARY KEY);
            CREATE TABLE "a_x002E_b" (id int PRIMARY KEY)
        """,
        tables=[STREET, "a.b", "a_x002E_b"],
        work="""
            INSERT INTO "Straße ""ж"" ☃.x" VALUES (1, 2, 'ü', 'x', 'y', 'z', NULL, '☃');
            UPDATE "Straße ""ж"" ☃.x" SET "😀" = 'ä', "naïve col" = NULL, id = 3;
            DELETE FROM "Straße ""ж"" ☃.x";
            INSERT INTO "a.b" VALUES (1);
            INSERT INTO "a_x002E_b" VALUES (2);
        """,
        ops={STREET: "cud", "a.b": "c", "a_x002E_b": "c"},
        check=_fields,
    ),
    Scenario(
        "names of our own",
        "A column may have the name of a field or record type of the envelope, or of a field that pgsluice generates.",
        setup="""
            CREATE TABLE t (
                id int PRIMARY KEY, op int, before date, after date, raw text, "Value" int, "Key" int, "Envelope" int,
                "before.after" date, "ID" int, id__2 int
            );
            ALTER TABLE t REPLICA IDENTITY FULL
        """,
        work="""
            INSERT INTO t VALUES (1, 2, 'infinity', '-infinity', 'x', 3, 4, 5, 'infinity', 6, 7);
            UPDATE t SET before = '-infinity', "ID" = 8;
            UPDATE t SET "before.after" = NULL, id__2 = 9;
            DELETE FROM t;
        """,
        ops={"t": "cuud"},
    ),
    Scenario(
        "composite key",
        "A key's columns have the order of the table, even if the constraint names them in another order.",
        setup='CREATE TABLE t (v int, a text, "B" int, PRIMARY KEY ("B", a))',
        work="""
            INSERT INTO t VALUES (0, 'x', 1), (0, 'x', 2), (0, 'y', 1);
            UPDATE t SET v = 1 WHERE "B" = 1;
            DELETE FROM t WHERE "B" = 1 AND a = 'x';
            UPDATE t SET a = 'y' WHERE "B" = 2;
        """,
        ops={"t": "cccuuddc"},
        check=_composite,
    ),
    Scenario(
        "key with included columns",
        "Columns that an index only includes are not part of the key.",
        since=11,
        lacking="INCLUDE came with PostgreSQL 11",
        setup="""
            CREATE TABLE t (id int, v text, PRIMARY KEY (id) INCLUDE (v));
            ALTER TABLE t REPLICA IDENTITY FULL
        """,
        work="INSERT INTO t VALUES (1, 'a'); UPDATE t SET v = 'b'",
        check=_is_id,
    ),
    Scenario(
        "identity columns and sequences",
        "Values that the server generates arrive like all others.",
        setup="CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, s serial, v text DEFAULT 'x')",
        work="INSERT INTO t (v) VALUES (DEFAULT), ('y'); DELETE FROM t WHERE id = 1",
        ops={"t": "ccd"},
    ),
]
