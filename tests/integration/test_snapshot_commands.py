"""Tests ``pgsluice snapshot``: the daemon carries out each command exactly once, and the command reports the result."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from pgsluice.commands import COMMAND_BYTES_MAX, WHERE_MAX, Command
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.support.kafka import TIMEOUT_S, create_topic, properties, read_committed
from tests.support.reader import Cut, Reader
from tests.support.versions import long
from tests.support.weather import wait_until

ROWS = 500

SETTINGS: dict[str, dict[str, Any]] = {
    "snapshot": {"mode": "never", "chunk_rows": 50},
    "delivery": {"heartbeat": "500ms"},
    "kafka": {"topics": {"partitions": 1}},
}


class Scene:
    """A database, a daemon on it, and the command line with the daemon's settings."""

    def __init__(self, database: Database, kafka: Kafka, daemon: Daemon) -> None:
        self.database = database
        self.kafka = kafka
        self.daemon = daemon

    def snapshot(self, *arguments: str) -> tuple[int, str]:
        """Run ``pgsluice snapshot`` and return its exit code and output."""
        done = self.beginning(*arguments)
        try:
            said, _ = done.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            done.kill()
            done.communicate()
            pytest.fail(self.daemon.log_text())
        return done.returncode, said

    def beginning(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start ``pgsluice snapshot`` without waiting for its end."""
        action, *others = arguments
        command = [sys.executable, "-m", "pgsluice", "snapshot", action, "-c", str(self.daemon.config_file), *others]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def send(self, *values: bytes | None) -> None:
        """Write arbitrary records to the topic of commands."""
        producer = Producer(properties(self.kafka))
        for value in values:
            producer.produce(f"{self.daemon.name}.commands", value, partition=0)
        assert producer.flush(TIMEOUT_S) == 0

    def answers(self, identifier: str) -> list[dict[str, Any]]:
        """Return all answers to a command so far."""
        values = [json.loads(one.value() or b"{}") for one in self._records()]
        found = [value["answer"] for value in values if isinstance(value, dict) and "answer" in value]
        return [one for one in found if one["id"] == identifier]

    def takes_commands(self) -> bool:
        """Return whether the checkpoint contains the position from which commands are read."""
        records = read_committed(self.kafka, f"{self.daemon.name}.checkpoint")
        return bool(records and json.loads(records[-1].value() or b"")["commands"]["topic_id"])

    def _records(self) -> list[Any]:
        return [one for one in read_committed(self.kafka, f"{self.daemon.name}.commands") if _is_json(one.value())]

    def read(self) -> list[Cut]:
        """Return the cuts that contain everything committed so far."""
        with self.database.connect() as connection:
            connection.execute("INSERT INTO items (id) VALUES (-1) ON CONFLICT (id) DO UPDATE SET v = 'again'")
            row = connection.execute("SELECT pg_current_wal_flush_lsn() - '0/0'").fetchone()
            assert row is not None
        reader = Reader(self.kafka.bootstrap_servers, self.daemon.url, self.daemon.name)
        try:
            return reader.read_until(int(row[0]))
        finally:
            reader.close()


def _is_json(value: bytes | None) -> bool:
    try:
        json.loads(value or b"")
    except ValueError:
        return False
    return True


Follow = Callable[..., Scene]


@pytest.fixture
def follow(kafka: Kafka, database: Database) -> Iterator[Follow]:
    """Provide a function that starts a daemon on a database with three tables. The daemon stops after the test."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY, v text)")
        connection.execute("INSERT INTO items SELECT n, n FROM generate_series(1, %s) n", [ROWS])
        connection.execute("CREATE TABLE others (id int PRIMARY KEY)")
        connection.execute("INSERT INTO others VALUES (1)")
        connection.execute("CREATE TABLE hidden (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE items, others")
    with ExitStack() as stack:

        def begin(**settings: dict[str, Any]) -> Scene:
            name = f"c{uuid4().hex[:10]}"
            given = {**SETTINGS, **settings}
            daemon = stack.enter_context(Daemon(name, database.conninfo(), kafka.bootstrap_servers, given))
            scene = Scene(database, kafka, daemon)
            wait_until(scene.takes_commands, "the pipeline to take commands")
            return scene

        yield begin


def marks(cuts: list[Cut], state: str) -> list[dict[str, Any]]:
    return [mark for cut in cuts for mark in cut.record["snapshots"] if mark["state"] == state]


def rows(cuts: list[Cut]) -> list[int]:
    return sorted(event["after"]["id"] for cut in cuts for event in cut.events if event["op"] == "r")


def command(verb: str, *tables: str, seconds: float = 60.0, where: str = "") -> Command:
    return Command(uuid4().hex, verb, int((time.time() + seconds) * 1000), tables, where)


