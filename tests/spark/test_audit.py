"""Audits of a mirror on real servers, while the source changes."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation
from pyspark.sql.types import StructType

from pgsluice_spark import AuditReport, Delta, NoSuchView, PipelineError, origin
from pgsluice_spark.command_line import parser
from pgsluice_spark.commands import COMMANDS
from pgsluice_spark.config import Config
from pgsluice_spark.postgres import Snapshot, Source, before_header
from pgsluice_spark.values import Pair
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from tests.spark.shop import Shop, opened

pytestmark = pytest.mark.usefixtures("without_compilation")

SETTINGS: dict[str, dict[str, Any]] = {
    "kafka": {"topics": {"partitions": 2}},
    "snapshot": {"mode": "initial", "chunk_rows": 300},
    "tables": {
        "rules": [
            {"match": "public.kinds", "types": {"widened": "double"}},
            {
                "match": "public.without_key",
                "types": {"amount*": "decimal(10,2)", "span": "interval-micros", "milli*": "timestamp-millis"},
            },
        ]
    },
    "delivery": {"heartbeat": "500ms"},
}
SETUP = (
    "CREATE TYPE mood AS ENUM ('sad', 'happy')",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE EXTENSION hstore",
    "CREATE DOMAIN early AS time",
    "CREATE DOMAIN late AS early",
    "CREATE DOMAIN lates AS late[]",
    """
    CREATE TABLE kinds (
        id int PRIMARY KEY, flag bool, small int2, big int8, amount numeric(10,2), free numeric, ratio float8,
        one float4, note text, fixed char(5), day date, at time, local timestamp, moment timestamptz,
        span interval, token uuid, data bytea, counts int[], tags text[], days date[], blobs bytea[], moods mood[],
        pairs pair[], pair pair, address inet, document jsonb, range int4range,
        kind regclass, "order lines" text, "cost" money, late late, widened float4,
        times time[], maps hstore[], nested lates[]
    )
    """,
    r"""
    INSERT INTO kinds VALUES
    (1, true, -32768, 9223372036854775807, -12345678.90, 1e40, 0.1, 3.4e38, 'żółć 🙂 "q" \', 'a  ', '2024-02-29',
     '23:59:59.999999', '1066-10-14 09:00:00.000001', '2024-10-27 02:30:00.123456+02', '1 year 2 days 03:04:05.6',
     '6f1e2c1c-7b1f-4e0e-9f0a-0d6e2a3b4c5d', '\x00ff', '{1,NULL,-3}', '{"a, b",NULL,"","\"\\"}',
     '{2024-02-29,infinity}', '{"\\x00","\\xff"}', '{sad,NULL}', '{"(1,x)",NULL,"(,)"}', '(1,)', '10.0.0.1',
     '{"b": 1, "a": [null]}', '[1,5)', 'kinds', 'x', '12.5', '12:30:00', 0.1,
     '{12:00:00,NULL}', '{"a=>1, b=>NULL",NULL}', '{"{12:00:00,NULL}",NULL,"{}"}'),
    (2, false, 0, 0, 'NaN', 'NaN', 'NaN', '-Infinity', '', '', 'infinity', '24:00:00', '-infinity',
     '0044-03-15 12:00:00+00 BC', '-1 day', NULL, '', '{}', '{}', '{}', '{}', '{}', '{}', '(,)', '10.0.0.0/8', 'null',
     'empty', NULL, '', '0', '24:00:00', 'NaN', '{}', '{}', '{}'),
    (3, NULL, 1, 1, 1, 1, '-Infinity', 'NaN', 'c', 'ccccc', '9999-12-31', '00:00:00', '9999-12-31 23:59:59.999999',
     '0001-01-01 00:00:00+00', NULL, NULL, NULL, '[2:3]={1,2}', '{{a,b},{c,d}}', NULL, NULL, NULL, NULL, NULL, '::1',
     NULL, NULL, NULL, NULL, NULL, NULL, '-Infinity', NULL, NULL, '{"[2:2]={12:00:00}"}')
    """,
    "INSERT INTO kinds (id) VALUES (4)",
    "CREATE TABLE orders (id int, part int, amount numeric(10,2), note text, PRIMARY KEY (id, part))",
    "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
    "INSERT INTO orders VALUES (2001, 1, 1, 'fine'), (2002, 1, 1, 'fine')",
    "INSERT INTO orders SELECT n, 1, n, repeat('kept out of line ', 300) FROM generate_series(1, 1000) AS n",
    "CREATE TABLE events (what text, many int)",
    "INSERT INTO events SELECT 'event ' || n % 10, n % 7 FROM generate_series(1, 100) AS n",
    """
    CREATE TABLE without_key (
        day date, days date[], local timestamp, milli timestamptz, millis timestamptz[], at time, times time[],
        amount numeric, amounts numeric[], span interval, note text
    )
    """,
    """
    INSERT INTO without_key SELECT
        '0044-03-15 BC', '{0044-03-15 BC,NULL}', '12024-01-01 12:00:00', '2024-01-01 12:00:00.123456',
        '{2024-01-01 12:00:00.123456}', '24:00:00', '{24:00:00,NULL}', '1.001', '{1.001,NULL,NaN}', '1 month', n % 2
    FROM generate_series(1, 5) AS n
    """,
    """
    INSERT INTO without_key VALUES
    ('infinity', '{-infinity}', '-infinity', 'infinity', '{}', '12:00', '{12:00}', 1.0, '{1,2.50}', '1 day', 'x'),
    ('2024-01-01', '{2024-01-01}', '2024-01-01', '0044-03-15 12:00:00+00 BC', '{{infinity}}', NULL, NULL, 'NaN', '{}',
     '-1 second', 'y'),
    (NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1e20, NULL, NULL, NULL)
    """,
    "ALTER TABLE without_key REPLICA IDENTITY FULL",
    "CREATE TABLE growing (few int)",
    "INSERT INTO growing VALUES (1)",
    "CREATE TABLE empty (id int PRIMARY KEY, note text)",
    "CREATE TABLE truncated (id int PRIMARY KEY, note text)",
    "INSERT INTO truncated SELECT n, 'row ' || n FROM generate_series(1, 100) AS n",
    "CREATE TABLE parted (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
    "CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (50)",
    "CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (50) TO (100)",
    "INSERT INTO parted SELECT n, 'row ' || n FROM generate_series(1, 99) AS n",
)
LOADED = 10

WRITES = (
    "UPDATE orders SET amount = amount + 1 WHERE id <= 1000 AND id % 50 = {n} % 50",
    "UPDATE orders SET part = part + 1 WHERE id = {n} % 1000 + 1",  # without note, which is out of line and unchanged
    "DELETE FROM orders WHERE id = {n} % 1000 + 1",
    "INSERT INTO orders VALUES ({n} % 1000 + 1, 1, {n}, repeat('again ', 500)) ON CONFLICT DO NOTHING",
    "INSERT INTO events VALUES ('written', {n} % 3)",
    "SAVEPOINT a",
    "UPDATE kinds SET big = {n}, note = 'note {n}' WHERE id = 4",
    "RELEASE a",
    "UPDATE parted SET note = 'row {n}' WHERE id = {n} % 99 + 1",
)


class Writer:
    """Commits continuously in two sessions. Every fourth transaction is prepared first."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._end = threading.Event()
        self.commits = 0
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(2)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _write(self, number: int) -> None:
        with self._database.connect() as connection:
            while not self._end.wait(0.2):
                number += 2
                statements = [statement.format(n=number) for statement in WRITES]
                try:
                    connection.execute(
                        "; ".join(["BEGIN", *statements[number % 2 :], *self._commit(number)[:1]]).encode()
                    )
                    for statement in self._commit(number)[1:]:
                        connection.execute(statement.encode())
                except psycopg.errors.DeadlockDetected:
                    connection.execute("ROLLBACK")
                self.commits += 1

    @staticmethod
    def _commit(number: int) -> list[str]:
        name = f"writer {number}"
        return ["COMMIT"] if number % 4 else [f"PREPARE TRANSACTION '{name}'", f"COMMIT PREPARED '{name}'"]


