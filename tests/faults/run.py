"""Runs rounds of storms (see ``storm``) until there have been enough kills. A round has one storm per server version.

``test_faults`` and ``python -m tests.faults`` use this module.
"""

import itertools
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from sandbox.postgres import Postgres
from tests.faults import script
from tests.faults.storm import SERVER_SETTINGS, Cluster, Fate, Report, Storm, StormSetup

VERSIONS = (14, 16, 18)

ROUND_KILLS = 30
"""The number of kills in a round, in all its pipelines together.

At the end of a round, everything is read and checked. The next round begins with new pipelines.
"""

KILLS_PER_BROKER_KILL = 12
KILLS_PER_SERVER_KILL = 5
KILLS_PER_RESTORE = 2
"""The minimum number of kills in a restoration: one of the server, and one of the daemon that has adopted the slot."""

OTHER_FAULTS = 6
"""The number of faults around each pipeline in a round, besides kills and a restoration."""

ORDERS = 5
"""The number of commands to a pipeline in a round, besides the commands that make its daemon pass a step."""


class StormError(AssertionError):
    """Raised when something was lost, doubled, torn or out of order, or when something stopped unexpectedly."""


@dataclass(frozen=True)
class Plan:
    """The script of one round."""

    options: Mapping[int, script.Options]
    """The options by server version. The mappings below have server versions as keys as well."""
    deaths: Mapping[int, Sequence[script.Death]]
    weather: Mapping[int, Sequence[script.Fault]]
    restores: Mapping[int, script.Restore]
    """The restoration of one of the servers. This mapping is empty in at-least-once mode."""
    brokers: Sequence[script.Fault]
    loading: Mapping[int, script.Loading]
    orders: Mapping[int, Sequence[script.Order]]

    @classmethod
    def draw(cls, seed: str, kills: int, versions: Sequence[int], mode: script.Mode) -> "Plan":
        """Draw a round with ``kills`` kills.

        In at-least-once mode, the network has no faults, because records of a dead owner could stay in the network and
        arrive later. No server is restored either, because in this mode, the checker does not check cut by cut, and
        so could not tell the repetitions of a new epoch from other repetitions.
        """
        is_exact = mode == "exactly_once"
        brokers = kills // KILLS_PER_BROKER_KILL
        each = (kills - brokers) // len(versions)
        rngs = {version: random.Random(f"{seed} {version}") for version in versions}
        servers = each // KILLS_PER_SERVER_KILL
        options = {version: script.Options.draw(rng, version) for version, rng in rngs.items()}
        rng = random.Random(seed)
        cluster = script.cluster_weather(rng, 1, 1, brokers)
        restored = rng.choice(versions) if is_exact else None
        counts = {version: each - servers - (version == restored) * KILLS_PER_RESTORE for version in versions}
        deaths = {
            version: script.deaths(rng, counts[version], script.steps(options[version], mode))
            for version, rng in rngs.items()
        }
        weather = {
            version: script.database_weather(rng, OTHER_FAULTS if is_exact else 0, servers)
            for version, rng in rngs.items()
        }
        restores = {} if restored is None else {restored: script.Restore.draw(rng, len(deaths[restored]))}
        loading = {version: script.Loading.draw(rng) for version, rng in rngs.items()}
        orders = {version: script.orders(rng, options[version], ORDERS) for version, rng in rngs.items()}
        return cls(options, deaths, weather, restores, cluster, loading, orders)


@dataclass(frozen=True)
class Subject:
    """The version of the product that is tested. ``without`` is the rule that is disabled, if any."""

    versions: Sequence[int] = VERSIONS
    mode: script.Mode = "exactly_once"
    without: str = ""


def run(seed: str, kills: int, subject: Subject, say: Callable[[str], None], *, first_round: int = 1) -> Report:
    """Run rounds until there have been ``kills`` kills. Raise StormError, with seed and script, if a round fails."""
    total = Report()
    versions = subject.versions
    names = {version: f"PG{version}" for version in versions}
    with ExitStack() as context:
        cluster = context.enter_context(Cluster(list(names.values())))
        servers = {version: context.enter_context(Postgres(version, SERVER_SETTINGS)) for version in versions}
        for number in itertools.count(first_round):
            left = kills - sum(total.kills.values())
            if left <= 0:
                break
            total.add(_round(f"{seed}.{number}", min(left, ROUND_KILLS), servers, cluster, subject))
            say(f"round {number} of seed {seed}:\n{total}\n")
    return total


def _round(seed: str, kills: int, servers: Mapping[int, Postgres], cluster: Cluster, subject: Subject) -> Report:
    plan = Plan.draw(seed, kills, subject.versions, subject.mode)
    report = Report()
    with ExitStack() as context:
        storms = {
            version: Storm(
                context.enter_context(server.database()),
                cluster,
                f"PG{version}",
                f"{seed} {version}",
                StormSetup(plan.options[version], subject.mode, plan.loading[version], subject.without),
            )
            for version, server in servers.items()
        }
        failures = _together(storms, plan, cluster, report)
    for storm in storms.values():
        report.add(storm.report)
    if failures or report.tally.problems:
        raise StormError(_story(seed, kills, plan, storms, failures))
    return report


def _together(storms: Mapping[int, Storm], plan: Plan, cluster: Cluster, report: Report) -> dict[int, BaseException]:
    """Run all storms at the same time. Return the errors that ended storms early, by server version."""
    failures: dict[int, BaseException] = {}
    calm, stop = threading.Event(), threading.Event()

    def storm(version: int) -> None:
        try:
            fate = Fate(plan.deaths[version], plan.weather[version], plan.restores.get(version), plan.orders[version])
            storms[version].run(fate, calm)
        except BaseException as failure:  # noqa: BLE001 - reported with all other results
            failures[version] = failure
            stop.set()

    threads = [threading.Thread(target=storm, args=(version,), daemon=True) for version in storms]
    for thread in threads:
        thread.start()
    try:
        cluster.suffer(plan.brokers, report, stop)
    finally:
        calm.set()
        for thread in threads:
            thread.join()
    return failures


def _story(
    seed: str, kills: int, plan: Plan, storms: Mapping[int, Storm], failures: Mapping[int, BaseException]
) -> str:
    """Describe a failed round: its script, what happened, and what is wrong."""
    first, _, number = seed.rpartition(".")
    lines = [f"round {number} of seed {first}, to be repeated with KILLS={kills} SEED={first} ROUND={number}:"]
    for version, storm in storms.items():
        lines += [f"PostgreSQL {version}, {plan.options[version]}:"]
        lines += ["  the daemon dies:", *(f"    {death}" for death in plan.deaths[version])]
        lines += ["  around it:", *(f"    {fault}" for fault in plan.weather[version])]
        lines += [f"    {plan.restores[version]}"] if version in plan.restores else []
        lines += [f"  {plan.loading[version]}, commands:", *(f"    {order}" for order in plan.orders[version])]
        lines += ["  what happened:", *(f"    {line}" for line in storm.log)]
        lines += ["  what is wrong:", *(f"    {problem[:1000]}" for problem in storm.report.tally.problems[:20])]
        if version in failures:
            lines.append(f"    {type(failures[version]).__name__}: {failures[version]}")
    lines += ["brokers:", *(f"    {fault}" for fault in plan.brokers)]
    return "\n".join(lines)
