"""Tests that nothing is lost, doubled, torn or out of order after random kills. ``make faults`` runs for longer."""

import random

import pytest

from tests.faults.daemon import STEPS
from tests.faults.run import VERSIONS, Subject, run
from tests.faults.script import BROKER_ISOLATED

KILLS = 12
AT_LEAST_ONCE_KILLS = 4


@pytest.mark.parametrize("name", STEPS)
def test_the_product_has_the_step(name: str) -> None:
    assert callable(getattr(STEPS[name].owner, STEPS[name].method, None))


@pytest.mark.timeout(1200)
def test_exactly_once_loses_and_repeats_nothing() -> None:
    """Run some rounds. A failure prints the arguments with which ``make faults`` draws the same faults again."""
    subject = Subject(sorted(random.sample(VERSIONS, 2)))
    report = run(str(random.randrange(10**6)), KILLS, subject, print)
    assert report.tally.transactions > 0
    assert report.tally.sums > 0
    assert report.tally.positions > 0
    assert any(kind.startswith("PostgreSQL restored") for kind in report.faults)
    assert any(kind.startswith(BROKER_ISOLATED) for kind in report.faults)


@pytest.mark.timeout(900)
def test_at_least_once_loses_nothing_and_repeats_only_changes_after_the_last_checkpoint() -> None:
    subject = Subject([16], "at_least_once")
    report = run(str(random.randrange(10**6)), AT_LEAST_ONCE_KILLS, subject, print)
    assert report.tally.repeated > 0
