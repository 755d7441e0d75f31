"""The daemon of a storm (see ``storm``). It is started again and again, and dies as the storm's script says."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pgsluice.lsn import INVALID_LSN, parse_lsn
from sandbox.daemon import PROGRAM, Daemon
from sandbox.errors import ServerError
from tests.faults import daemon as failpoints
from tests.faults.script import AT_A_MOMENT, Death

PATIENCE_S = 30.0
"""How long the daemon may take to pass the step at which it dies. After that, it is killed from outside."""

POLL_S = 0.02
CONFIRMED_POLL_S = 0.1

LOG_SHOWN = 3000

STANDSTILL_S = 120.0
"""How long the daemon may deliver nothing although there are changes. Brokers may be down in this time."""

KILLED = -9


class Victim:
    """Starts the daemon, and checks how it ends."""

    def __init__(self, daemon: Daemon, kills: Counter[str], note: Callable[[str], None], without: str = "") -> None:
        """Set the daemon. ``without`` names the rule of pgsluice that is disabled in the daemon, or is empty.

        ``kills`` counts the daemon's deaths, and ``note`` logs them.
        """
        self.daemon = daemon
        self._kills = kills
        self._note = note
        self._without = without

    def start(self, death: Death | None, *arguments: str) -> None:
        """Start a daemon that dies as ``death`` says, or that stays alive if ``death`` is None.

        If a daemon still runs, kill it first.
        """
        if self.daemon.alive:
            self.daemon.kill()
            self._kills[f"daemon: {AT_A_MOMENT}"] += 1
        step, passes = ("", 1) if death is None or death.step == AT_A_MOMENT else (death.step, death.passes)
        failing = str(Path(failpoints.__file__)), step, str(passes), self._without
        self.daemon.program = failing if step or self._without else PROGRAM
        self.daemon.start(*arguments, wait=False)

    def die(self, death: Death, *arguments: str, or_with: int = KILLED) -> None:
        """Start the daemon, and return when it is dead. The daemon may also exit by itself, with code ``or_with``."""
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

    def wait_until_confirmed(
        self, lsn: int, position: Callable[[], int | None], standstill_s: float = STANDSTILL_S
    ) -> None:
        """Wait until the slot's ``position`` has reached ``lsn``.

        A busy machine may need minutes to catch up, and an early prepared transaction can hold the slot back nearly
        until the end. So only the time without deliveries is limited. Raise TimeoutError if the daemon delivers nothing
        for ``standstill_s``, and ServerError if it has ended.
        """
        delivered, since = INVALID_LSN, time.monotonic()
        while (reached := position() or INVALID_LSN) < lsn:
            if not self.daemon.alive:
                self.expect_end()
            further = min(self.delivered(), lsn)
            if further > delivered:
                delivered, since = further, time.monotonic()
            if time.monotonic() - since > standstill_s:
                raise TimeoutError(
                    f"the slot is at {reached:X} and has to reach {lsn:X}, but nothing after {delivered:X} was "
                    f"delivered for {standstill_s:g} s"
                )
            time.sleep(CONFIRMED_POLL_S)

    def delivered(self) -> int:
        """Return the position up to which everything is delivered, as the daemon reports it.

        The position is 0/0 between two sessions.
        """
        try:
            status = self.daemon.status()
        except ServerError:
            return INVALID_LSN
        return parse_lsn(status.get("delivered_lsn", "0/0"))

    def account(self) -> str:
        """Return the end of the daemon's log, to which every start of the daemon appends, and its current status."""
        return (
            f"end of the daemon's log:\n{self.daemon.log_text()[-LOG_SHOWN:]}\nits status: {self.daemon.status_text()}"
        )

    def expect_end(self, *expected: int) -> None:
        """Wait until the daemon has ended. Raise ServerError unless its exit code is among the expected ones."""
        status = self.daemon.wait()
        if status not in expected:
            raise ServerError(f"pgsluice ended with exit code {status}:\n{self.daemon.log_text()[-LOG_SHOWN:]}")
