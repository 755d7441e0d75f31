"""Tests ``pgsluice pause`` and ``resume``. Changes that are committed during a pause must arrive once, after resume."""

import subprocess
import sys
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest

from sandbox.daemon import Daemon
from sandbox.postgres import Postgres
from tests.support.kafka import TIMEOUT_S, end_of
from tests.support.versions import long
from tests.support.weather import Pipeline, Start, wait_until

PAUSED = "The pipeline is paused. PostgreSQL keeps its WAL until `pgsluice resume`.\n"
PAUSED_ALREADY = PAUSED.replace("is paused", "was paused already")
GOES_ON = "The pipeline continues.\n"

QUIET_S = 2.0
"""How long a test checks that nothing arrives. Without a pause, everything arrives within a second."""

WAL_SENDER_TIMEOUT_S = 2

FAR_MORE = 300, 100_000
"""The number of rows and their width.

This is much more data than connections buffer, and more than one read of pgsluice returns.
"""


def give(daemon: Daemon, *command: str) -> tuple[int, str]:
    """Run a command for the pipeline of ``daemon``. Return its exit code and its output."""
    name, *others = command
    line = [sys.executable, "-m", "pgsluice", name, *others, "-c", str(daemon.config_file)]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S)  # noqa: PLW1510 - the caller checks the exit code
    return done.returncode, done.stdout


def end(pipeline: Pipeline) -> int:
    """Return the end offset of the topic of ``numbers``."""
    return end_of(pipeline.kafka, f"{pipeline.daemon.name}.public.numbers")


def assert_nothing_arrives(pipeline: Pipeline) -> None:
    before = end(pipeline)
    time.sleep(QUIET_S)
    assert end(pipeline) == before


@pytest.mark.parametrize("mode", ["exactly_once", *long("at_least_once")])
def test_a_pause_is_shown_and_survives_restarts_until_resume(mode: str, start: Start) -> None:
    pipeline = start({"delivery": {"mode": mode}})
    daemon = pipeline.daemon
    assert give(daemon, "resume") == (0, "The pipeline was not paused.\n")
    pipeline.write()
    pipeline.wait_until_confirmed()
    assert daemon.status()["paused"] is False
    assert give(daemon, "pause") == (0, PAUSED)
    assert give(daemon, "pause") == (0, PAUSED_ALREADY)
    pipeline.write()
    assert_nothing_arrives(pipeline)
    status = daemon.status()
    assert (status["paused"], status["state"]) == (True, "streaming")
    assert status["confirmed_lsn"] == status["delivered_lsn"]
    wait_until(lambda: daemon.metric("pgsluice_paused") == 1, "the metric")
    assert daemon.readiness("active") == HTTPStatus.OK
    assert "the pipeline is paused: nothing is delivered" in daemon.log_text()
    assert give(daemon, "snapshot", "status")[1].splitlines()[0] == "the pipeline is paused, until `pgsluice resume`"
    daemon.restart()  # checks that the exit code is 0
    pipeline.write()
    assert_nothing_arrives(pipeline)
    assert daemon.status()["paused"] is True
    daemon.kill()
    daemon.start()
    assert pipeline.read(10) == [*range(1, 11)]
    assert give(daemon, "resume") == (0, GOES_ON)
    pipeline.assert_complete()
    wait_until(lambda: daemon.metric("pgsluice_paused") == 0, "the metric")
    assert daemon.status()["paused"] is False


def test_a_standby_takes_over_the_pause(start: Start) -> None:
    owner = start()
    owner.write()
    owner.wait_until_confirmed()
    assert give(owner.daemon, "pause") == (0, PAUSED)
    owner.write()
    dsn, brokers, settings = owner.database.conninfo(), owner.kafka.bootstrap_servers, owner.daemon.settings
    with Daemon(owner.daemon.name, dsn, brokers, settings, wait_for="any") as daemon:
        standby = Pipeline(owner.database, owner.kafka, daemon)
        standby.wait_for(state="standby", paused=None)
        owner.daemon.kill()
        standby.wait_for(state="streaming", paused=True)
        standby.expect(owner)
        standby.write()
        assert_nothing_arrives(standby)
        assert give(daemon, "resume") == (0, GOES_ON)
        standby.assert_complete()


