"""Scenarios with the widest table and the largest values."""

from tests.support.scenario import Found, Scenario

COLUMNS = 1600
"""PostgreSQL's limit for the columns of a table (MaxHeapAttributeNumber)."""

A_VALUE = "of-no-concern-to-the-log"
"""A value that must not appear in the log."""

LARGE_BYTES = 50_000_000

_NAMES = [f"column_{number}" for number in range(1, COLUMNS)]
_TYPES = ("int", "smallint", "boolean", "text")
_LARGE = f"(SELECT string_agg(md5(g::text), '') FROM generate_series(1, {LARGE_BYTES // 32}) AS g)"


def _sizes(found: Found) -> None:
    assert [event["after"] and len(event["after"]["v"]) for event in found.events()] == [LARGE_BYTES, None]


SCENARIOS = [
    Scenario(
        "1,600 columns",
        "A table has as many columns as PostgreSQL allows.",
        setup=f"""
            CREATE TABLE t (id int PRIMARY KEY,
                {", ".join(f"{name} {_TYPES[number % 4]}" for number, name in enumerate(_NAMES))})
        """,
        work=f"""
            INSERT INTO t (id) VALUES (1), (2);
            INSERT INTO t SELECT 3, 1, 2, true, '{A_VALUE}';
            UPDATE t SET column_1597 = 7, column_4 = 'b' WHERE id = 1;
            DELETE FROM t WHERE id = 2;
        """,
        ops={"t": "cccud"},
    ),
    Scenario(
        "50 MB",
        "Values of 50 MB arrive if the topic's limit allows them.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
        rules=[{"match": "t", "config": {"max.message.bytes": "62914560"}}],
        work=f"""
            INSERT INTO t VALUES (1, {_LARGE});
            DELETE FROM t;
        """,
        ops={"t": "cd"},
        check=_sizes,
    ),
]