@contextmanager
def writing(database: Database) -> Iterator[Writer]:
    writer = Writer(database)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


@pytest.fixture(scope="module")
def database(postgres_server: Callable[..., Postgres]) -> Iterator[Database]:
    with postgres_server().database() as found:
        yield found


@pytest.fixture(scope="module")
def shop(spark: SparkSession, database: Database, kafka: Kafka) -> Iterator[Shop]:
    with ExitStack() as stack:
        found = stack.enter_context(opened(spark, database, kafka, "audited", SETUP, SETTINGS))
        found.wait_until_loaded(LOADED)
        yield found


def mirrored(shop: Shop, directory: Path, tables: Sequence[str] = ("public.*",)) -> Delta:
    target = Delta(str(directory / "lake"))
    shop.pipeline.mirror(
        target, tables=tables, checkpoint=str(directory / "checkpoint"), trigger="available now"
    ).awaitTermination()
    return target


def audited(shop: Shop, target: Delta, database: Database, tables: Sequence[str] = ("*",)) -> AuditReport:
    return shop.pipeline.audit(target, postgres=database.conninfo(), tables=tables)


def status(report: AuditReport) -> dict[str, str]:
    return {table.table.removeprefix("public."): table.status for table in report.tables}


def test_undamaged_tables_that_are_written_to(
    shop: Shop, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit has to find all tables equal, although the mirror lags behind and one table is truncated.

    The last cut record does not list all topics, so the audit has to find them in earlier cut records.
    """
    monkeypatch.setattr(origin, "_BACK", 1)
    target = mirrored(shop, tmp_path)
    with writing(database) as writer:
        shop.run("TRUNCATE truncated", "INSERT INTO truncated VALUES (1, 'again')")
        shop.run("ALTER TABLE growing ADD more int", "INSERT INTO growing VALUES (2, 2)")
        commits = writer.commits
        report = audited(shop, target, database)
        assert writer.commits > commits
    assert report.equal, str(report)
    found = {table.table: table for table in report.tables}
    assert found["public.kinds"].rows == found["public.kinds"].mirror_rows == 4
    assert found["public.kinds"].exceptions.keys() == {"kind"}
    assert found["public.parted_high"].rows == 50
    assert found["public.truncated"].rows == 1
    assert json.loads(report.to_json())["equal"] is True
    assert str(report).splitlines()[-1].startswith(f"{len(found)} of {len(found)} tables equal")


def test_damage_is_named(shop: Shop, database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = mirrored(shop, tmp_path, ["public.orders", "public.events"])
    for statement in UNLOGGED:
        shop.connection.execute(statement)
    damage(shop, target)
    with writing(database):
        report = audited(shop, target, database, ["public.*", "public.none"])
    assert status(report) == {
        "events": "different",
        "orders": "different",
        "none": "refused",
        "unlogged": "different",
        "unlogged_empty": "equal",
    }
    assert (report.equal, report.different) == (False, ["public.events", "public.orders", "public.unlogged"])
    orders = next(table for table in report.tables if table.table == "public.orders")
    assert (orders.changed, orders.missing, orders.extra) == (1, 1, 1)
    assert {(one.kind, one.key["id"], one.column, one.mirror) for one in orders.differences} == {
        ("value", "2001", "note", "damaged"),
        ("missing", "2002", None, None),
        ("extra", "2003", None, None),
    }
    text = str(report)
    assert "id='2001', part='1': note is 'fine' in PostgreSQL, 'damaged' in the mirror" in text
    assert "id='2002', part='1': the mirror lacks the row" in text
    assert "what='invented', many=null: only the mirror has the row" in text
    assert "id='1', Note='never sent': the mirror lacks the row" in text
    assert from_the_shell(shop, target, database, "audit", "--json") == 65
    assert json.loads(capsys.readouterr().out)["tables"][0]["extra"] == 1
    assert from_the_shell(shop, target, database, "view") == 0
    assert "\npublic.orders: loaded" in capsys.readouterr().out
    assert from_the_shell(shop, target, database, "lag", "--json") == 0
    lag = json.loads(capsys.readouterr().out)
    assert lag["newest_cut"] > lag["cut"] == report.cut
    assert min(lag["events"], lag["wal_bytes"], lag["seconds"]) > 0


def damage(shop: Shop, target: Delta) -> None:
    """Change the rows of the mirror's tables, and make the control table refer to the damaged versions."""
    for table, statement in DAMAGE:
        shop.spark.sql(statement.format(f"delta.`{target.path}/{table}`"))
    versions = {table: target.table(shop.spark, table) for table, _ in DAMAGE}
    cases = " ".join(
        f"WHEN '{name}' THEN {shop.spark.sql(f'DESCRIBE HISTORY {table.sql} LIMIT 1').collect()[0]['version']}"
        for name, table in versions.items()
    )
    shop.spark.sql(
        f"""
        UPDATE {target.table(shop.spark, "_pgsluice_cuts").sql} SET tables = map_concat(
            transform_values(tables, (name, one) ->
                named_struct('version', CASE name {cases} ELSE one.version END, 'is_finished', one.is_finished,
                    'status', one.status, 'state', one.state)),
            transform_values(map('public.unlogged', 1, 'public.unlogged_empty', 1), (name, one) ->
                named_struct('version', CAST(NULL AS bigint), 'is_finished', true, 'status', 'loaded',
                    'state', tables['public.events'].state)))
        """
    )


UNLOGGED = (
    'CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY, "Note" text)',
    "INSERT INTO unlogged VALUES (1, 'never sent')",
    "CREATE UNLOGGED TABLE unlogged_empty (id int PRIMARY KEY)",
)
"""Tables without a topic, because they are not replicated. ``damage`` makes the mirror report them as loaded."""


_SYSTEM = "named_struct('epoch', 1, 'lsn', 1L, 'seq', 1L, 'ts', NULL, 'unchanged', array(), 'raw', map())"
DAMAGE = (
    ("public.orders", "UPDATE {} SET note = 'damaged' WHERE id = 2001"),
    ("public.orders", "DELETE FROM {} WHERE id = 2002"),
    ("public.orders", f"INSERT INTO {{}} VALUES (2003, 1, 1, 'invented', {_SYSTEM})"),
    ("public.events", f"INSERT INTO {{}} VALUES ('invented', NULL, {_SYSTEM})"),
)


@pytest.mark.long
def test_tables_that_cannot_be_compared(shop: Shop, database: Database, tmp_path: Path) -> None:
    with pytest.raises(NoSuchView, match="Start the mirror first"):
        audited(shop, Delta(str(tmp_path / "lake")), database)
    target = mirrored(shop, tmp_path, ["public.parted_low", "public.empty", "public.without_key"])
    shop.run("UPDATE without_key SET note = 'later' WHERE note = 'x'")
    shop.run("ALTER TABLE parted ADD COLUMN price int DEFAULT 7", "UPDATE parted SET note = 'later' WHERE id = 1")
    # Both partitions are loaded again. The cut records report them as stale before they are loaded.
    shop.wait_until_loaded(LOADED + 2)
    with database.connect() as connection, connection.transaction(force_rollback=True):
        # The audit does not wait for a transaction that is idle.
        connection.execute("UPDATE parted_high SET note = 'open' WHERE id = 60")
        report = audited(shop, target, database)
    assert status(report) == {"empty": "equal", "parted_low": "stale", "without_key": "refused"}
    assert "table public.without_key has no key, and some of its rows were updated or deleted" in str(report)
    shop.run("CREATE ROLE stranger LOGIN")
    with pytest.raises(PipelineError, match=r"refused a statement of the audit: ERROR: permission denied for table"):
        shop.pipeline.audit(target, postgres=f"{database.conninfo()} user=stranger")
    shop.run("DROP ROLE stranger")
    with pytest.raises(PipelineError, match=r"cannot be reached"):
        shop.pipeline.audit(target, postgres="host=127.0.0.1 port=1 dbname=none user=none")


@pytest.mark.long
def test_a_table_whose_topic_changes(shop: Shop, database: Database, tmp_path: Path) -> None:
    target = mirrored(shop, tmp_path, ["public.empty"])
    rule = {"match": "public.empty", "topic": "{prefix}.moved"}
    shop.run("INSERT INTO empty VALUES (101, 'in the former topic')")
    shop.daemon.settings["tables"] = {"rules": [rule]}
    shop.daemon.restart()
    shop.run("INSERT INTO empty VALUES (102, 'in the new topic')")
    report = audited(shop, target, database)
    assert "its topic has changed after the mirror's last cut" in str(report)
    mirrored(shop, tmp_path, ["public.empty"])
    shop.run("INSERT INTO empty VALUES (103, 'in the new topic')", "DELETE FROM empty WHERE id = 101")
    report = audited(shop, target, database)
    assert (report.equal, report.tables[0].rows) == (True, 2), str(report)


def from_the_shell(shop: Shop, target: Delta, database: Database, *words: str) -> int:
    """Run a command of ``pgsluice-spark`` in the Spark session of the tests. Return its exit code."""
    values: dict[str, dict[str, Any]] = {
        "target": {"path": target.path, "tables": ["public.events"]},
        "postgres": {"dsn": database.conninfo()},
    }
    options = parser().parse_args([*words, "-c", "mirror.toml"])
    return COMMANDS[options.command](Config("mirror.toml", values), shop.pipeline, options)


def test_connection_strings() -> None:
    source = Source.parse(r"host=db port=5433 dbname='my shop' user=reader password='a\' \\b' sslmode=require ")
    assert source.url == "jdbc:postgresql://db:5433/my shop"
    assert source.properties == {"user": "reader", "password": "a' \\b", "sslmode": "require"}
    assert "sslmode" not in repr(source)
    assert Source.parse("jdbc:postgresql://db/shop").url == "jdbc:postgresql://db/shop"
    with pytest.raises(ValueError, match="has gssencmode, which the JDBC driver does not know"):
        Source.parse("host=db gssencmode=disable")
    with pytest.raises(ValueError, match="not of the form"):
        Source.parse("db")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("decimal(10,2)", "1.5", Decimal("1.50")),
        ("decimal(10,2)", "1.500", Decimal("1.50")),
        ("decimal(10,2)", "-100", Decimal("-100.00")),
        ("decimal(10,2)", "1.501", None),
        ("decimal(10,2)", "123456789", None),
        ("decimal(10,2)", "NaN", None),
        ("bigint", "-1", -1),
        ("bigint", "1.5", None),
        ("bigint", "9223372036854775808", None),
        ("array<bigint>", '["1", null]', [1, None]),
        ("array<bigint>", '["1", "1.5"]', None),
        ("array<array<date>>", '["[\\"2024-01-01\\"]", null]', [[date(2024, 1, 1)], None]),
        ("array<array<date>>", '["[\\"infinity\\"]"]', None),
    ],
)
def test_values_that_a_type_can_hold_exactly(spark: SparkSession, kind: str, text: str, value: object) -> None:
    pair = Pair(0, "c", "c", "", 0, StructType.fromDDL(f"c {kind}")["c"].dataType)
    (row,) = spark.createDataFrame([(text,)], "t0 string").select(pair.value().alias("value")).collect()
    assert row["value"] == value


