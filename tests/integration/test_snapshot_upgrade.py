"""Tests which tables are loaded by default.

A new pipeline loads all its tables. A pipeline that an earlier version of pgsluice has run loads only new tables.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from pgsluice.app import cli
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import DEFAULT_VERSION, Database
from tests.support.kafka import admin, commit, read_committed
from tests.support.log import restored_logging  # noqa: F401 - a fixture
from tests.support.weather import Pipeline, configured, prepare, wait_until

pytestmark = pytest.mark.usefixtures("restored_logging")

ROWS = 10
"""The number of rows that exist before the pipeline starts. Tests write the same number of rows later, as changes."""


@pytest.fixture
def filled(new_database: Callable[..., Database], kafka: Kafka) -> Iterator[Pipeline]:
    """Provide a pipeline that has never been started, on a table that has rows."""
    database = new_database(DEFAULT_VERSION)
    prepare(database)
    daemon = Daemon(f"u{uuid4().hex[:10]}", database.conninfo(), kafka.bootstrap_servers, at_once=False)
    with daemon:
        pipeline = Pipeline(database, kafka, daemon)
        pipeline.write(ROWS)
        yield pipeline


@pytest.fixture
def former(filled: Pipeline) -> Pipeline:
    """Provide a stopped pipeline in the state that an earlier version, which loaded no tables, would leave behind."""
    daemon = filled.daemon
    choose(filled, "never")
    daemon.start()
    filled.write(ROWS)
    filled.wait_until_confirmed()
    assert daemon.stop() == 0
    last = checkpoints(filled)[-1]
    del last["tracks_loads"]
    commit(filled.kafka, f"{daemon.name}.checkpoint", json.dumps(last).encode(), key=daemon.name.encode())
    return filled


def choose(pipeline: Pipeline, mode: str | None, delivery: str = "exactly_once") -> None:
    """Set snapshot.mode for all later starts. If ``mode`` is None, remove the setting."""
    pipeline.daemon.settings |= {**configured({"snapshot": {"mode": mode}, "delivery": {"mode": delivery}})}


def checkpoints(pipeline: Pipeline) -> list[dict[str, Any]]:
    found = read_committed(pipeline.kafka, f"{pipeline.daemon.name}.checkpoint")
    return [json.loads(message.value() or b"") for message in found]


def states(pipeline: Pipeline) -> dict[str, int]:
    found = pipeline.daemon.status()["snapshot"]
    return {state: number for state, number in found["tables"].items() if number} if found else {}


def ops(pipeline: Pipeline, count: int) -> dict[str, list[int]]:
    """Return the numbers that the events of the table contain, grouped by operation."""
    found: dict[str, list[int]] = {}
    for change in pipeline.changes(count):
        found.setdefault(change["op"], []).append(change["after"]["n"])
    return {op: sorted(numbers) for op, numbers in found.items()}


FIRST, SECOND = list(range(1, ROWS + 1)), list(range(ROWS + 1, 2 * ROWS + 1))


@pytest.mark.long
def test_a_new_pipeline_loads_its_tables(filled: Pipeline) -> None:
    choose(filled, None)
    filled.daemon.start()
    wait_until(lambda: states(filled) == {"loaded": 1}, "the table to be loaded")
    assert ops(filled, ROWS) == {"r": FIRST}


@pytest.mark.long
@pytest.mark.parametrize("records", [1, 2])
def test_tables_are_loaded_even_if_the_first_start_crashes_after_its_first_records(
    filled: Pipeline, records: int
) -> None:
    choose(filled, None)
    filled.daemon.start(wait=False)
    wait_until(lambda: has_checkpoints(filled, records), "the checkpoint")
    filled.daemon.kill()
    filled.daemon.start()
    wait_until(lambda: states(filled) == {"loaded": 1}, "the table to be loaded")
    assert ops(filled, ROWS) == {"r": FIRST}


def has_checkpoints(pipeline: Pipeline, records: int) -> bool:
    assert pipeline.daemon.alive, pipeline.daemon.log_text()
    topic = f"{pipeline.daemon.name}.checkpoint"
    return topic in admin(pipeline.kafka).list_topics(timeout=30).topics and len(checkpoints(pipeline)) >= records


@pytest.mark.long
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_tables_delivered_by_an_earlier_version_count_as_loaded(
    former: Pipeline, delivery: str, capsys: pytest.CaptureFixture[str]
) -> None:
    choose(former, None, delivery)
    for delay_s in (0.2, 0.5, 0.8, 1.1):  # kill the daemon several times, during its start and afterwards
        former.daemon.start(wait=False)
        time.sleep(delay_s)
        former.daemon.kill()
    former.daemon.start()
    wait_until(lambda: states(former) == {"assumed": 1}, "the table to count as loaded")
    with former.database.connect() as connection:
        connection.execute("CREATE TABLE later (n int PRIMARY KEY); INSERT INTO later VALUES (1)")
    wait_until(lambda: states(former) == {"assumed": 1, "loaded": 1}, "the new table to be loaded")
    former.daemon.restart()
    wait_until(lambda: states(former) == {"assumed": 1, "loaded": 1}, "both tables to count as loaded")
    assert ops(former, ROWS) == {"c": SECOND}

    configuration = str(former.daemon.config_file)
    assert cli.main(["snapshot", "status", "-c", configuration]) == 0
    assert "assumed" in capsys.readouterr().out
    assert cli.main(["snapshot", "start", "-c", configuration, "public.numbers"]) == 0
    assert ops(former, 3 * ROWS) == {"c": SECOND, "r": FIRST + SECOND}
    wait_until(lambda: states(former) == {"loaded": 2}, "the table to be loaded")


@pytest.mark.long
@pytest.mark.parametrize("pipeline", ["filled", "former"])
def test_a_chosen_mode_is_obeyed(pipeline: str, request: pytest.FixtureRequest) -> None:
    """Check that "never" neither loads a table nor counts it as loaded, and that a later "initial" loads the tables."""
    found: Pipeline = request.getfixturevalue(pipeline)
    choose(found, "never")
    found.daemon.start()
    found.write(1)
    found.wait_until_confirmed()
    wait_until(lambda: checkpoints(found)[-1]["tracks_loads"], "a checkpoint")
    assert states(found) == {}
    found.daemon.stop()
    choose(found, "initial")
    found.daemon.start()
    wait_until(lambda: states(found) == {"loaded": 1}, "the table to be loaded")
    rows = found.committed()
    assert ops(found, 2 * len(rows) - ROWS)["r"] == rows
