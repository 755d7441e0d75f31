"""Tests ``pgsluice tail`` with real servers: it prints committed changes, and leaves no slot on the server."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT
from typing import Any, LiteralString

import pytest

from sandbox.postgres import Database
from tests.support.kafka import add_partitions
from tests.support.weather import Start

TABLES = """
    CREATE TABLE items (id int PRIMARY KEY, note text, doc text, price numeric(10, 2), seen timestamptz);
    ALTER TABLE items ALTER doc SET STORAGE EXTERNAL;
    CREATE TABLE whole (id int, note text);
    ALTER TABLE whole REPLICA IDENTITY FULL;
    CREATE PUBLICATION tailed FOR TABLE items, whole
"""
DOC = "d" * 10_000
CHANGES: tuple[tuple[LiteralString, list[str]], ...] = (
    ("INSERT INTO items VALUES (1, E'two\\nlines', %s, 1.50, '2024-02-29 12:00:00.000001+00')", [DOC]),
    ("UPDATE items SET note = NULL WHERE id = 1", []),
    ("UPDATE items SET id = 2 WHERE id = 1", []),
    ("INSERT INTO whole VALUES (7, 'null')", []),
    ("UPDATE whole SET note = E'\\x1b[31mred'", []),
    ("DELETE FROM items", []),
    ("TRUNCATE whole", []),
)


class Tail:
    """A running ``pgsluice tail``."""

    def __init__(self, config: Path, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-m", "pgsluice", "tail", "-c", str(config), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.first = self.process.stderr.readline()

    def end(self) -> tuple[int, list[str]]:
        """Wait until the command ends. Return its exit code and the lines of its output."""
        out, errors = self.process.communicate(timeout=60)
        assert errors == ""
        return self.process.returncode, out.splitlines()


@contextmanager
def tail(config: Path, *arguments: str) -> Iterator[Tail]:
    started = Tail(config, arguments)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    def write(database: Database, brokers: str = "127.0.0.1:1", name: str = "tail") -> Path:
        file = tmp_path / "pgsluice.toml"
        file.write_text(
            f'version = 1\nname = "{name}"\npostgres.dsn = "{database.conninfo()}"\n'
            f'postgres.publications = ["tailed"]\npostgres.messages = true\n'
            f'kafka.bootstrap_servers = "{brokers}"\nkafka.topic_prefix = "{name}"\n'
        )
        return file

    return write


@pytest.fixture
def tailed(database: Database) -> Database:
    with database.connect() as connection:
        connection.execute(TABLES)
    return database


def change(database: Database) -> None:
    with database.connect() as connection:
        for sql, values in CHANGES:
            connection.execute(sql, values)


def slots(database: Database) -> list[Any]:
    with database.connect() as connection:
        return connection.execute("SELECT slot_name FROM pg_replication_slots WHERE slot_name ~ 'tail'").fetchall()


def test_every_committed_change_is_printed(tailed: Database, config: Callable[..., Path]) -> None:
    with tail(config(tailed), "--json", "--limit", "8") as running:
        assert running.first == "pgsluice: waiting for changes of publication tailed; Ctrl-C ends this\n"
        assert len(slots(tailed)) == 1
        change(tailed)
        with tailed.connect() as connection:
            connection.execute("SELECT pg_logical_emit_message(true, 'audit', 'hello')")
        code, lines = running.end()
    assert code == 0
    found = [json.loads(line) for line in lines]
    row = {"id": "1", "note": "two\nlines", "doc": DOC, "price": "1.50", "seen": "2024-02-29 12:00:00.000001+00"}
    rest = {"price": "1.50", "seen": "2024-02-29 12:00:00.000001+00"}
    facts = [(one["op"], one["table"], one["before"], one["after"], one["unchanged"]) for one in found]
    assert facts == [
        ("c", "items", None, row, []),
        ("u", "items", None, {"id": "1", "note": None, **rest}, ["doc"]),
        ("u", "items", {"id": "1"}, {"id": "2", "note": None, **rest}, ["doc"]),
        ("c", "whole", None, {"id": "7", "note": "null"}, []),
        ("u", "whole", {"id": "7", "note": "null"}, {"id": "7", "note": "\x1b[31mred"}, []),
        ("d", "items", {"id": "2"}, None, []),
        ("t", "whole", None, None, []),
        ("m", "", None, {"prefix": "audit", "content": "hello"}, []),
    ]
    assert [one["before_image"] for one in found] == ["none", "none", "key", "none", "full", "key", "none", "none"]
    while slots(tailed):  # the server drops the slot after noticing the end of the connection
        time.sleep(0.05)


def test_lines_for_people_can_be_filtered(tailed: Database, config: Callable[..., Path]) -> None:
    with tail(
        config(tailed), "--table", "public.w*", "--op", "insert", "--op", "update", "--column", "note"
    ) as running:
        change(tailed)
        assert running.process.stdout is not None
        lines = [running.process.stdout.readline() for _ in range(2)]
        running.process.send_signal(SIGINT)
        code, rest = running.end()
    assert (code, rest) == (130, [])
    assert lines[0].endswith('  insert  public.whole note="null"\n')
    assert lines[1].endswith('  update  public.whole note="null" -> "\\u001b[31mred"\n')


def test_tail_ends_after_one_transaction_or_when_the_pipe_is_closed(
    tailed: Database, config: Callable[..., Path]
) -> None:
    with tail(config(tailed), "--json") as running, tailed.connect() as connection:
        connection.execute("INSERT INTO whole SELECT n, 'x' FROM generate_series(1, 20000) AS n")
        assert running.process.stdout is not None
        xid = json.loads(running.process.stdout.readline())["xid"]
        running.process.stdout.close()
        assert running.process.wait(60) == 141
    following = range(xid + 1, xid + 50)  # autovacuum may use some of them
    with tail(config(tailed), *(f"--xid={one}" for one in (1, *following)), "--limit", "1") as running:
        change(tailed)
        code, (line,) = running.end()
    assert code == 0
    found = re.search(r"xid (\d+)  insert  public.items id=1 note=", line)
    assert found is not None
    assert int(found[1]) in following


def test_tail_reports_why_nothing_can_be_followed(database: Database, config: Callable[..., Path]) -> None:
    with tail(config(database)) as running:
        running.process.wait(60)
    assert running.process.returncode == 78
    assert "Publication 'tailed' does not exist" in running.first


def test_tail_prints_the_topics_of_a_pipeline(start: Start, config: Callable[..., Path]) -> None:
    pipeline = start({"snapshot": {"mode": "never"}})
    with pipeline.database.connect() as connection:
        connection.execute(TABLES)
    pipeline.write(1)
    file = config(pipeline.database, pipeline.kafka.bootstrap_servers, pipeline.daemon.name)
    assert pipeline.read(1) == [1]
    with tail(file, "--kafka", "--json", "--table", "public.items", "--limit", "5") as running:
        change(pipeline.database)
        code, lines = running.end()
    assert code == 0
    found = [json.loads(line) for line in lines]
    rest = {"price": "1.50", "seen": "2024-02-29T12:00:00.000001Z"}
    facts = [(one["op"], one["before"], one["after"], one["unchanged"]) for one in found]
    assert facts == [
        ("c", None, {"id": 1, "note": "two\nlines", "doc": DOC, **rest}, []),
        ("u", None, {"id": 1, "note": None, **rest}, ["doc"]),
        ("d", {"id": 1}, None, []),
        ("c", {"id": 1}, {"id": 2, "note": None, **rest}, ["doc"]),
        ("d", {"id": 2}, None, []),
    ]


def test_tail_reads_everything_that_is_committed_after_its_first_line(
    start: Start, config: Callable[..., Path]
) -> None:
    """The topic gets more partitions meanwhile."""
    topics = {"partitions": 3, "changed": "accept"}
    pipeline = start({"snapshot": {"mode": "never"}, "kafka": {"topics": topics}})
    with pipeline.database.connect() as connection:
        connection.execute("CREATE PUBLICATION tailed FOR TABLE numbers")
    pipeline.write(1)
    pipeline.wait_until_confirmed()
    file = config(pipeline.database, pipeline.kafka.bootstrap_servers, pipeline.daemon.name)
    pipeline.daemon.stop_well()
    pipeline.write(20)
    with tail(file, "--kafka", "--json", "--limit", "20") as running:
        add_partitions(pipeline.kafka, f"{pipeline.daemon.name}.public.numbers", 12)
        pipeline.daemon.start()
        code, lines = running.end()
    assert code == 0
    assert {json.loads(line)["after"]["n"] for line in lines} == set(range(2, 22))


def test_old_rows_of_partitions_have_the_columns_of_their_own_identity(
    database: Database, config: Callable[..., Path]
) -> None:
    with database.connect() as connection:
        connection.execute("""
            CREATE TABLE parts (id int PRIMARY KEY, code int NOT NULL, note text) PARTITION BY RANGE (id);
            CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100);
            CREATE UNIQUE INDEX code_of_low ON low (code);
            ALTER TABLE parts REPLICA IDENTITY FULL;
            ALTER TABLE low REPLICA IDENTITY USING INDEX code_of_low;
            CREATE PUBLICATION tailed FOR TABLE parts WITH (publish_via_partition_root)
        """)
    with tail(config(database), "--limit", "3", "--json") as running, database.connect() as connection:
        connection.execute("INSERT INTO parts VALUES (1, 2, 'a')")
        connection.execute("UPDATE parts SET code = 3")
        connection.execute("DELETE FROM parts")
        code, lines = running.end()
    assert code == 0
    found = [json.loads(line) for line in lines]
    assert [one["before"] for one in found] == [None, {"code": "2"}, {"code": "3"}]
    assert [one["before_image"] for one in found] == ["none", "key", "key"]
