"""A scenario in which all tables of a database are published. The database's encoding is not UTF-8.

All tables have tombstones, records have the commit time as their timestamp, and a template determines topic names.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.scenario import Found, Scenario

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "kafka": {"timestamp": "commit", "topics": {"name": "{prefix}.{table}.{schema}", "partitions": 1}},
    "tables": {"tombstones": True},
}


def _settled(found: Found) -> None:
    assert found.topic() == f"{found.reader.prefix}.t.all_x0020_tables"
    for event in found.events():
        assert event.timestamp_ms == (event["ts"] - EPOCH) // timedelta(milliseconds=1)


SCENARIOS = [
    Scenario(
        "all tables",
        "All existing and future tables are published.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text)",
        publication="FOR ALL TABLES",
        tables=["t", "later", "unkeyed"],
        work="""
            INSERT INTO t VALUES (1, 'ä'), (2, 'ß');
            BEGIN;
            CREATE TABLE later (id int PRIMARY KEY, "größe" text);
            INSERT INTO later SELECT * FROM t;
            DELETE FROM t WHERE id = 1;
            COMMIT;
            CREATE TABLE unkeyed AS SELECT * FROM later;
            ALTER TABLE unkeyed REPLICA IDENTITY FULL;
            UPDATE unkeyed SET "größe" = '¥';
            DELETE FROM later WHERE id = 2;
            CREATE TEMP TABLE fleeting AS SELECT * FROM t;
            CREATE UNLOGGED TABLE unlogged AS SELECT * FROM t;
            CREATE MATERIALIZED VIEW seen AS SELECT * FROM t;
            REFRESH MATERIALIZED VIEW seen;
        """,
        ops={"t": "ccd", "later": "ccd", "unkeyed": "ccuu"},
        check=_settled,
    ),
]
