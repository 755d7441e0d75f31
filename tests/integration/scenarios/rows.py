"""Scenarios with changes of rows for each replica identity. They check the row images and the key of each event."""

from collections.abc import Callable
from typing import Any

from tests.support.scenario import Found, Scenario

BIG = "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 300) AS g)"
"""A value of 9,600 characters. With storage EXTERNAL, it is stored out of line, and is not sent if it is unchanged."""

BIG_LENGTH = 9600

TOASTED = "id int PRIMARY KEY, v int, big text, code text NOT NULL UNIQUE"


def _keys(*expected: dict[str, Any] | None) -> Callable[[Found], None]:
    def check(found: Found) -> None:
        assert [event.key for event in found.events()] == list(expected)

    return check


def _unchanged(*expected: list[str]) -> Callable[[Found], None]:
    def check(found: Found) -> None:
        assert [event["unchanged"] for event in found.events()] == list(expected)

    return check


def _images(found: Found) -> list[str]:
    return [event["before_image"] for event in found.events()]


def _key_images(found: Found) -> None:
    assert _images(found) == ["none", "none", "none", "none", "key", "key", "key"]
    gone, moved = found.events()[-2:]
    assert (gone.key, moved.key) == ({"id": 3}, {"id": 4})
    assert gone["flags"] == moved["flags"] == ["key_change"]
    assert moved["before"] == {"id": 3, "v": None}
    assert moved["after"] == {"id": 4, "v": "c"}


def _full_images(found: Found) -> None:
    assert _images(found) == ["none", "none", "full", "full", "full", "full"]
    assert [event["before"] for event in found.events()[2:]] == [
        {"id": 1, "v": "a"},
        {"id": 2, "v": None},
        {"id": 1, "v": "A"},
        {"id": 1, "v": "A"},
    ]
    _keys({"id": 1}, {"id": 2}, {"id": 1}, {"id": 2}, {"id": 1}, {"id": 5})(found)


def _index_images(found: Found) -> None:
    assert _images(found) == ["none", "none", "none", "key", "key", "key"]
    _keys(*({"code": code} for code in ("x", "y", "x", "y", "x", "z")))(found)


def _no_keys(found: Found) -> None:
    assert all(event.key is None for event in found.events())
    assert {event.partition for event in found.events()} == {0}


def _old_values_fill(found: Found) -> None:
    _unchanged(*[[]] * 6)(found)
    assert [len(value) for value in found.values("big")] == [BIG_LENGTH] * 3 + [5, BIG_LENGTH]


def _toasted_key(found: Found) -> None:
    _unchanged([], [], [], [], [])(found)
    assert _images(found) == ["none", "key", "key", "key", "key"]
    assert {len(event.key["k"]) for event in found.events() if event.key} == {100_000, 100_001}


def _marked_and_unchanged(found: Found) -> None:
    assert [(event["unchanged"], list(event["raw"])) for event in found.events()] == [
        ([], ["grid"]),
        (["grid"], []),
        ([], []),
        (["grid"], []),
    ]
    assert [(event["unchanged"], sorted(event["raw"])) for event in found.events("full_t")] == [
        ([], ["grid"]),
        ([], ["before.grid", "grid"]),
        ([], ["before.grid"]),
        ([], ["before.grid", "grid"]),
    ]


