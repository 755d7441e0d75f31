"""The rest between two transactions, with a Kafka that needs a certain time for its markers."""

import random

import pytest

from pgsluice.kafka.rest import RESTS_S, TRIED_EVERY, USUAL_S, Rest

REFUSED_S = 0.02
"""The pause of librdkafka after Kafka has refused a transaction."""

ROUND = TRIED_EVERY * len(RESTS_S)
"""In so many transactions, every rest is tried."""


def run(rest: Rest, transactions: int, markers_s: float, noise_s: float = 0.0) -> list[float]:
    """Run transactions that take 6 ms, or 26 ms if Kafka has no markers yet. Return the rests."""
    rng, rests = random.Random(1), []
    for _ in range(transactions):
        rests.append(rest_s := rest.choose())
        refused = REFUSED_S if rest_s < markers_s else 0.0
        rest.on_written(rest_s, rest_s + 0.006 + refused + rng.uniform(0, noise_s))
    return rests


@pytest.mark.parametrize(
    ("markers_s", "best"),
    [(0.0, 0.0), (0.0005, 0.001), (0.0015, 0.002), (0.003, 0.004), (0.007, 0.008), (0.015, 0.016)],
)
@pytest.mark.parametrize("noise_s", [0.0, 0.004])
def test_the_shortest_rest_that_suffices_is_found(markers_s: float, best: float, noise_s: float) -> None:
    rest = Rest()
    run(rest, 2 * ROUND, markers_s, noise_s)
    rests = run(rest, 4 * ROUND, markers_s, noise_s)
    # With noise, a rest that is a little longer may remain in use.
    near = [one for one in RESTS_S if best <= one <= best + noise_s]
    assert sum(one in near for one in rests) > 0.9 * len(rests)


def test_the_rest_follows_brokers_that_become_slower_or_faster() -> None:
    rest = Rest()
    for markers_s, best in ((0.001, 0.001), (0.007, 0.008), (0.001, 0.001)):
        run(rest, 4 * ROUND, markers_s)
        rests = run(rest, ROUND, markers_s)
        assert rests.count(best) > 0.9 * len(rests)


def test_a_rest_that_has_become_useless_is_given_up() -> None:
    rest = Rest()
    run(rest, 2 * ROUND, 0.015)
    run(rest, 4 * ROUND, 1.0)
    rests = run(rest, ROUND, 1.0)
    assert sum(rests) / len(rests) < USUAL_S


def test_a_transaction_that_waits_for_a_broker_changes_nothing() -> None:
    rest = Rest()
    run(rest, 4 * ROUND, 0.0015)
    rest.on_written(rest.choose(), 5.0)
    assert run(rest, ROUND, 0.0015).count(0.002) > 0.9 * ROUND
