"""Restores a server from a snapshot of its disk, and adopts the slot as the runbook says.

The restored server reuses the LSNs that it had used after the snapshot. But the heartbeats in Kafka say that everything
up to these LSNs is delivered. If the daemon believed this, it would drop the transactions that get these LSNs now. So
it has to refuse the server until an operator adopts the slot (docs/runbook.md).
"""

import time
from collections.abc import Callable

import psycopg

from sandbox.errors import ServerError
from sandbox.postgres import Database
from tests.faults.script import Death, Notice, Restore
from tests.faults.victim import LOG_SHOWN, Victim
from tests.faults.workload import Workload

REFUSED = 65
WENT_BACK = "restored"
"""A part of the daemon's message about a server that seems to have been restored."""
REFUSED_BEFORE = "An earlier run found this"
"""A part of the daemon's message when it finds a recorded refusal, and stops without examining the server again."""

REACTION_S = 120.0
"""How long the daemon may take to start, or to notice the restoration. Brokers may be down at that time."""

POLL_S = 0.1

PUBLISHED = 3
"""The minimum number of published transactions that are written at reused LSNs. A daemon that did not notice the
restoration would drop these transactions."""

SCRATCH_ROWS = 1000
"""The number of rows that an unpublished transaction writes."""

MARGIN_BYTES = 256 * 1024
"""An amount of WAL that an idle server does not write in a short time."""


class Restoration:
    """Restores the server from a snapshot, and checks that the daemon does not continue as if nothing had happened."""

    def __init__(
        self, database: Database, workload: Workload, victim: Victim, slot: str, note: Callable[[str], None]
    ) -> None:
        self._database = database
        self._workload = workload
        self._victim = victim
        self._slot = slot
        self._note = note
        self._lost_end = 0
        """The end of the lost WAL."""
        self.kept_until = 0
        """The end of the WAL when the snapshot was taken."""

    def run(self, restore: Restore) -> int | None:
        """Restore the server, and adopt the slot after the daemon has refused the server.

        Return the position of the adopted slot. Return None if the daemon continued, which is an error.
        """
        self._victim.daemon.wait_until_ready(timeout_s=REACTION_S)
        with self._workload.quiet():
            self._set_back(restore)
            refused = restore.notice is not Notice.AT_ONCE or self._refuses_to_start(restore.death)
        if restore.notice is Notice.RUNNING:
            refused = self._refuses(WENT_BACK)
        self._overwrite()
        if restore.notice is Notice.LATE:
            refused = self._refuses_to_start(restore.death)
        # The WAL has now grown beyond the delivered position, so the server looks right again. The daemon has to refuse
        # nevertheless.
        if not (refused and self._refuses_to_start(because=REFUSED_BEFORE)):
            return None
        position = self._position()
        self._adopt(restore.adopter)
        return position

    def _set_back(self, restore: Restore) -> None:
        server = self._database.server
        self._wait_until_confirmed()
        if restore.saves_slot:
            self._save_slot()
        self.kept_until = self._end_of_wal()
        server.take_snapshot()
        self._note(f"snapshot taken at {self.kept_until:X}")
        self._write_scratch(restore.scratch)
        self._wait_until_confirmed()
        if restore.notice is not Notice.RUNNING:
            self._victim.daemon.kill()
        self._lost_end = self._end_of_wal()
        server.restore_snapshot()
        self._note(f"restored: the WAL up to {self._lost_end:X} is lost, and the slot is at {self._position():X}")

    def _save_slot(self) -> None:
        """Make the server write the slot's position to disk. Before PostgreSQL 17, a shutdown does not always do this.

        A checkpoint writes a record of the running transactions to the WAL. When the daemon confirms this record, the
        server saves the slot.
        """
        with self._database.connect() as connection:
            connection.execute("CHECKPOINT")
        self._wait_until_confirmed()

    def _write_scratch(self, transactions: int) -> None:
        """Write to unpublished tables, so that heartbeats move the delivered position."""
        with self._database.connect() as connection:
            for _ in range(transactions):
                connection.execute("INSERT INTO scratch SELECT generate_series(1, %s)", [SCRATCH_ROWS])

    def _overwrite(self) -> None:
        """Wait until new WAL, with other published transactions, has replaced the lost part of the WAL."""
        count = "SELECT count(*) FROM ledger"
        with self._database.connect() as connection:
            enough = _number(connection, count) + PUBLISHED
            while _number(connection, count) < enough:
                time.sleep(POLL_S)
        while self._end_of_wal() < self._lost_end + MARGIN_BYTES:
            self._write_scratch(1)
        self._note("the lost WAL is overwritten")

    def _refuses_to_start(self, death: Death | None = None, because: str = WENT_BACK) -> bool:
        """Start the daemon, and return whether it refuses the server.

        If there is a ``death``, first start a daemon that dies in this way.
        """
        if death is not None:
            self._victim.die(death, or_with=REFUSED)
        said_before = len(self._victim.daemon.log_text())
        self._victim.start(None)
        return self._refuses(because, said_before)

    def _refuses(self, because: str, said_before: int = 0) -> bool:
        """Wait until the daemon stops for this reason. Return False if it confirms a position after the lost WAL."""
        daemon = self._victim.daemon
        deadline = time.monotonic() + REACTION_S
        while daemon.alive:
            if self._position() > self._lost_end:
                return False
            if time.monotonic() > deadline:
                raise TimeoutError(f"the daemon has not noticed within {REACTION_S:g} s that the server went back")
            time.sleep(POLL_S)
        self._victim.expect_end(REFUSED)
        said = daemon.log_text()[said_before:]
        if because not in said:
            raise ServerError(f"the daemon does not say {because!r}:\n{said[-LOG_SHOWN:]}")
        self._note("refused")
        return True

    def _adopt(self, death: Death | None) -> None:
        """Begin a new epoch with --adopt-slot.

        If there is a ``death``, first start a daemon with --adopt-slot that dies in this way.
        """
        if death is not None:
            self._victim.die(death, "--adopt-slot")
        self._victim.start(None, "--adopt-slot")
        self._victim.daemon.wait_until_ready(timeout_s=REACTION_S)

    def _wait_until_confirmed(self) -> None:
        """Wait until everything that was written is delivered, and is confirmed to the server."""
        self._victim.wait_until_confirmed(self._end_of_wal(), self._position)

    def _end_of_wal(self) -> int:
        with self._database.connect() as connection:
            return _number(connection, "SELECT pg_current_wal_flush_lsn() - '0/0'")

    def _position(self) -> int:
        """Return the slot's position."""
        query = f"SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = '{self._slot}'"
        with self._database.connect() as connection:
            return _number(connection, query)


def _number(connection: psycopg.Connection, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None, "the query returns one row"
    return int(row[0])
