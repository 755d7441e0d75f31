"""Runs the commands against real servers, one after another, as a user would run them in a shell."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pgsluice.app import cli
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.support.command import running
from tests.support.kafka import admin, delete_topic
from tests.support.log import restored_logging  # noqa: F401 - a fixture


@pytest.fixture
def settings(database: Database, kafka: Kafka, tmp_path: Path, port: int) -> str:
    with database.connect() as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES")
    file = tmp_path / "pgsluice.toml"
    file.write_text(
        f'version = 1\nname = "shop"\npostgres.dsn = "{database.conninfo()}"\npostgres.slot = "{database.name}"\n'
        f'kafka.bootstrap_servers = "{kafka.bootstrap_servers}"\nkafka.topic_prefix = "{database.name}"\n'
        f'http.listen = "127.0.0.1:{port}"\n'
    )
    return str(file)


@pytest.mark.usefixtures("restored_logging")
def test_check_and_the_slot_commands_report_what_they_find(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "-c", settings, "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert findings[0] == {"name": "configuration", "verdict": "OK", "detail": "can be used", "remedy": ""}
    assert len(findings) > 5
    assert found(findings, "history") == ["nothing was delivered yet; run would begin with a new slot"]
    assert cli.main(["slot", "status", "-c", settings]) == 69
    assert "does not exist: create it with" in capsys.readouterr().err
    assert cli.main(["slot", "create", "-c", settings]) == 0
    assert "created, its stream begins at 0/" in capsys.readouterr().out
    assert cli.main(["slot", "status", "-c", settings]) == 0
    outline = capsys.readouterr().out.splitlines()
    assert outline[1] == "plugin               pgoutput"
    assert any(line.startswith("confirmed_flush_lsn  0/") for line in outline)
    facts = dict(line.split(maxsplit=1) for line in outline)
    assert (facts["active_pid"], facts["wal_status"], facts["safe_bytes"]) == ("-", "reserved", "-")
    assert int(facts["retained_bytes"]) > 0
    assert cli.main(["slot", "create", "-c", settings]) == 69
    said = capsys.readouterr().err
    assert said.startswith("pgsluice: Replication slot ")
    assert "exists already, and nobody streams from it. Nothing was created" in said
    assert cli.main(["slot", "drop", "-c", settings]) == 0
    assert cli.main(["slot", "drop", "-c", settings]) == 69
    assert "does not exist on this server, so nothing was dropped" in capsys.readouterr().err


@pytest.mark.usefixtures("restored_logging")
def test_a_slot_in_use_is_not_dropped(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    with running(settings, "run"):
        while cli.main(["health", "-c", settings, "--role", "active"]) != 0:
            time.sleep(0.1)
        capsys.readouterr()
        assert cli.main(["slot", "status", "-c", settings]) == 0
        facts = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        pid = int(facts["active_pid"])
        assert cli.main(["slot", "create", "-c", settings]) == 69
        assert f"exists already, and process {pid} streams from it" in capsys.readouterr().err
        assert cli.main(["slot", "drop", "-c", settings]) == 69
        error = capsys.readouterr().err
        assert "is in use, so it was not dropped" in error
        assert f"PID {pid}" in error


def found(findings: list[dict[str, str]], name: str, verdict: str = "OK") -> list[str]:
    """Return the details of the findings with this name. Check that all of them have this verdict."""
    some = [one for one in findings if one["name"] == name]
    assert [one["verdict"] for one in some] == [verdict] * len(some)
    return [one["detail"] for one in some]


@pytest.mark.usefixtures("restored_logging")
def test_check_fails_where_a_start_would_refuse_the_history(
    settings: str, database: Database, kafka: Kafka, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"{database.name}.public.orders"

    def history(code: int, verdict: str) -> str:
        capsys.readouterr()
        assert cli.main(["check", "-c", settings, "--json"]) == code
        (detail,) = found(json.loads(capsys.readouterr().out), "history", verdict)
        return detail

    assert cli.main(["slot", "create", "-c", settings]) == 0
    assert "exists, but there is no checkpoint for it in Kafka" in history(65, "FAIL")
    assert cli.main(["slot", "drop", "-c", settings]) == 0
    with running(settings, "run"):
        while cli.main(["health", "-c", settings, "--role", "active"]) != 0:
            time.sleep(0.1)
        assert history(0, "OK") == "a process is streaming already; another process would be its standby"
        with database.connect() as connection:
            connection.execute("INSERT INTO orders VALUES (0)")
        while topic not in admin(kafka).list_topics(timeout=30).topics:
            time.sleep(0.1)
    assert "run would continue at 0/" in history(0, "OK")
    with database.connect() as connection:
        connection.execute("INSERT INTO orders VALUES (1)")
        while connection.execute("SELECT FROM pg_replication_slots WHERE active").fetchall():
            time.sleep(0.1)
        connection.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [database.name])
        assert "Somebody else advanced or re-created the slot" in history(65, "FAIL")
        connection.execute("SELECT pg_drop_replication_slot(%s)", [database.name])
    assert "does not exist on this server, but changes before" in history(65, "FAIL")
    delete_topic(kafka, topic)
    assert history(65, "FAIL").startswith(f"Topic {topic} was deleted. Consumers miss")
    delete_topic(kafka, f"{database.name}.transactions")
    assert history(65, "FAIL").startswith(f"Topic {database.name}.transactions is empty, but cut")


def test_a_registry_runs_without_a_pipeline(settings: str) -> None:
    with running(settings, "registry"):
        pass


def test_the_status_is_watched_even_while_no_daemon_answers(settings: str) -> None:
    command = [sys.executable, "-m", "pgsluice", "status", "-c", settings, "--watch", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        lines = iter(watching.stdout)
        assert "no daemon answers at" in next(lines)
        with running(settings, "run"):
            assert any(line.startswith("state ") for line in lines)
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=60)
    assert watching.returncode == 130


def test_run_delivers_until_it_is_stopped(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    with running(settings, "run"):
        while cli.main(["health", "-c", settings, "--role", "active"]) != 0:
            time.sleep(0.1)
        capsys.readouterr()
        assert cli.main(["status", "-c", settings]) == 0
        assert "state" in capsys.readouterr().out
        command = [sys.executable, "-m", "pgsluice", "status", "-c", settings, "--watch", "0.1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
            assert watching.stdout is not None
            states = (line for line in watching.stdout if line.startswith("state "))
            assert [next(states).split()[1] for _ in range(3)] == ["streaming"] * 3
            watching.send_signal(signal.SIGINT)
            _, errors = watching.communicate(timeout=60)
        assert (watching.returncode, errors) == (130, "")


@pytest.mark.usefixtures("restored_logging")
def test_run_stops_with_a_message(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "-c", settings, "--set", "postgres.create_slot=false"]
    assert cli.main(command) == 78
    (*_, last) = map(json.loads, capsys.readouterr().err.splitlines())
    assert (last["level"], last["event"], last["exit_code"]) == ("critical", "stopped", 78)
    assert cli.main([*command, "--set", "log.format=console"]) == 78
    assert capsys.readouterr().err.splitlines()[-1] == f"pgsluice: {last['reason']}"
