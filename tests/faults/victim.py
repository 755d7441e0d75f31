"""The daemon of a storm. It is started again and again, and dies as the script says. Used by storm and restoration."""

import json
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
"""If the daemon does not pass a step within this time, it is killed from outside."""

POLL_S = 0.02
CONFIRMED_POLL_S = 0.1

LOG_SHOWN = 3000

STANDSTILL_S = 120.0
"""How long the daemon may deliver nothing although there are changes. Brokers may be away meanwhile."""

KILLED = -9


class Victim:
    """Starts the daemon, and sees how it ends."""

    def __init__(self, daemon: Daemon, kills: Counter[str], note: Callable[[str], None], without: str = "") -> None:
        """Choose the daemon, and the rule that is taken out of it, if any.

        ``kills`` counts and ``note`` records its deaths.
        """
        self.daemon = daemon
        self._kills = kills
        self._note = note
        self._without = without

    def start(self, death: Death | None, *arguments: str) -> None:
        """Start a daemon that dies in this way. If one still runs, kill it first."""
        if self.daemon.alive:
            self.daemon.kill()
            self._kills[f"daemon: {AT_A_MOMENT}"] += 1
        step, passes = ("", 1) if death is None or death.step == AT_A_MOMENT else (death.step, death.passes)
        failing = str(Path(failpoints.__file__)), step, str(passes), self._without
        self.daemon.program = failing if step or self._without else PROGRAM
        self.daemon.start(*arguments, wait=False)

    def die(self, death: Death, *arguments: str, or_with: int = KILLED) -> None:
        """Start the daemon, and return when it is dead. It may also end by itself with the expected exit code."""
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

        A busy machine may need minutes to catch up, and an early prepared transaction can hold the slot back nearly to
        the end. So only the time without deliveries has a limit. Raise TimeoutError after it, and ServerError if the
        daemon has ended.
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
                    f"the slot did not get from {reached:X} to {lsn:X}, and for {standstill_s:g} s nothing behind "
                    f"{delivered:X} was delivered"
                )
            time.sleep(CONFIRMED_POLL_S)

    def delivered(self) -> int:
        """Return the position up to which everything is delivered, as the daemon reports it.

        It is 0/0 between two sessions.
        """
        try:
            status = self.daemon.status()
        except ServerError:
            return INVALID_LSN
        return parse_lsn(status.get("delivered_lsn", "0/0"))

    def account(self) -> str:
        """Return the daemon's current status, and the end of its log, over all its starts."""
        try:
            status = json.dumps(self.daemon.status())
        except ServerError as error:
            status = str(error)
        return f"status of the daemon: {status}\nend of its log:\n{self.daemon.log_text()[-LOG_SHOWN:]}"

    def expect_end(self, *expected: int) -> None:
        """Note that the daemon has ended. Raise ServerError unless its exit code is one of those expected."""
        status = self.daemon.wait()
        if status not in expected:
            raise ServerError(f"pgsluice ended with exit code {status}:\n{self.daemon.log_text()[-LOG_SHOWN:]}")
