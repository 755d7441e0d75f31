"""The scripted PostgreSQL: one slot, its walsender, the connections of daemons, crashes and shutdowns.

:class:`Connection` implements ``pipeline.ends.Source``, and :class:`Stream` implements ``pipeline.ends.Stream``. The
scripted server accepts every acknowledgement, as a real server does. Unlike a real server, it reports a violation if an
acknowledgement is too high.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from pgsluice.errors import SlotInUse, SourceUnavailable
from pgsluice.history import ServerIdentity, TimelineSwitch
from pgsluice.identity import Partitions
from pgsluice.layout import Layout
from pgsluice.pgoutput.framing import Keepalive, XLogData
from pgsluice.relation import PublishedName, Relation
from pgsluice.snapshot import TableSize
from tests.simulation.reader import Reader, layout_of, relation_of
from tests.simulation.tables import TableWal
from tests.simulation.virtual import Process
from tests.simulation.wal import Wal
from tests.simulation.walsender import Options, Walsender

WAL_SENDER_TIMEOUT_S = 15.0
SHUTDOWN_BLOCKED_S = 30.0
"""How long the shutdown of a server may wait for its walsender."""


@dataclass(slots=True)
class Slot:
    """The slot: its position in memory (``confirmed``), and its position on disk (``durable``)."""

    confirmed: int
    durable: int
    two_phase_at: int | None = None
    unsaved: list[int] = field(default_factory=list)
    """The positions that were confirmed since ``durable`` was saved.

    Any of them may be on disk when the server crashes.
    """

    def confirm(self, lsn: int) -> None:
        self.confirmed = lsn
        self.unsaved.append(lsn)

    def save(self) -> None:
        self.durable = self.confirmed
        self.unsaved.clear()

    def snapshot(self) -> "Slot":
        """Save the slot and return a copy, as a snapshot of the disk would contain it.

        After that, no crash takes the slot back to an earlier position.
        """
        self.save()
        return replace(self, unsaved=[])

    def crash(self, dice: random.Random) -> None:
        self.confirmed = dice.choice((self.durable, *self.unsaved))
        self.save()


class Server:
    """The PostgreSQL server. It exists as long as its world."""

    def __init__(
        self,
        wal: Wal,
        options: Options,
        dice: random.Random,
        check_ack: Callable[[int], None],
        violate: Callable[[str], None],
    ) -> None:
        self.wal = wal
        self.options = options
        self.slot: Slot | None = None
        self.is_up = True
        self.active: Connection | None = None
        self.connections: list[Connection] = []
        self.readers: list[Reader] = []
        self.on_reading: Callable[[], None] = lambda: None
        """Called between two steps of a reader."""
        self._opened: list[Connection] = []
        self.last: dict[Process, Connection] = {}
        """The last connection of each process, even if it was lost."""
        self.moved = asyncio.Event()
        """Set when there is more WAL, or when a connection has changed."""
        self.shutting_down = False
        self.timeline = 1
        self.switches: list[TimelineSwitch] = []
        self.falls_back = False
        """Whether a lower acknowledgement moves the slot back, as in minor versions before August 2025."""
        self._dice = dice
        self._check_ack = check_ack
        self._violate = violate

    def wake(self) -> None:
        """Wake all waiting tasks."""
        moved, self.moved = self.moved, asyncio.Event()
        moved.set()

    def connect(self, process: Process) -> "Connection":
        if not self.is_up:
            raise SourceUnavailable("the database system is starting up")
        connection = Connection(self, process, self._dice)
        self.connections.append(connection)
        self._opened.append(connection)
        self.last[process] = connection
        return connection

    def crash(self) -> None:
        """Lose everything in memory."""
        self.is_up = False
        self.wal.crash()
        self._end_connections("the server crashed")
        if self.slot is not None:
            self.slot.crash(self._dice)

    def go_back(self, end: int, slot: Slot, *, promote: bool) -> None:
        """Crash, and give the server a WAL that ends at ``end``, and the slot ``slot``.

        With ``promote``, a standby that has not received the rest of the WAL takes over. Otherwise, the server is
        restored from a snapshot of its disk. A restoration does not change the timeline, so daemons cannot recognise
        it by the timeline.
        """
        if promote:
            self.switches.append(TimelineSwitch(self.timeline, end))
            self.timeline += 1
        for connection in self._opened:  # including lost connections whose last data are still in flight
            connection.break_off("the server is gone")
        self._opened.clear()
        self.crash()
        self.slot = slot

    async def shut_down(self) -> None:
        """Shut down in an orderly way. Wait until the walsender's client has confirmed everything or disconnects.

        The wait also ends if the client calls :meth:`Stream.answer_shutdown`.
        """
        self.shutting_down = True
        self.wal.crash()
        self.wake()
        try:
            async with asyncio.timeout(SHUTDOWN_BLOCKED_S):
                while self.active is not None and not self.active.lets_go:  # noqa: ASYNC110 - as the server does
                    await asyncio.sleep(0.05)
        except TimeoutError:
            if self.active is not None and self.active.process.alive:
                self._violate("the server cannot shut down: its walsender waits for an acknowledgement")
        self.is_up = False
        self._end_connections("the server was shut down")
        if self.slot is not None and self._dice.random() < 0.5:
            self.slot.crash(self._dice)
        self.shutting_down = False

    def _end_connections(self, why: str) -> None:
        for connection in self.connections:
            connection.break_off(why)
        self.connections.clear()
        self._end_readers(self.readers)
        self.active = None

    def drop(self, process: Process, *, unnoticed: bool) -> None:
        """End the connections of a process that was killed.

        With ``unnoticed``, the client's host has not closed them, so the server ends them only after
        wal_sender_timeout.
        """
        for connection in [one for one in self.connections if one.process is process]:
            if unnoticed:
                asyncio.get_running_loop().call_later(WAL_SENDER_TIMEOUT_S, self.forget, connection)
            else:
                self.forget(connection)

    def _end_readers(self, readers: Iterable[Reader]) -> None:
        for reader in list(readers):
            reader.release()
            self.readers.remove(reader)

    def forget(self, connection: "Connection") -> None:
        """End a connection on the server's side, and release its locks and the slot."""
        self._end_readers([one for one in self.readers if one.session is connection])
        if connection in self.connections:
            self.connections.remove(connection)
        if self.active is connection:
            connection.sent_until = self.wal.flushed
            self.active = None
            self.wake()

    def acknowledge(self, flushed: int) -> None:
        """Process a status update. Like a real server, accept every position. Report a position that is too high."""
        slot = self.slot
        if not flushed or slot is None:
            return
        self._check_ack(flushed)
        if flushed > slot.confirmed or self.falls_back:
            slot.confirm(flushed)
        if self._dice.random() < 0.2:
            slot.save()


