"""Whatever happens in PostgreSQL, a consumer that replays the topics has the same tables, on every version.

The scenarios stand in ``scenarios``; those of one server version run side by side, followed by one daemon.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from sandbox.kafka import Kafka
from sandbox.postgres import Postgres
from tests.integration.scenarios import ddl, limits, names, publications, rows, settings, transactions, types
from tests.support.run import Followed, Verdict
from tests.support.scenario import Scenario

VERSIONS = (10, 13, 14, 15, 16, 17, 18)

AT_ONCE = 2
"""Runs of several versions wait for each other's Kafka and PostgreSQL more than they compute."""

SCENARIOS: list[Scenario] = [
    *rows.SCENARIOS,
    *names.SCENARIOS,
    *types.SCENARIOS,
    *limits.SCENARIOS,
    *publications.SCENARIOS,
    *transactions.SCENARIOS,
    *ddl.SCENARIOS,
    *settings.SCENARIOS,
]

pytestmark = pytest.mark.timeout(900)  # the first test of a version waits for all of its scenarios


@dataclass(frozen=True)
class Outcome:
    """What came of all scenarios on one version."""

    verdicts: dict[str, Verdict]
    problems: list[str]


def run(version: int, kafka: Kafka) -> Outcome:
    """Carry out all scenarios that the version can."""
    scenarios = [scenario for scenario in SCENARIOS if scenario.runs_on(version)]
    with (
        Postgres(version) as server,
        server.database() as database,
        Followed(f"v{version}", database, kafka, scenarios) as followed,
    ):
        followed.work()
        return Outcome(followed.judge(), followed.general_problems())


@pytest.fixture(scope="module")
def outcome_of(kafka: Kafka, request: pytest.FixtureRequest) -> Iterator[Callable[[int], Outcome]]:
    """Run all versions that were asked for, some at a time; give the outcome of each once it is there."""
    wanted = {item.callspec.params.get("version") for item in request.session.items if hasattr(item, "callspec")}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes: dict[int, Future[Outcome]] = {
            version: pool.submit(run, version, kafka) for version in VERSIONS if version in wanted
        }
        yield lambda version: outcomes[version].result()
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module", params=VERSIONS, ids="PostgreSQL {}".format)
def version(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_mirror_is_equal(version: int, scenario: Scenario, outcome_of: Callable[[int], Outcome]) -> None:
    if not scenario.runs_on(version):
        pytest.skip(scenario.lacking)
    outcome_of(version).verdicts[scenario.name].confirm()


def test_cuts_are_consistent(version: int, outcome_of: Callable[[int], Outcome]) -> None:
    assert outcome_of(version).problems == []