def test_transactions_that_a_snapshot_sees(spark: SparkSession) -> None:
    """Compare transaction ids in snapshots (64 bits) with those in the stream (32 bits, which may wrap around)."""
    epoch = 1 << 32
    cases = {
        (f"{epoch}:{epoch + 5}:{epoch + 2}", 1): True,
        (f"{epoch}:{epoch + 5}:{epoch + 2}", 2): False,
        (f"{epoch}:{epoch + 5}:{epoch + 2}", 5): False,
        (f"{epoch}:{epoch + 5}:", 4294967295): True,
        (f"{epoch - 3}:{epoch + 5}:{epoch - 3}", 4294967293): False,
        (f"{epoch - 9}:{epoch - 3}:", 4): False,
        ("700:700:", 699): True,
    }
    for (text, xid), expected in cases.items():
        row = spark.range(1).select(F.lit(xid).alias("xid")).select(Snapshot("", text, 0).sees(F.col("xid"))).first()
        assert row == (expected,), (text, xid)


def test_the_audit_does_not_wait_for_a_page_header() -> None:
    segment = 16 << 20
    assert before_header(3 * segment + 40, segment) == 3 * segment
    assert before_header(3 * segment + 8192 + 24, segment) == 3 * segment + 8192
    assert before_header(3 * segment + 8192 + 40, segment) == 3 * segment + 8192 + 40