class Connection:
    """The connections of one session. It implements :class:`pgsluice.pipeline.ends.Source`."""

    def __init__(self, server: Server, process: Process, dice: random.Random) -> None:
        self.process = process
        self.why: str | None = None
        """The reason why the connection is broken, or None.

        The client gets this reason as an error when it uses the connection, or a little later.
        """
        self.stream: Stream | None = None
        self.found_slot = server.slot is not None
        self.sent_until: int | None = None
        """The number of WAL records when the server lost the connection. Their messages may still be in flight."""
        self.lets_go = False
        self._server = server
        self._dice = dice

    async def _ask(self) -> None:
        """Send a request and wait for its answer."""
        self.process.step()
        await asyncio.sleep(self._dice.choice((0.0, 0.001, 0.02)))
        if self.why is not None or not self.process.alive:
            raise SourceUnavailable(self.why or "killed")

    def break_off(self, why: str) -> None:
        """Break the connection, as the server or the network does."""
        self.why = self.why or why
        self._server.wake()

    async def identify(self) -> ServerIdentity:
        await self._ask()
        return ServerIdentity("7001", self._server.timeline, self._server.wal.end)

    async def timeline_history(self, _timeline: int) -> list[TimelineSwitch]:
        return self._server.switches

    async def slot_position(self) -> int | None:
        await self._ask()
        server = self._server
        if server.slot is None:
            return None
        if server.active not in (None, self):
            raise SlotInUse("active for another process")
        if self.stream is not None and server.active is None:
            raise SourceUnavailable("the stream has ended")
        return server.slot.confirmed

    async def published_names(self) -> list[PublishedName]:
        await self._ask()
        return [
            PublishedName(one.oid, one.namespace, one.name, len(one.columns), is_trusted=True)
            for one in self._published()
        ]

    async def published_relations(self, tables: Sequence[PublishedName]) -> AsyncIterator[Relation]:
        await self._ask()
        oids = [table.oid for table in tables]
        for relation in self._published():
            if relation.oid in oids:
                yield relation

    def _published(self) -> list[Relation]:
        assert isinstance(self._server.wal, TableWal), "only worlds with rows read the published tables"
        return [relation_of(table) for table in self._server.wal.tables if table.is_published]

    async def layouts(self, oids: Sequence[int]) -> dict[int, Layout]:
        await self._ask()
        wal = self._server.wal
        tables = [] if not isinstance(wal, TableWal) else [table for table in wal.tables if table.oid in oids]
        return {table.oid: layout_of(table) for table in tables}

    async def table_sizes(self, _oids: Sequence[int]) -> dict[int, TableSize]:
        await self._ask()
        return {}  # a server knows no sizes before the first ANALYZE

    def reader(self) -> Reader:
        assert isinstance(self._server.wal, TableWal), "tables of other worlds have no rows"
        found = Reader(self._server, self._server.wal, self, self._dice)
        self._server.readers.append(found)
        return found

    async def flushed_lsn(self) -> int:
        await self._ask()
        if self._server.shutting_down:
            raise SourceUnavailable("the database system is shutting down")
        return self._server.wal.end

    async def is_standby(self) -> bool:
        await self._ask()
        return False

    async def can_read_rows(self) -> bool:
        return not await self.is_standby()

    async def create_slot(self) -> int:
        await self._ask()
        server = self._server
        if server.slot is not None:
            raise SlotInUse("it was created by another process just now")
        while server.wal.open or server.wal.prepared:
            server.wal.finish()  # slot creation waits for all open transactions
        server.slot = Slot(server.wal.end, server.wal.end)
        return server.slot.confirmed

    async def start(self) -> "Stream":
        await self._ask()
        server = self._server
        if server.active is not None:
            raise SlotInUse("active for another process")
        assert server.slot is not None
        server.active = self
        if server.options.two_phase and server.slot.two_phase_at is None:
            server.slot.two_phase_at = server.slot.confirmed
            server.slot.save()
        self.stream = Stream(server, self, self._dice)
        return self.stream

    async def identity(self, _relation_oid: int) -> frozenset[str]:
        return frozenset()

    async def partitions(self, _root: int) -> Partitions | None:
        return None

    async def primary_key(self, relation_oid: int) -> tuple[str, ...] | None:
        await self._ask()
        wal = self._server.wal
        if not isinstance(wal, TableWal):
            return ("id",)
        table = wal.table(relation_oid)
        return None if table is None else (("id",) if table.has_key else ())

    async def close(self) -> None:
        if not self.process.alive:
            return
        if self.stream is not None:
            self.stream.abandon()
        self._server.forget(self)