SCENARIOS = [
    Scenario(
        "identity default",
        "Updates contain nothing of the old row. Deletes and changes of the key contain the old key.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text)",
        work="""
            INSERT INTO t VALUES (1, 'a'), (2, NULL), (3, 'c');
            UPDATE t SET v = 'A' WHERE id = 1;
            DELETE FROM t WHERE id = 2;
            UPDATE t SET id = 4 WHERE id = 3;
        """,
        ops={"t": "cccuddc"},
        check=_key_images,
    ),
    Scenario(
        "identity full",
        "Events contain the whole old row, and the key is still the primary key.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t REPLICA IDENTITY FULL",
        work="""
            INSERT INTO t VALUES (1, 'a'), (2, NULL);
            UPDATE t SET v = 'A' WHERE id = 1;
            DELETE FROM t WHERE id = 2;
            UPDATE t SET id = 5 WHERE id = 1;
        """,
        ops={"t": "ccuddc"},
        check=_full_images,
    ),
    Scenario(
        "identity full, no key",
        "Rows that cannot be distinguished have no key, and all are in one partition.",
        setup="CREATE TABLE t (a int, b text); ALTER TABLE t REPLICA IDENTITY FULL",
        work="""
            INSERT INTO t VALUES (1, 'x'), (1, 'x'), (1, 'x'), (2, NULL), (NULL, NULL);
            DELETE FROM t WHERE ctid = (SELECT min(ctid::text)::tid FROM t);
            UPDATE t SET b = 'y' WHERE ctid = (SELECT min(ctid::text)::tid FROM t);
            UPDATE t SET a = NULL WHERE a = 2;
        """,
        ops={"t": "cccccduu"},
        check=_no_keys,
    ),
    Scenario(
        "identity full, deferrable key",
        "Two rows may have the same deferrable key for a moment, so this key is not used.",
        setup="CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, v text); ALTER TABLE t REPLICA IDENTITY FULL",
        work="""
            INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c');
            UPDATE t SET id = id + 1;
            UPDATE t SET id = CASE id WHEN 2 THEN 3 ELSE 2 END WHERE id < 4;
        """,
        check=_no_keys,
    ),
    Scenario(
        "identity index",
        "The key has the columns of the index, not those of the primary key.",
        setup="""
            CREATE TABLE t (id int PRIMARY KEY, v text, code text NOT NULL UNIQUE);
            ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key
        """,
        work="""
            INSERT INTO t VALUES (1, 'a', 'x'), (2, 'b', 'y');
            UPDATE t SET v = 'A', id = 9 WHERE code = 'x';
            DELETE FROM t WHERE code = 'y';
            UPDATE t SET code = 'z' WHERE code = 'x';
        """,
        ops={"t": "ccuddc"},
        check=_index_images,
    ),
    Scenario(
        "identity nothing",
        "PostgreSQL sends only inserts. The key is the primary key.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t REPLICA IDENTITY NOTHING",
        work="INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        ops={"t": "cc"},
        check=_keys({"id": 1}, {"id": 2}),
    ),
    Scenario(
        "no identity",
        "Inserts into a table without a primary key have no key, and are in one partition.",
        setup="CREATE TABLE t (id int, v text)",
        work="INSERT INTO t VALUES (1, 'a'), (1, 'a'), (NULL, NULL)",
        ops={"t": "ccc"},
        check=_no_keys,
    ),
    Scenario(
        "no columns",
        "A row can have no columns.",
        setup="CREATE TABLE t ()",
        work="INSERT INTO t DEFAULT VALUES",
        ops={"t": "c"},
    ),
    Scenario(
        "upserts",
        "ON CONFLICT causes an insert or an update. Updates to equal values are events. Updates of no rows are not.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v int)",
        work="""
            INSERT INTO t SELECT g, 0 FROM generate_series(1, 3) AS g;
            INSERT INTO t VALUES (3, 5), (4, 5) ON CONFLICT (id) DO UPDATE SET v = excluded.v;
            INSERT INTO t VALUES (3, 6) ON CONFLICT DO NOTHING;
            UPDATE t SET v = 9 WHERE false;
            UPDATE t SET v = v WHERE id = 1;
        """,
        ops={"t": "cccucu"},
    ),
    Scenario(
        "merge",
        "MERGE causes an insert, an update or a delete for each row.",
        since=15,
        lacking="MERGE came with PostgreSQL 15",
        setup="CREATE TABLE t (id int PRIMARY KEY, v int)",
        work="""
            INSERT INTO t VALUES (1, 1), (2, 2);
            MERGE INTO t USING (VALUES (1), (2), (3)) AS s (id) ON t.id = s.id
                WHEN MATCHED AND t.id = 1 THEN DELETE
                WHEN MATCHED THEN UPDATE SET v = 0
                WHEN NOT MATCHED THEN INSERT VALUES (s.id, 9);
        """,
        ops={"t": "ccduc"},
    ),
    Scenario(
        "toast, identity default",
        "An unchanged out-of-line value is listed in the field `unchanged`, so a mirror keeps the old value.",
        setup=f"CREATE TABLE t ({TOASTED}); ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        work=f"""
            INSERT INTO t VALUES (1, 0, {BIG}, 'x'), (2, 0, {BIG}, 'y');
            UPDATE t SET v = 1 WHERE id = 1;
            UPDATE t SET big = 'small' WHERE id = 1;
            UPDATE t SET v = 2 WHERE id = 1;
        """,
        while_down="UPDATE t SET v = 3 WHERE id = 2",
        after_restart="UPDATE t SET v = 4 WHERE id = 2",
        ops={"t": "ccuuuuu"},
        check=_unchanged([], [], ["big"], [], [], ["big"], ["big"]),
    ),
    Scenario(
        "toast, identity index",
        "Unchanged values are listed in the field `unchanged`, as with the default identity.",
        setup=f"""
            CREATE TABLE t ({TOASTED});
            ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
            ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key
        """,
        work=f"""
            INSERT INTO t VALUES (1, 0, {BIG}, 'x');
            UPDATE t SET v = 1;
            UPDATE t SET code = 'y';
        """,
        ops={"t": "cudc"},
        check=_unchanged([], ["big"], [], ["big"]),
    ),
    Scenario(
        "toast, identity full",
        "The old row has the unchanged value, which completes the new row.",
        setup=f"""
            CREATE TABLE t ({TOASTED});
            ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
            ALTER TABLE t REPLICA IDENTITY FULL
        """,
        work=f"""
            INSERT INTO t VALUES (1, 0, {BIG}, 'x');
            UPDATE t SET v = 1;
            UPDATE t SET id = 2;
            UPDATE t SET big = 'small';
            UPDATE t SET big = {BIG};
        """,
        ops={"t": "cudcuu"},
        check=_old_values_fill,
    ),
    Scenario(
        "toast, key changes",
        "An unchanged value that was sent under the old key moves to the row with the new key.",
        setup=f"CREATE TABLE t ({TOASTED}); ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        work=f"""
            INSERT INTO t VALUES (1, 0, {BIG}, 'x'), (9, 0, {BIG} || '!', 'y');
            UPDATE t SET id = 2 WHERE id = 1;
            BEGIN;
            UPDATE t SET id = 3 WHERE id = 2;
            UPDATE t SET id = 4 WHERE id = 3;
            UPDATE t SET v = 1 WHERE id = 4;
            UPDATE t SET id = id + 10;
            INSERT INTO t VALUES (1, 7, {BIG}, 'z');
            COMMIT;
        """,
        ops={"t": "cc" + "dc" + "dcdcu" + "dcdc" + "c"},
    ),
    Scenario(
        "toast, keys swapped",
        "When rows swap their keys, each unchanged value stays with its row.",
        setup=f"CREATE TABLE t ({TOASTED}); ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        work=f"""
            INSERT INTO t VALUES (1, 0, {BIG} || 'x', 'x'), (2, 0, {BIG} || 'y', 'y');
            BEGIN;
            UPDATE t SET id = -1 WHERE id = 1;
            UPDATE t SET id = 1 WHERE id = 2;
            UPDATE t SET id = 2 WHERE id = -1;
            COMMIT;
        """,
        ops={"t": "cc" + "dc" * 3},
    ),
    Scenario(
        "toast, identity nothing",
        "Updates are not published, so a mirror keeps the inserted rows.",
        setup=f"""
            CREATE TABLE t ({TOASTED});
            ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
            ALTER TABLE t REPLICA IDENTITY NOTHING
        """,
        publication="FOR TABLE t WITH (publish = 'insert')",
        work=f"INSERT INTO t VALUES (1, 0, {BIG}, 'x'); UPDATE t SET v = 1; INSERT INTO t VALUES (2, 0, {BIG}, 'y')",
        contents={"t": f"SELECT * FROM (VALUES (1, 0, {BIG}, 'x'), (2, 0, {BIG}, 'y')) AS t (id, v, big, code)"},
        ops={"t": "cc"},
        check=_unchanged([], []),
    ),
    Scenario(
        "toast, keys of a rule",
        "An update changes the key that tables.rules selects. The old row has the value that the new row lacks.",
        setup=f"""
            CREATE TABLE t ({TOASTED});
            ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
            ALTER TABLE t REPLICA IDENTITY FULL
        """,
        rules=[{"match": "t", "keys": ["code"]}],
        work=f"""
            INSERT INTO t VALUES (1, 0, {BIG}, 'x');
            UPDATE t SET id = 2;
            UPDATE t SET code = 'y';
            DELETE FROM t;
        """,
        ops={"t": "cudcd"},
        check=_keys(*({"code": code} for code in "xxxyy")),
    ),
    Scenario(
        "toast, some of the values",
        "In the same row, some values are sent, some are unchanged, and some are null.",
        setup="""
            CREATE TABLE t (id int PRIMARY KEY, a text, b text);
            ALTER TABLE t ALTER a SET STORAGE EXTERNAL;
            ALTER TABLE t ALTER b SET STORAGE EXTERNAL
        """,
        work=f"""
            INSERT INTO t VALUES (1, {BIG}, {BIG} || '!');
            UPDATE t SET a = {BIG} || '?';
            UPDATE t SET b = NULL;
            UPDATE t SET b = {BIG}, id = 2;
            UPDATE t SET a = b, b = a;
            UPDATE t SET id = 3;
        """,
        ops={"t": "cuudcudc"},
        check=_unchanged([], ["b"], ["a"], [], ["a"], [], [], ["a", "b"]),
    ),
    Scenario(
        "toast, marked",
        "If a value in `raw` is not sent again, `unchanged` lists it. With identity full, the old row has the value.",
        setup="""
            CREATE TABLE t (id int PRIMARY KEY, v int, grid text[]);
            ALTER TABLE t ALTER grid SET STORAGE EXTERNAL;
            CREATE TABLE full_t (LIKE t INCLUDING ALL);
            ALTER TABLE full_t REPLICA IDENTITY FULL
        """,
        tables=["t", "full_t"],
        work=f"""
            INSERT INTO t VALUES (1, 0, ARRAY[ARRAY[{BIG}]]);
            UPDATE t SET v = 1;
            UPDATE t SET id = 2;
            INSERT INTO full_t SELECT * FROM t;
            UPDATE full_t SET v = 2;
            UPDATE full_t SET id = 3;
        """,
        ops={"t": "cudc", "full_t": "cudc"},
        check=_marked_and_unchanged,
    ),
    Scenario(
        "equal keys",
        "For PostgreSQL, 1.0 and 1.00 are the same key. In Kafka, the key is the text, so it changes.",
        setup="CREATE TABLE t (k numeric PRIMARY KEY, v int)",
        work="""
            INSERT INTO t VALUES (1.0, 1), (2.0, 1);
            UPDATE t SET k = 1.00 WHERE k = 1;
            UPDATE t SET k = 2.0 WHERE k = 2;
            DELETE FROM t WHERE k = 1;
        """,
        ops={"t": "cc" + "dc" + "u" + "d"},
        check=_keys(*({"k": key} for key in ("1.0", "2.0", "1.0", "1.00", "2.0", "1.00"))),
    ),
    Scenario(
        "toast, in the key",
        "A key that is stored out of line is missing in the new row, but PostgreSQL always sends it in the old key.",
        setup="""
            CREATE TABLE t (k text PRIMARY KEY, filler text, v int);
            ALTER TABLE t ALTER filler SET STORAGE MAIN
        """,
        # The key compresses to 1.1 kB, which fits into an index. Because of the filler, the key is stored out of line.
        work="""
            INSERT INTO t SELECT repeat('x', 100000), string_agg(md5(g::text), ''), 0 FROM generate_series(1, 45) AS g;
            UPDATE t SET v = 1;
            UPDATE t SET k = k || 'y';
            DELETE FROM t;
        """,
        ops={"t": "cudcd"},
        check=_toasted_key,
    ),
]
