"""Scenarios for settings of single tables: exclude, and the entries of [[tables.rules]]."""

from tests.support.scenario import Found, Scenario


def _chosen_keys(found: Found) -> None:
    assert [event.key for event in found.events()] == [
        *({"code": code} for code in ("x", "y", "x", "y", "x", "z")),
    ]


def _partitioned(found: Found) -> None:
    topic = found.topic()
    assert topic == f"{found.reader.prefix}.chosen-name"
    assert found.reader.partitions(topic) == 5
    assert len({event.partition for event in found.events()}) == 5


SCENARIOS = [
    Scenario(
        "tombstones",
        "Each delete is followed by a record without a value, even if a change of the key caused the delete.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text)",
        rules=[{"match": "t", "tombstones": True}],
        work="""
            INSERT INTO t VALUES (1, 'a'), (2, 'b');
            DELETE FROM t WHERE id = 1;
            UPDATE t SET id = 3 WHERE id = 2;
            BEGIN;
            INSERT INTO t VALUES (1, 'c');
            DELETE FROM t;
            COMMIT;
        """,
        ops={"t": "ccddccdd"},
    ),
    Scenario(
        "exclude",
        "An excluded table has no topic.",
        setup="CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE secret (id int PRIMARY KEY)",
        publication="FOR TABLE t, secret",
        exclude=["secret"],
        work="""
            BEGIN;
            INSERT INTO t VALUES (1);
            INSERT INTO secret VALUES (1);
            INSERT INTO t VALUES (2);
            COMMIT;
            INSERT INTO secret VALUES (2);
        """,
        ops={"t": "cc", "secret": ""},
    ),
    Scenario(
        "keys",
        "The key has the columns that the rule names. Replica identity full provides the old values of these columns.",
        setup="""
            CREATE TABLE t (id int PRIMARY KEY, code text, v int);
            ALTER TABLE t REPLICA IDENTITY FULL
        """,
        rules=[{"match": "t", "keys": ["code"]}],
        work="""
            INSERT INTO t VALUES (1, 'x', 0), (2, 'y', 0);
            UPDATE t SET id = 3, v = 1 WHERE code = 'x';
            DELETE FROM t WHERE code = 'y';
            UPDATE t SET code = 'z';
        """,
        ops={"t": "ccuddc"},
        check=_chosen_keys,
    ),
    Scenario(
        "topic and partitions",
        "The topic has the name and the number of partitions that the rule sets.",
        setup="CREATE TABLE t (id int PRIMARY KEY)",
        rules=[{"match": "t", "topic": "{prefix}.chosen-name", "partitions": 5}],
        work="INSERT INTO t SELECT generate_series(1, 100); DELETE FROM t WHERE id > 50",
        ops={"t": "c" * 100 + "d" * 50},
        check=_partitioned,
    ),
    Scenario(
        "no truncates",
        "Truncates are skipped if the rule says so.",
        since=11,
        lacking="TRUNCATE is replicated from PostgreSQL 11 on",
        setup="CREATE TABLE t (id int PRIMARY KEY)",
        rules=[{"match": "t", "truncate": "skip"}],
        work="INSERT INTO t VALUES (1); TRUNCATE t; INSERT INTO t VALUES (2)",
        contents={"t": "SELECT generate_series(1, 2) AS id"},
        ops={"t": "cc"},
    ),
    Scenario(
        "compacted topic",
        "The table has a topic that keeps only the last record of each key.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text)",
        rules=[{"match": "t", "truncate": "skip", "tombstones": True, "config": {"cleanup.policy": "compact"}}],
        work="INSERT INTO t VALUES (1, 'a'), (2, 'b'); DELETE FROM t WHERE id = 1",
        ops={"t": "ccd"},
    ),
]
