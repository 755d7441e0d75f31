"""Carries out one breakage after the other, and measures how long it takes until each is noticed and repaired."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sandbox.errors import ServerError
from sandbox.prometheus import Prometheus
from tests.gameday.breakages import Breakage
from tests.gameday.scene import GameDay
from tests.support.runbook import rows
from tests.support.weather import wait_until

PATIENCE_S = 90.0
SETTLED_S = 40.0
"""How long to wait for alerts to end. It is longer than the time windows of the alerting rules, which are 20 s here."""
POLL_S = 0.1

LOG_SHOWN = 4000


class GameDayError(Exception):
    """Raised when a breakage was not noticed, or when the runbook's advice did not repair it."""


@dataclass(frozen=True, slots=True)
class Result:
    """The measurements of one breakage, in seconds.

    ``alert_s`` is the time from the breakage until the first alert fires, or None if no alert was noticed. ``reason_s``
    is the time until the reason is reported, or None if no reason is expected. ``repair_s`` is the time from the
    beginning of the repair until a row that was written after the repair is delivered. ``where`` says where the reason
    was found: in the status or in the log.
    """

    name: str
    alert: str
    alert_s: float | None
    reason_s: float | None
    where: str
    repair_s: float


class Day:
    """The breakages of one pipeline, one after the other."""

    def __init__(self, scene: GameDay, prometheus: Prometheus, say: Callable[[str], object]) -> None:
        self._scene = scene
        self._prometheus = prometheus
        self._say = say
        self.results: list[Result] = []
        self.played = 0

    def play(self, breakages: Sequence[Breakage]) -> None:
        """Add a result for each breakage. Raise GameDayError at the first one that goes wrong."""
        for breakage in breakages:
            self.played += 1
            self._say(f"{breakage.name} ...")
            self.results.append(self._play(breakage))
            self._say(f"  {self.results[-1]}")

    def _play(self, breakage: Breakage) -> Result:
        self._settle()
        scene, before = self._scene, self._firing()
        scene.begin()
        breakage.cause(scene)
        broken = time.monotonic()
        alert_s, reason_s, alert, where = None, None, "", ""
        while (breakage.alerts and alert_s is None) or (breakage.reasons and reason_s is None):
            passed = time.monotonic() - broken
            if passed > PATIENCE_S:
                raise GameDayError(f"{breakage.name}: alert {alert!r}, reason {where!r}\n{self._account()}")
            if alert_s is None and (fired := self._firing() - before):
                alert_s, alert = passed, ", ".join(sorted(fired))
            if breakage.reasons and reason_s is None and (where := self._where(breakage.reasons)):
                reason_s = passed
            time.sleep(POLL_S)
        return Result(breakage.name, alert, alert_s, reason_s, where, self._repair(breakage))

    def _repair(self, breakage: Breakage) -> float:
        """Repair the breakage. Return the time until a row that was written after the repair is delivered."""
        scene, began = self._scene, time.monotonic()
        try:
            breakage.repair(scene)
            scene.pipeline.write(1)
            scene.pipeline.wait_until_confirmed()
            took = time.monotonic() - began
            scene.assert_nothing_is_lost()
        except AssertionError as error:
            raise GameDayError(f"{breakage.name}: {error}\n{self._account()}") from error
        return took

    def _account(self) -> str:
        """Return the end of what the daemon has logged since the breakage, and its present status."""
        return f"{self._scene.said()[-LOG_SHOWN:]}\nits status: {self._scene.daemon.status_text()}"

    def _settle(self) -> None:
        """Wait until Prometheus sees that the pipeline streams. Then give alerts ``SETTLED_S`` to end."""
        wait_until(lambda: self._prometheus.query("pgsluice_active == 1"), "Prometheus to see the pipeline")
        end = time.monotonic() + SETTLED_S
        while self._firing() and time.monotonic() < end:
            time.sleep(POLL_S)

    def _firing(self) -> set[str]:
        return {name for name, state in self._prometheus.alerts().items() if state == "firing"}

    def _where(self, reasons: Sequence[str]) -> str:
        """Return where one of the reasons is found: "status", "log" (if the process has ended), or "" for nowhere."""
        daemon = self._scene.daemon
        if daemon.alive:
            with suppress(ServerError):
                status = daemon.status()
                if _gives(reasons, f"{status['last_error']} {json.dumps(status['quarantined'])}"):
                    return "status"
            return ""
        return "log" if _gives(reasons, daemon.why_it_stopped()) else ""


def _gives(reasons: Sequence[str], text: str) -> bool:
    return any(rows()[reason].is_in(text) for reason in reasons)


def table(results: Sequence[Result]) -> str:
    """Return the results as a Markdown table."""
    lines = ["| what is broken | first alert | alert | reason | reason in | repaired |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {one.name} | {one.alert or '-'} | {_s(one.alert_s)} | {_s(one.reason_s)} | {one.where or '-'} "
        f"| {_s(one.repair_s)} |"
        for one in results
    ]
    return "\n".join(lines)


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"
