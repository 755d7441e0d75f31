"""The daemon of a storm, which is started to die as the script says, again and again. Used by storm and restoration."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from sandbox.daemon import PROGRAM, Daemon
from sandbox.errors import ServerError
from tests.faults import daemon as failpoints
from tests.faults.script import AT_A_MOMENT, Death

PATIENCE_S = 30.0
"""How long a step may not be passed before the daemon is killed from outside."""

POLL_S = 0.02

LOG_SHOWN = 3000

KILLED = -9


class Victim:
    """Starts the daemon, and sees how it ends."""

    def __init__(self, daemon: Daemon, kills: Counter[str], note: Callable[[str], None], without: str = "") -> None:
        """Choose the daemon, whose kills are counted and noted, and the rule that it is without, if any."""
        self.daemon = daemon
        self._kills = kills
        self._note = note
        self._without = without

    def start(self, death: Death | None, *arguments: str) -> None:
        """Start the daemon to die so; one that still runs has come to the end of its time."""
        if self.daemon.alive:
            self.daemon.kill()
            self._kills[f"daemon: {AT_A_MOMENT}"] += 1
        step, passes = ("", 1) if death is None or death.step == AT_A_MOMENT else (death.step, death.passes)
        failing = str(Path(failpoints.__file__)), step, str(passes), self._without
        self.daemon.program = failing if step or self._without else PROGRAM
        self.daemon.start(*arguments, wait=False)

    def die(self, death: Death, *arguments: str, or_with: int = KILLED) -> None:
        """Start the daemon, and return when it is dead; it may also have ended by itself with a certain exit code."""
        self.start(death, *arguments)
        deadline = time.monotonic() + (death.seconds if death.step == AT_A_MOMENT else PATIENCE_S)
        while self.daemon.alive and time.monotonic() < deadline:
            time.sleep(POLL_S)
        by_itself = not self.daemon.alive
        if by_itself:
            self.expect_end(KILLED, or_with)
        else:
            self.daemon.kill()
        kind = death.step if by_itself or death.step == AT_A_MOMENT else f"{death.step}, not reached"
        self._kills[f"daemon: {kind}"] += 1
        self._note(f"daemon died: {kind}")

    def account(self) -> str:
        """Return what the daemon says of itself now, and the end of its log, over all its starts."""
        try:
            status = json.dumps(self.daemon.status())
        except ServerError as error:
            status = str(error)
        return f"status of the daemon: {status}\nend of its log:\n{self.daemon.log_text()[-LOG_SHOWN:]}"

    def expect_end(self, *expected: int) -> None:
        """Take note that the daemon has ended; ServerError unless its exit code is one of those expected."""
        status = self.daemon.wait()
        if status not in expected:
            raise ServerError(f"pgsluice ended with exit code {status}:\n{self.daemon.log_text()[-LOG_SHOWN:]}")
