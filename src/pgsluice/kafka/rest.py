"""Decides how long a producer rests between a commit and its next transaction.

Kafka answers a commit before the transaction's markers are in all partitions. Until then, it refuses to add partitions
to the producer's next transaction (CONCURRENT_TRANSACTIONS). librdkafka tries again 20 ms later, and does not report
the refusal. The markers take one or two milliseconds on a single broker, and several if partitions have replicas.

So we try several rests, and use the one after which transactions reach Kafka soonest. The methods do not read the
clock. The caller gives them the times that it has measured.
"""

from typing import Final

RESTS_S: Final = (0.0, 0.001, 0.002, 0.004, 0.008, 0.016)
"""The rests to choose from."""

LONGEST_S: Final = max(RESTS_S)

USUAL_S: Final = 0.002
"""The first rest."""

TRIED_EVERY: Final = 16
"""One of this many transactions tries another rest."""

NEWEST_SHARE: Final = 0.25
"""The weight of the newest measurement in the average for its rest."""

SLOW_S: Final = 0.25
"""A transaction that takes longer has waited for something else, such as a broker that is away."""

GAIN: Final = 0.9
"""We change to another rest only if transactions then take less than this share of the time."""


class Rest:
    """Chooses the rest before each transaction."""

    def __init__(self) -> None:
        self._usual = USUAL_S
        self._costs: dict[float, float] = {}
        """The average time that a transaction takes, by rest."""
        self._count = self._tried = 0

    def choose(self) -> float:
        """Return the rest before the next transaction, in seconds."""
        self._count += 1
        return self._usual if self._count % TRIED_EVERY else self._next_trial()

    def on_written(self, rest_s: float, taken_s: float) -> None:
        """Note how long it took, including the rest, until Kafka had the records of a transaction.

        Call this only for transactions that are small, because large ones take long for other reasons, and that were to
        begin within LONGEST_S after a commit. For later ones, no rest is needed.
        """
        if taken_s > SLOW_S:
            return
        before = self._costs.get(rest_s, taken_s)
        self._costs[rest_s] = before + NEWEST_SHARE * (taken_s - before)
        best = min(self._costs, key=self._costs.__getitem__)
        if self._costs[best] < GAIN * self._costs.get(self._usual, taken_s):
            self._usual = best

    def _next_trial(self) -> float:
        self._tried = (self._tried + 1) % len(RESTS_S)
        if RESTS_S[self._tried] == self._usual:
            self._tried = (self._tried + 1) % len(RESTS_S)
        return RESTS_S[self._tried]
