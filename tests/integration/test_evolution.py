"""Tables that change while they are followed: what arrives, which schemas there are, and who can read what with them.

The scenarios stand in ``scenarios/evolution.py``; those of one server version run side by side, followed by one daemon.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from sandbox.kafka import Kafka
from sandbox.postgres import Postgres
from tests.integration.scenarios.evolution import SCENARIOS
from tests.support.compatibility import Pair, fastavro_problems, java_problems, pairs
from tests.support.run import Followed, Verdict
from tests.support.scenario import Scenario

VERSIONS = (10, 14, 18)

pytestmark = pytest.mark.timeout(600)  # the first test waits for all scenarios


@dataclass(frozen=True)
class Outcome:
    """What came of all scenarios on one version."""

    verdicts: Mapping[str, Verdict]
    problems: list[str]
    pairs: list[Pair]


def run(version: int, kafka: Kafka) -> Outcome:
    """Carry out all scenarios that the version can."""
    scenarios = [scenario for scenario in SCENARIOS if scenario.runs_on(version)]
    with (
        Postgres(version) as server,
        server.database() as database,
        Followed(f"e{version}", database, kafka, scenarios) as followed,
    ):
        with database.connect() as connection:
            connection.execute("CREATE TABLE public.filler (n int)")
        followed.work_killed()
        events = [event for events in followed.replay.events.values() for event in events]
        return Outcome(
            followed.judge(),
            followed.general_problems(),
            pairs(followed.reader.registry, followed.name, events),
        )


@pytest.fixture(scope="module")
def outcomes(kafka: Kafka) -> Iterator[Mapping[int, Future[Outcome]]]:
    """Run all versions side by side."""
    with ThreadPoolExecutor(len(VERSIONS)) as pool:
        yield {version: pool.submit(run, version, kafka) for version in VERSIONS}


@pytest.fixture(params=VERSIONS, ids="PostgreSQL {}".format)
def version(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def outcome(version: int, outcomes: Mapping[int, Future[Outcome]]) -> Outcome:
    return outcomes[version].result()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_mirror_is_equal(version: int, scenario: Scenario, outcome: Outcome) -> None:
    if not scenario.runs_on(version):
        pytest.skip(scenario.lacking)
    outcome.verdicts[scenario.name].confirm()


def test_cuts_are_consistent(outcome: Outcome) -> None:
    assert outcome.problems == []


def test_fastavro_reads_old_rows_with_new_schemas_and_new_rows_with_old_ones(outcome: Outcome) -> None:
    assert fastavro_problems(outcome.pairs) == []


def test_java_reads_them_too_and_finds_the_schemas_compatible(outcomes: Mapping[int, Future[Outcome]]) -> None:
    found = [pair for outcome in outcomes.values() for pair in outcome.result().pairs]
    assert {pair.compatible for pair in found} == {True, False}
    assert java_problems(found) == []