class Stream:
    """The stream of the slot's changes. It implements :class:`pgsluice.pipeline.ends.Stream`."""

    def __init__(self, server: Server, connection: Connection, dice: random.Random) -> None:
        assert server.slot is not None
        self._server = server
        self._connection = connection
        self._dice = dice
        self._walsender = Walsender(server.wal, server.slot.confirmed, server.slot.two_phase_at, server.options, dice)
        self._received = 0
        self._flushed = 0
        self._asked = False
        self._owes_position = False
        """Whether the client has asked for the server's position."""
        self._told = 0
        self._waiting: list[XLogData | Keepalive] = []
        self._status_s = dice.choice((0.3, 1.0, 5.0))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._status_s, self._send_status)

    async def read(self) -> list[XLogData | Keepalive]:
        await asyncio.sleep(self._dice.choice((0.0, 0.0, 0.001, 0.01)))
        while True:
            moved = self._server.moved
            if self._connection.why is not None:
                raise SourceUnavailable(self._connection.why)
            if frames := self._next():
                return frames
            patience_s = 0.02 if self._server.shutting_down else WAL_SENDER_TIMEOUT_S / 2
            try:
                async with asyncio.timeout(patience_s):
                    await moved.wait()
            except TimeoutError:
                self._asked = True

    async def wait_ended(self) -> None:
        while self._connection.why is None:
            await self._server.moved.wait()
        raise SourceUnavailable(self._connection.why)

    def _next(self) -> list[XLogData | Keepalive]:
        """Return the messages that have arrived: those of some WAL records, sometimes with a keepalive between them."""
        dice, walsender = self._dice, self._walsender
        frames, self._waiting = self._waiting, []
        room = dice.choice((1, 2, 5, 50))
        limit = self._connection.sent_until
        while len(frames) < room and not walsender.caught_up and (limit is None or walsender.decoded < limit):
            before = self._keepalive()
            decoded: list[XLogData | Keepalive] = [*walsender.decode_next()]
            if dice.random() < 0.05:
                # A keepalive can also come inside a transaction. Its position is then before the transaction.
                at = dice.randrange(len(decoded) + 1)
                decoded.insert(at, before if at < len(decoded) else self._keepalive())
            frames += decoded
        if len(frames) > room and dice.random() < 0.5:
            frames, self._waiting = frames[:room], frames[room:]
        elif (
            limit is None
            and walsender.caught_up
            and (self._asked or self._owes_position or self._told < walsender.sent or self._server.shutting_down)
        ):
            asked, self._asked = self._asked or self._server.shutting_down, False
            self._owes_position = False
            frames.append(self._keepalive(reply_requested=asked))
        return frames

    def _keepalive(self, *, reply_requested: bool = False) -> Keepalive:
        self._told = self._walsender.sent
        if reply_requested:
            asyncio.get_running_loop().call_later(0.01, self._send_once)
        return Keepalive(self._walsender.sent, 0, reply_requested)

    def ask_position(self) -> None:
        self._owes_position = True
        self._server.wake()

    def report(self, received: int, flushed: int) -> None:
        connection = self._connection
        if connection.process.alive and connection in self._server.connections and flushed > self._flushed:
            self._server._check_ack(flushed)
            self._connection.process.step()
        self._received = max(self._received, received, flushed)
        self._flushed = max(self._flushed, flushed)

    def _send_status(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._status_s, self._send_status)
        self._send_once()

    def _send_once(self) -> None:
        if self._connection.why is not None or not self._connection.process.alive:
            self._timer.cancel()
            return
        if self._server.active is self._connection:
            self._server.acknowledge(self._flushed)
            if self._server.shutting_down and self._flushed == self._walsender.sent and self._walsender.caught_up:
                self._connection.lets_go = True

    def answer_shutdown(self, wal_end: int) -> None:
        if wal_end == self._walsender.sent and self._walsender.caught_up:
            self._connection.lets_go = True

    async def stop(self) -> None:
        self._send_once()
        self.abandon()

    def abandon(self) -> None:
        self._timer.cancel()
