"""Tests that a consumer that replays the topics gets the same tables as PostgreSQL, on every version.

The scenarios are in ``scenarios``. All scenarios of a server version run at the same time, with one daemon.
"""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from tests.integration.scenarios import (
    ddl,
    limits,
    names,
    prepared,
    publications,
    rows,
    settings,
    storm,
    transactions,
    types,
    whole,
)
from tests.support.compatibility import Pair, fastavro_problems, java_problems
from tests.support.run import Followed, Verdict
from tests.support.scenario import Scenario
from tests.support.versions import covered

VERSIONS = covered((10, 13, 14, 15, 16, 17, 18), usual=(10, 18))

OPTIONS: Mapping[int, Mapping[str, Any]] = {
    15: {"two_phase": True},
    16: {"streaming": "parallel"},
    17: {"two_phase": True, "streaming": "off"},
    18: {"two_phase": True},
}
"""Settings that change how the server sends changes, but not what consumers see."""

AT_ONCE = 2
"""The number of server versions that are tested at the same time. The scenarios mostly wait for the servers."""

SCENARIOS: list[Scenario] = [
    *rows.SCENARIOS,
    *names.SCENARIOS,
    *types.SCENARIOS,
    *limits.SCENARIOS,
    *publications.SCENARIOS,
    *transactions.SCENARIOS,
    *prepared.SCENARIOS,
    *ddl.SCENARIOS,
    *settings.SCENARIOS,
    *storm.SCENARIOS,
]
"""The scenarios that run in the first database. The scenarios in ``whole`` run in a second database."""

pytestmark = pytest.mark.timeout(900)  # the first test of a version waits for all of its scenarios


@dataclass(frozen=True)
class Outcome:
    """The results of all scenarios on one version."""

    verdicts: dict[str, Verdict]
    problems_of_cuts: list[str]
    problems_of_idling: list[str]
    log: str
    pairs: list[Pair]


@contextmanager
def latin1_database(server: Postgres) -> Iterator[Database]:
    """Create a database whose encoding is LATIN1. Drop it after the block."""
    database = Database(server, "latin1")
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {database.name} ENCODING 'LATIN1' TEMPLATE template0")
    try:
        yield database
    finally:
        server.drop_database(database.name)


def run(version: int, kafka: Kafka) -> Outcome:
    """Run all scenarios that the version supports, and then those of a second database on the same server."""
    scenarios = [scenario for scenario in SCENARIOS if scenario.runs_on(version)]
    with (
        Postgres(version) as server,
        server.database() as database,
        Followed(f"v{version}", database, kafka, scenarios, {"postgres": OPTIONS.get(version, {})}) as followed,
    ):
        followed.work()
        followed.crash()
        with (
            latin1_database(server) as another,
            Followed(f"v{version}_whole", another, kafka, whole.SCENARIOS, whole.SETTINGS) as beside,
        ):
            beside.work_undisturbed()
            idling = followed.idle_until(beside.read_lsn)
            verdicts = followed.judge() | beside.judge()
            problems = [*followed.general_problems(), *beside.general_problems()]
            log = followed.daemon.log_text() + beside.daemon.log_text()
            return Outcome(verdicts, problems, idling, log, [*followed.pairs(), *beside.pairs()])


@pytest.fixture(scope="module")
def outcomes(kafka: Kafka, request: pytest.FixtureRequest) -> Iterator[Mapping[int, Future[Outcome]]]:
    """Run all versions for which tests were selected, a few at a time."""
    wanted = {item.callspec.params.get("version") for item in request.session.items if hasattr(item, "callspec")}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {version: pool.submit(run, version, kafka) for version in VERSIONS if version in wanted}
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module", params=VERSIONS, ids="PostgreSQL {}".format)
def version(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def outcome(version: int, outcomes: Mapping[int, Future[Outcome]]) -> Outcome:
    return outcomes[version].result()


@pytest.mark.parametrize("scenario", [*SCENARIOS, *whole.SCENARIOS], ids=lambda scenario: scenario.name)
def test_mirror_is_equal(version: int, scenario: Scenario, outcome: Outcome) -> None:
    if not scenario.runs_on(version):
        pytest.skip(scenario.lacking)
    outcome.verdicts[scenario.name].confirm()


def test_cuts_are_consistent(outcome: Outcome) -> None:
    assert outcome.problems_of_cuts == []


def test_fastavro_reads_old_rows_with_new_schemas_and_new_rows_with_old_ones(outcome: Outcome) -> None:
    assert fastavro_problems(outcome.pairs) == []


def test_java_reads_rows_with_all_schemas_and_finds_them_compatible(outcomes: Mapping[int, Future[Outcome]]) -> None:
    assert java_problems([pair for outcome in outcomes.values() for pair in outcome.result().pairs]) == []


def test_log_contains_no_values(outcome: Outcome) -> None:
    lines = [json.loads(line) for line in outcome.log.splitlines()]
    assert {line["level"] for line in lines} <= {"info", "warning"}
    assert limits.A_VALUE not in outcome.log


def test_other_databases_only_move_the_slot(outcome: Outcome) -> None:
    assert outcome.problems_of_idling == []