@pytest.mark.parametrize("mode", ["exactly_once", *long("at_least_once")])
def test_a_table_is_loaded_by_one_command_and_again_by_another(mode: str, follow: Follow) -> None:
    scene = follow(delivery={"mode": mode, "heartbeat": "500ms"})
    for _ in range(2):
        code, said = scene.snapshot("start", "public.items")
        assert (code, said.splitlines()[-1]) == (0, f"public.items: loaded, {ROWS} rows")
    cuts = scene.read()
    assert rows(cuts) == sorted([*range(1, ROWS + 1)] * 2)
    begins, ends = marks(cuts, "begin"), marks(cuts, "end")
    assert len({mark["id"] for mark in begins}) == 2
    assert [mark["rows"] for mark in ends] == [ROWS, ROWS]
    assert all(mark["replaces"] for mark in ends)
    code, said = scene.snapshot("status")
    assert (code, said.splitlines()) == (0, ["loads are not paused", f"public.items  {'loaded':<14}  {ROWS} rows"])


def test_only_some_rows_are_loaded(follow: Follow) -> None:
    """Check that a load of only some rows replaces no rows, and that the table does not count as loaded afterwards."""
    scene = follow()
    code, said = scene.snapshot("start", "public.items", "--where", "id % 10 = 0 -- of all")
    assert (code, said.splitlines()[-1]) == (0, f"public.items: loaded, {ROWS // 10} rows")
    cuts = scene.read()
    assert rows(cuts) == [*range(10, ROWS + 1, 10)]
    (end,) = marks(cuts, "end")
    assert not end["replaces"]
    assert scene.snapshot("status") == (0, "loads are not paused\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["public.item"], "No published table matches public.item."),
        (["public.hidden"], "No published table matches public.hidden."),
        (["items"], "'items' must be a pattern of schema and table"),
        (["public.items", "--where", "nonsense"], 'column "nonsense" does not exist'),
        (["public.items", "--where", "true); DROP TABLE items; SELECT (1"], "cannot insert multiple commands"),
        (["public.items", "--where", "true) LIMIT 1 --"], "syntax error"),
        (["public.items", "--where", "x" * (WHERE_MAX + 1)], f"more than {WHERE_MAX} characters"),
    ],
)
def test_impossible_commands_are_refused(arguments: list[str], complaint: str, follow: Follow) -> None:
    scene = follow()
    code, said = scene.snapshot("start", *arguments)
    assert code == 65
    assert complaint in said
    assert scene.daemon.alive
    assert rows(scene.read()) == []


def test_a_load_is_cancelled_and_not_begun_again(follow: Follow) -> None:
    scene = follow(snapshot={"mode": "initial", "chunk_rows": 50})
    wait_until(lambda: scene.daemon.log_text().count('"event": "loaded"') == 2, "the tables to be loaded")
    assert scene.snapshot("pause") == (0, "done\n")
    loading = scene.beginning("start", "public.*")
    wait_until(lambda: "waiting" in scene.snapshot("status")[1], "the load to be requested")
    assert scene.snapshot("start", "public.others")[0] == 65
    assert scene.snapshot("cancel", "public.items") == (0, "1 cancelled\n")
    assert scene.snapshot("cancel", "public.items") == (65, "pgsluice: None of these tables is being loaded.\n")
    assert scene.snapshot("resume") == (0, "done\n")
    said, _ = loading.communicate(timeout=TIMEOUT_S)
    assert loading.returncode == 65
    assert said.splitlines() == [
        "2 tables will be loaded. Loads are paused.",
        "public.items: It was cancelled. (its load has ended)",
        "public.others: loaded, 1 rows",
        "pgsluice: 1 of 2 tables were not loaded completely.",
    ]
    scene.daemon.restart()
    assert [mark["topic"].rpartition(".")[2] for mark in marks(scene.read(), "end")].count("items") == 1


@pytest.mark.long
def test_a_cancelled_first_load_remains_cancelled(follow: Follow) -> None:
    scene = follow()
    scene.daemon.settings["snapshot"] = {"mode": "initial", "chunk_rows": 1}
    assert scene.snapshot("pause")[0] == 0
    scene.daemon.restart()
    wait_until(lambda: scene.snapshot("cancel", "public.items")[0] == 0, "the load to be cancelled")
    assert scene.snapshot("resume")[0] == 0
    wait_until(lambda: '"event": "loaded"' in scene.daemon.log_text(), "the other table to be loaded")
    scene.daemon.restart()
    scene.snapshot("pause")
    assert scene.snapshot("status")[1].splitlines() == [
        "loads are paused",
        f"public.items   {'cancelled':<14}  0 rows",
        f"public.others  {'loaded':<14}  1 rows",
    ]
    assert rows(scene.read()) == [1]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["exactly_once", *long("at_least_once")])
