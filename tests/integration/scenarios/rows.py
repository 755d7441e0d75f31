"""Changes of rows under each replica identity: which images there are, and what the key is."""

from collections.abc import Callable

from tests.support.scenario import Found, Scenario

BIG = "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 300) AS g)"
"""9,600 characters that do not compress: stored out of line."""

TOASTED = "ALTER TABLE t ALTER big SET STORAGE EXTERNAL"


def _images(found: Found, table: str = "t") -> list[tuple[str, str]]:
    return [(event["op"], event["before_image"]) for event in found.events(table)]


def _key_images(found: Found) -> None:
    assert _images(found) == [
        ("c", "none"),
        ("c", "none"),
        ("c", "none"),
        ("u", "none"),
        ("d", "key"),
        ("d", "key"),
        ("c", "key"),
    ]
    gone, moved = found.events()[-2:]
    assert (gone.key, moved.key) == ({"id": 3}, {"id": 4})
    assert gone["flags"] == moved["flags"] == ["key_change"]
    assert moved["before"] == {"id": 3, "v": None}
    assert moved["after"] == {"id": 4, "v": "c"}


def _full_images(found: Found) -> None:
    assert [image for _, image in _images(found)] == ["none", "none", "full", "full", "full", "full"]
    assert [event["before"] for event in found.events()[2:]] == [
        {"id": 1, "v": "a"},
        {"id": 2, "v": None},
        {"id": 1, "v": "A"},
        {"id": 1, "v": "A"},
    ]
    assert [event.key for event in found.events()] == [{"id": n} for n in (1, 2, 1, 2, 1, 5)]


def _without_keys(found: Found) -> None:
    assert {event.key for event in found.events()} == {None}
    assert {event.partition for event in found.events()} == {0}


def _index_keys(found: Found) -> None:
    assert [event.key for event in found.events()] == [{"code": code} for code in ("x", "y", "x", "y", "x", "z")]
    assert _images(found)[2:4] == [("u", "none"), ("d", "key")]


def _unchanged(*expected: list[str]) -> Callable[[Found], None]:
    def check(found: Found) -> None:
        assert [event["unchanged"] for event in found.events()] == list(expected)

    return check


SCENARIOS = [
    Scenario(
        "identity default",
        "Updates say nothing of the old row; deletes and changes of the key say the old key.",
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
        "Every old row is there, and the key is the primary key all the same.",
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
        "identity full without key",
        "Rows that nothing tells apart: no key, one partition.",
        setup="CREATE TABLE t (a int, b text); ALTER TABLE t REPLICA IDENTITY FULL",
        work="""
            INSERT INTO t VALUES (1, 'x'), (1, 'x'), (1, 'x'), (2, NULL), (NULL, NULL);
            DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t);
            UPDATE t SET b = 'y' WHERE ctid = (SELECT min(ctid) FROM t);
            UPDATE t SET a = NULL WHERE a = 2;
        """,
        ops={"t": "cccccduu"},
        check=_without_keys,
    ),
    Scenario(
        "identity index",
        "The key is that of the index, not the primary key.",
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
        check=_index_keys,
    ),
    Scenario(
        "identity nothing",
        "PostgreSQL lets only inserts through; the key is the primary key.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t REPLICA IDENTITY NOTHING",
        work="INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        ops={"t": "cc"},
        check=lambda found: _keys(found, {"id": 1}, {"id": 2}),
    ),
]


def _keys(found: Found, *expected: dict[str, object] | None) -> None:
    assert [event.key for event in found.events()] == list(expected)