def test_the_connection_outlives_wal_sender_timeout_without_reads(start: Start) -> None:
    timing: dict[str, Any] = {"wal_sender_timeout": f"{WAL_SENDER_TIMEOUT_S}s", "status_interval": "500ms"}
    pipeline = start({"postgres": timing})
    daemon = pipeline.daemon
    pipeline.write()
    pipeline.wait_until_confirmed()
    assert give(daemon, "pause") == (0, PAUSED)
    pipeline.write_at_once(*FAR_MORE)
    time.sleep(3 * WAL_SENDER_TIMEOUT_S)
    status = daemon.status()
    assert (status["paused"], status["buffered_bytes"]) == (True, 0)
    assert daemon.metric("pgsluice_sessions_total") == 1
    assert give(daemon, "resume") == (0, GOES_ON)
    pipeline.assert_complete()
    assert daemon.metric("pgsluice_sessions_total") == 1


@pytest.mark.long
@pytest.mark.parametrize("is_restarted", [False, True])
def test_open_and_prepared_transactions_can_end_during_a_pause(start: Start, *, is_restarted: bool) -> None:
    pipeline = start({"postgres": {"streaming": "on", "two_phase": True}}, version=18)
    daemon = pipeline.daemon
    with pipeline.database.connect() as connection:
        connection.execute(f"ALTER DATABASE {pipeline.database.name} SET logical_decoding_work_mem = '64kB'")
    daemon.restart()
    pipeline.write(1)
    pipeline.wait_until_confirmed()
    with pipeline.database.connect() as large, pipeline.database.connect() as prepared:
        large.execute("BEGIN")
        pipeline.write_in(large, 1000, 1000)
        prepared.execute("BEGIN")
        pipeline.write_in(prepared, 1)
        prepared.execute(f"PREPARE TRANSACTION '{pipeline.slot}'")
        wait_until(lambda: daemon.status()["waiting_transactions"] == 2, "both transactions to be received")
        assert give(daemon, "pause") == (0, PAUSED)
        large.execute("COMMIT")
        prepared.execute(f"COMMIT PREPARED '{pipeline.slot}'")
    pipeline.write(1)
    assert_nothing_arrives(pipeline)
    if is_restarted:
        daemon.restart()
        assert_nothing_arrives(pipeline)
    assert give(daemon, "resume") == (0, GOES_ON)
    assert pipeline.read(1003) == [*range(1, 1004)]
    pipeline.wait_until_confirmed()


@pytest.mark.long
def test_a_load_also_stops(start: Start) -> None:
    pipeline = start({"snapshot": {"chunk_rows": 1, "max_rows_per_second": 20}})
    daemon = pipeline.daemon
    pipeline.write_at_once(100)
    pipeline.wait_until_confirmed()
    before = end(pipeline)
    assert give(daemon, "snapshot", "start", "public.numbers", "--detach")[0] == 0
    wait_until(lambda: end(pipeline) > before, "the load to begin")
    assert give(daemon, "pause") == (0, PAUSED)
    assert_nothing_arrives(pipeline)
    code, said = give(daemon, "snapshot", "start", "public.numbers")
    assert (code, "The pipeline is paused. Run `pgsluice resume`" in said) == (65, True)
    daemon.restart()
    assert_nothing_arrives(pipeline)
    assert give(daemon, "resume") == (0, GOES_ON)
    assert pipeline.read(200) == [*range(1, 101)] * 2


@pytest.fixture
def server() -> Iterator[Postgres]:
    """Provide a server that the test can stop."""
    with Postgres(18) as server:
        yield server


@pytest.mark.long
def test_a_server_that_shuts_down_is_released(server: Postgres, start: Start) -> None:
    pipeline = start(server=server)
    pipeline.write()
    pipeline.wait_until_confirmed()
    assert give(pipeline.daemon, "pause") == (0, PAUSED)
    pipeline.write()
    server.restart("fast")
    pipeline.wait_for(state="streaming", paused=True)
    assert_nothing_arrives(pipeline)
    assert give(pipeline.daemon, "resume") == (0, GOES_ON)
    pipeline.assert_complete()