def test_a_pause_survives_restarts(mode: str, follow: Follow) -> None:
    slow = {"mode": "never", "chunk_rows": 1, "max_rows_per_second": 20}
    scene = follow(delivery={"mode": mode, "heartbeat": "500ms"}, snapshot=slow)
    loading = scene.beginning("start", "public.items")
    wait_until(lambda: "loading " in scene.snapshot("status")[1], "the load to begin")
    assert scene.snapshot("pause") == (0, "done\n")
    code, before = scene.snapshot("status")
    for _ in range(2):
        scene.daemon.kill()
        scene.daemon.start()
    assert scene.snapshot("status") == (code, before)
    assert re.match(r"loads are paused\npublic.items  loading +\d+ rows\n", before)
    scene.daemon.settings["snapshot"] = {"mode": "never", "chunk_rows": 50}
    scene.daemon.restart()
    assert scene.snapshot("resume") == (0, "done\n")
    said, _ = loading.communicate(timeout=TIMEOUT_S)
    assert (loading.returncode, said.splitlines()[-1]) == (0, f"public.items: loaded, {ROWS} rows")
    (end,) = marks(scene.read(), "end")
    assert end["rows"] == ROWS


@pytest.mark.parametrize("mode", ["exactly_once", *long("at_least_once")])
@pytest.mark.parametrize("moment", ["before it is read", "before its first cut", "after it"])
def test_a_command_is_carried_out_once_whenever_the_daemon_is_killed(mode: str, moment: str, follow: Follow) -> None:
    scene = follow(delivery={"mode": mode, "heartbeat": "500ms"})
    given = command("start", "public.items")
    if moment == "before it is read":
        scene.daemon.kill()
    scene.send(given.to_json())
    if moment == "before its first cut":
        wait_until(lambda: f'"id": "{given.id}"' in scene.daemon.log_text(), "the command to be read")
    if moment == "after it":
        wait_until(lambda: scene.answers(given.id), "the answer")
    if moment != "before it is read":
        scene.daemon.kill()
    scene.daemon.start()
    wait_until(lambda: "loaded" in [one["outcome"] for one in scene.answers(given.id)], "the table to be loaded")
    cuts = scene.read()
    outcomes = [one["outcome"] for one in scene.answers(given.id)]
    if mode == "exactly_once":
        assert outcomes == ["accepted", "loaded"]
        assert rows(cuts) == [*range(1, ROWS + 1)]
    assert len({mark["id"] for mark in marks(cuts, "end")}) == 1


def test_a_late_command_is_refused(follow: Follow) -> None:
    scene = follow()
    late = command("start", "public.items", seconds=-1)
    scene.send(late.to_json())
    wait_until(lambda: scene.answers(late.id), "the answer")
    (answer,) = scene.answers(late.id)
    assert (answer["outcome"], answer["detail"]) == ("refused", "The command expired before it was carried out.")
    assert rows(scene.read()) == []


@pytest.mark.long
def test_records_that_are_not_commands_are_ignored(follow: Follow) -> None:
    scene = follow()
    garbage = [
        None,
        b"",
        b"\xff",
        b"[]",
        b'{"version": 2, "command": {}}',
        b'{"version": 1, "command": {"id": "x", "verb": "drop", "expires_ms": 1}}',
        b'{"version": 1, "command": []}',
        bytes(COMMAND_BYTES_MAX + 1),
    ]
    scene.send(*garbage)
    assert scene.snapshot("start", "public.items")[0] == 0
    scene.daemon.restart()
    assert scene.snapshot("start", "public.others")[0] == 0
    assert "a record in the topic of commands is ignored" in scene.daemon.log_text()
    assert rows(scene.read()) == sorted([*range(1, ROWS + 1), 1])


@pytest.mark.long
def test_without_a_daemon_no_command_is_sent(kafka: Kafka, follow: Follow) -> None:
    scene = follow()
    scene.daemon.name = f"c{uuid4().hex[:10]}"
    scene.daemon.config_file.write_text(scene.daemon.configuration())
    code, said = scene.snapshot("pause")
    assert code == 69
    assert f"There is no topic {scene.daemon.name}.commands. `pgsluice run` creates it when it starts" in said
    create_topic(kafka, f"{scene.daemon.name}.commands")
    create_topic(kafka, f"{scene.daemon.name}.checkpoint", cleanup_policy="compact")
    code, said = scene.snapshot("pause")
    assert code == 69
    assert "No pipeline has read topic" in said
    assert scene.snapshot("status")[0] == 69


def test_a_detached_command_returns_immediately(follow: Follow) -> None:
    scene = follow()
    code, said = scene.snapshot("start", "public.items", "--detach")
    assert code == 0
    found = re.fullmatch(r"command ([0-9a-f]{32}) was sent\n", said)
    assert found is not None
    wait_until(lambda: "loaded" in [one["outcome"] for one in scene.answers(found[1])], "the table to be loaded")
