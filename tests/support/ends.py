"""In-memory replacements of PostgreSQL, Kafka and the registry, for tests that need unusual faults and timings.

A :class:`World` outlives sessions, as PostgreSQL and Kafka do. It has the WAL, the slot, and everything that was
committed. A test can schedule errors for a step (``world.faults``). Each error is raised once.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pgsluice.avro.key_history import KeyHistory
from pgsluice.avro.schema import FieldHistory
from pgsluice.avro.wire import Schema, normalise, schema_id
from pgsluice.checkpoint import Checkpoint
from pgsluice.commands import CommandState
from pgsluice.cut import Cut, Recorded
from pgsluice.errors import PgsluiceError, ReadTooSlow, SinkUnavailable, SlotInUse, TableUnreadable
from pgsluice.history import ServerIdentity, TimelineSwitch
from pgsluice.identity import Partitions
from pgsluice.layout import Layout
from pgsluice.loads import Loaded
from pgsluice.pgbinary.conversions import TypeDescription
from pgsluice.pgoutput import messages
from pgsluice.pgoutput.copy import insert_frame
from pgsluice.pgoutput.framing import Keepalive, XLogData
from pgsluice.record import Record
from pgsluice.relation import PublishedName, Relation, TableId
from pgsluice.snapshot import Chunk, Shape, Snapshot, TableSize, Taken
from pgsluice.tables import TablePolicy
from tests.support.pgoutput_encoder import encode, xlog_data

Frame = XLogData | Keepalive

TABLE = messages.Relation(
    None, 7, "public", "numbers", "d", (messages.RelationColumn(is_key=True, name="n", type_oid=23, typmod=-1),)
)

SERVICES = ("shop.messages", "shop.dead_letters")
"""The topics for events that belong to no table."""


def _is_set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class World:
    """The state of PostgreSQL and Kafka that a pipeline can see."""

    server: ServerIdentity = field(default_factory=lambda: ServerIdentity("7001", 1, 10_000))
    history: list[TimelineSwitch] = field(default_factory=list)
    position: int | None = None
    """The slot's confirmed_flush_lsn, or None if there is no slot."""
    streaming: bool = False
    standby: bool = False
    wal: list[tuple[int, list[Frame]]] = field(default_factory=list)
    """Transactions as (commit LSN, frames), in commit order."""
    checkpoint: Checkpoint | None = None
    former_checkpoints: list[Checkpoint] = field(default_factory=list)
    """Earlier checkpoints that the topic still contains."""
    cuts: list[tuple[Cut, list[Record], Checkpoint]] = field(default_factory=list)
    """The committed cuts, whose records a read_committed consumer sees."""
    recorded: Recorded = field(default_factory=Recorded)
    """The content of the cut records at the beginning of a session."""
    described_topics: set[str] = field(default_factory=set)
    """The topics whose schemas the registry knew when the sink opened its topics."""
    owner: "FakeSink | None" = None
    """The sink that has fenced all others, because its producer was the last to register."""
    topics: set[str] = field(default_factory=set)
    prepared: list[list[str]] = field(default_factory=list)
    """The topics of each call that prepared topics."""
    primary_keys: dict[int, tuple[str, ...]] = field(default_factory=dict)
    identities: dict[int, frozenset[str]] = field(default_factory=dict)
    partitions: dict[int, Partitions] = field(default_factory=dict)
    rows: dict[int, list[int]] = field(default_factory=dict)
    """The values of the first column of each table's rows in order, by table OID."""
    shapes: dict[int, Shape] = field(default_factory=dict)
    seen: list[Snapshot] = field(default_factory=lambda: [Snapshot(1000, 1000, frozenset())])
    """The results of the next queries that ask which transactions are visible. The last result is repeated."""
    writers: list[set[str]] = field(default_factory=list)
    """The results of the next queries that ask which transactions currently change a table."""
    writers_of: dict[int, set[str]] = field(default_factory=dict)
    """By table OID: the transactions that every query reports as currently changing the table."""
    read: asyncio.Event = field(default_factory=_is_set)
    """Rows are read only while this event is set."""
    loaded: dict[tuple[str, str], Loaded] = field(default_factory=dict)
    commands: list[bytes | None] = field(default_factory=list)
    types: dict[int, TypeDescription] = field(default_factory=dict)
    published: list[Relation] = field(default_factory=list)
    """The tables that are currently in the publications."""
    gone: set[int] = field(default_factory=set)
    """The OIDs of tables that were dropped."""
    strange: set[int] = field(default_factory=set)
    """The OIDs of published tables with untrusted owners."""
    layouts: dict[int, Layout] = field(default_factory=dict)
    """The current columns of tables in the catalog, by table OID."""
    described: list[list[int]] = field(default_factory=list)
    """The OIDs in each query for descriptions of types."""
    schemas: dict[str, list[Any]] = field(default_factory=dict)
    faults: dict[str, list[Exception | None]] = field(default_factory=dict)
    """The errors that the next calls of each step raise. None means that the call raises no error."""
    steps: list[str] = field(default_factory=list)
    """All steps so far."""
    tells_position: bool = True
    """Whether the server answers a request for its position."""
    commit_gate: asyncio.Event | None = None
    """If there is an event, commits wait until it is set."""
    streams: list["FakeStream"] = field(default_factory=list)

    def step(self, name: str) -> None:
        """Record the step, and raise the next error that was scheduled for it, if any."""
        self.steps.append(name)
        fault = self.faults[name].pop(0) if self.faults.get(name) else None
        if fault is not None:
            raise fault

    def commit(self, *numbers: int, relation: messages.Relation = TABLE, xid: int | None = None) -> int:
        """Commit a transaction that inserts ``numbers``. Return its end LSN."""
        begin = self.server.xlogpos
        commit_lsn, end_lsn = begin + 50, begin + 100
        rows = [messages.Insert(None, relation.oid, [str(number).encode()]) for number in numbers]
        sent: list[messages.Message] = [messages.Begin(commit_lsn, 1_000_000, xid or begin), relation]
        sent += [*rows, messages.Commit(commit_lsn, end_lsn, 1_000_000)]
        self.append(commit_lsn, [data(one) for one in sent], end_lsn)
        return end_lsn

    def emit(self, content: bytes, prefix: str = "p") -> int:
        """Write a non-transactional message. Return its LSN, which is the end of its WAL record."""
        begin = self.server.xlogpos
        message = messages.LogicalMessage(None, transactional=False, lsn=begin + 50, prefix=prefix, content=content)
        self.append(begin, [data(message)], message.lsn)
        return message.lsn

    def append(self, commit_lsn: int, frames: list[Frame], end_lsn: int) -> None:
        """Append a transaction or a message to the WAL, and send it to all open streams."""
        self.wal.append((commit_lsn, frames))
        self.server = ServerIdentity(self.server.systemid, self.server.timeline, end_lsn)
        for stream in self.streams:
            stream.queue.put_nowait(frames)

    def send(self, *sent: messages.Message, end_lsn: int | None = None) -> None:
        """Send messages of an open transaction to the open streams. With ``end_lsn``, move the end of the WAL."""
        if end_lsn is not None:
            self.server = ServerIdentity(self.server.systemid, self.server.timeline, end_lsn)
        for stream in self.streams:
            stream.queue.put_nowait([data(one) for one in sent])

    def end_streams(self, error: PgsluiceError) -> None:
        """End the open streams immediately with ``error``.

        ``wait_ended`` raises the error even if nobody reads the streams.
        """
        for stream in self.streams:
            stream.end(error)

    def keepalive(self, wal_end: int | None = None, *, reply_requested: bool = False) -> None:
        """Send a keepalive to the open streams."""
        frame = Keepalive(wal_end or self.server.xlogpos, 0, reply_requested)
        for stream in self.streams:
            stream.queue.put_nowait([frame])

    def break_stream(self, error: PgsluiceError) -> None:
        """Let the open streams raise ``error`` after all frames that were sent so far have been read."""
        for stream in self.streams:
            stream.queue.put_nowait(error)

    @property
    def numbers(self) -> list[int]:
        """The inserted numbers that read_committed consumers see.

        The last byte of each record's key is the number, as a zigzag-encoded int.
        """
        return [(record.key or b"\0")[-1] // 2 for _, records, _ in self.cuts for record in records]


def data(message: messages.Message) -> Frame:
    """Return the frame that carries ``message``."""
    return xlog_data(encode(message))


class FakeStream:
    """The stream of the slot."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.queue: asyncio.Queue[list[Frame] | PgsluiceError] = asyncio.Queue()
        self._ended: asyncio.Future[PgsluiceError] = asyncio.get_running_loop().create_future()
        self.reports: list[tuple[int, int]] = []
        self.released: list[int] = []
        self.stopped = False
        for commit_lsn, frames in world.wal:
            if commit_lsn >= (world.position or 0):
                self.queue.put_nowait(frames)

    async def read(self) -> list[Frame]:
        found = await self.queue.get()
        if isinstance(found, PgsluiceError):
            raise found
        return found

    async def wait_ended(self) -> None:
        raise await asyncio.shield(self._ended)

    def end(self, error: PgsluiceError) -> None:
        """End the stream immediately. ``wait_ended`` raises ``error`` even if nobody reads the stream."""
        if not self._ended.done():
            self._ended.set_result(error)

    def report(self, received: int, flushed: int) -> None:
        self.reports.append((received, flushed))
        self._world.position = max(self._world.position or 0, flushed)

    def ask_position(self) -> None:
        if self._world.tells_position:
            self.queue.put_nowait([Keepalive(self._world.server.xlogpos, 0, reply_requested=False)])

    def answer_shutdown(self, wal_end: int) -> None:
        self.released.append(wal_end)

    async def stop(self) -> None:
        self.stopped = True


class MemorySpool:
    """A spool that keeps the rows of one session in memory, without a limit."""

    def __init__(self) -> None:
        self.memory = self.spilled = 0
        self.busy_s = 0.0

    def open(self) -> "MemoryRows":
        return MemoryRows()

    async def relieve(self) -> bool:
        return False

    async def load(self) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        pass


class HangingSpool(MemorySpool):
    """A spool whose disk does not finish any write until ``thaw`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.thaw = asyncio.Event()

    async def relieve(self) -> bool:
        await self.thaw.wait()
        return False


class MemoryRows:
    """The waiting rows of one transaction."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, bytes]] = []

    def append(self, number: int, data: bytes) -> None:
        self._pieces.append((number, data))

    def __iter__(self) -> Iterator[tuple[int, bytes] | None]:
        return iter(self._pieces)

    def discard(self) -> None:
        self._pieces.clear()


class FakeSource:
    """One session's connections to PostgreSQL."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stream: FakeStream | None = None

    async def identify(self) -> ServerIdentity:
        self._world.step("identify")
        return self._world.server

    async def timeline_history(self, _timeline: int) -> list[TimelineSwitch]:
        return self._world.history

    async def slot_position(self) -> int | None:
        if self._world.streaming and self._stream is None:
            raise SlotInUse("active")
        return self._world.position

    async def flushed_lsn(self) -> int:
        self._world.step("flushed_lsn")
        return self._world.server.xlogpos

    async def is_standby(self) -> bool:
        return self._world.standby

    async def create_slot(self) -> int:
        self._world.step("create_slot")
        self._world.position = self._world.server.xlogpos
        return self._world.position

    async def start(self) -> FakeStream:
        self._world.step("start")
        self._stream = FakeStream(self._world)
        self._world.streams.append(self._stream)
        self._world.streaming = True
        return self._stream

    async def primary_key(self, relation_oid: int) -> tuple[str, ...]:
        return self._world.primary_keys.get(relation_oid, ())

    async def identity(self, relation_oid: int) -> frozenset[str]:
        return self._world.identities.get(relation_oid, frozenset())

    async def partitions(self, root: int) -> Partitions | None:
        return self._world.partitions.get(root)

    async def published_names(self) -> list[PublishedName]:
        self._world.step("published_names")
        return [
            PublishedName(one.oid, one.namespace, one.name, len(one.columns), one.oid not in self._world.strange)
            for one in self._world.published
        ]

    async def published_relations(self, tables: Sequence[PublishedName]) -> AsyncIterator[Relation]:
        self._world.step("published_relations")
        oids = [table.oid for table in tables]
        for relation in self._world.published:
            if relation.oid in oids:
                yield relation

    async def layouts(self, oids: Sequence[int]) -> dict[int, Layout]:
        self._world.step("layouts")
        gone = self._world.gone
        return {oid: self._world.layouts.get(oid, Layout((), 0, "")) for oid in oids if oid not in gone}

    async def table_sizes(self, oids: Sequence[int]) -> dict[int, TableSize]:
        return {oid: TableSize(len(rows), 100 * len(rows)) for oid, rows in self._world.rows.items() if oid in oids}

    async def can_read_rows(self) -> bool:
        return not self._world.standby

    def reader(self) -> "FakeReader":
        return FakeReader(self._world)

    async def describe_types(self, oids: Sequence[int]) -> list[TypeDescription]:
        self._world.described.append(list(oids))
        return self._with_parts(oids)

    def _with_parts(self, oids: Sequence[int]) -> list[TypeDescription]:
        found = [self._world.types[oid] for oid in oids if oid in self._world.types]
        return found + [part for one in found for part in self._with_parts(one.parts)]

    async def close(self) -> None:
        if self._stream in self._world.streams:
            self._world.streams.remove(self._stream)
            self._world.streaming = False


class FakeReader:
    """Reads ``world.rows``. The first column is the key."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rows: list[int] = []
        self.is_closed = False

    async def shape(self, table: TableId) -> Shape | None:
        self._world.step("shape")
        return self._world.shapes.get(table.oid)

    async def writers(self, shape: Shape) -> set[str]:
        always = self._world.writers_of.get(shape.relation.oid, set())
        return always | (self._world.writers.pop(0) if self._world.writers else set())

    async def begin(self, _shape: Shape) -> None:
        self._world.step("lock")

    async def look(self) -> Snapshot:
        return self._world.seen.pop(0) if len(self._world.seen) > 1 else self._world.seen[0]

    async def take(self) -> Taken:
        self._world.step("take")
        return Taken(self._world.seen[0], self._world.server.xlogpos, 1_000_000)

    async def rows(self, shape: Shape, after: Sequence[str], limit: int, size: int) -> Chunk:
        await self._world.read.wait()
        self._world.step("rows")
        rows = [row for row in self._world.rows[shape.relation.oid] if not after or row > int(after[0])]
        messages = [insert_frame(shape.relation.oid, [str(row).encode()]) for row in rows[:limit]]
        kept = [message for place, message in enumerate(messages) if place * len(message) < size]
        return Chunk(kept, is_last=len(kept) == len(rows))

    async def rows_of(self, shape: Shape, keys: Sequence[Sequence[str]], size: int) -> Chunk:
        self._world.step("rows_of")
        wanted = {int(value[1:]) for (value,) in keys}
        rows = [row for row in self._world.rows[shape.relation.oid] if row in wanted]
        chunk = Chunk([insert_frame(shape.relation.oid, [str(row).encode()]) for row in rows], is_last=True)
        if len(keys) > 1 and chunk.bytes > size:
            raise ReadTooSlow("the rows are too large")
        return chunk

    async def check_keys(self, _shape: Shape, _after: Sequence[str], _keys: Sequence[Sequence[str]]) -> None:
        self._world.step("check_keys")

    async def size(self, shape: Shape) -> int:
        return 8192 * len(self._world.rows[shape.relation.oid])

    async def open_rows(self, shape: Shape) -> None:
        self._world.step("open_rows")
        self._rows = list(self._world.rows[shape.relation.oid])

    async def next_rows(self, shape: Shape, limit: int, size: int) -> Chunk:
        await self._world.read.wait()
        self._world.step("next_rows")
        found: list[XLogData] = []
        while self._rows and len(found) < limit and size > 0:
            found.append(insert_frame(shape.relation.oid, [str(self._rows.pop(0)).encode()]))
            size -= len(found[-1])
        return Chunk(found, is_last=not self._rows)

    async def check_readable(self, shape: Shape) -> None:
        self._world.step("check_readable")
        if shape.where == "nonsense":
            raise TableUnreadable("nonsense is not a condition")

    async def confirm(self) -> None:
        self._world.step("confirm")

    async def end(self) -> None:
        self._world.step("unlock")

    async def flush(self) -> None:
        self._world.step("flush")

    async def close(self) -> None:
        self.is_closed = True


class FakeCommands:
    """Reads ``world.commands``.

    Each later session reads all commands from the beginning, as if the broker were out of date.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._position = 0

    async def open(self, state: CommandState) -> CommandState:
        self._world.step("commands opened")
        self._position = 0 if state.topic_id else len(self._world.commands)
        return replace(state, topic_id="topic", offset=max(state.offset, self._position))

    async def read(self) -> list[tuple[int, bytes | None]]:
        await asyncio.sleep(0.002)
        found = list(enumerate(self._world.commands))[self._position :]
        self._position = len(self._world.commands)
        return found

    async def close(self) -> None:
        self._world.step("commands closed")


class FakeSink:
    """The sink of one session."""

    is_atomic = True

    def __init__(self, world: World) -> None:
        self._world = world
        self._produced: list[Record] | None = None
        self.closed = False

    async def prepare(self) -> None:
        self._world.step("prepare")

    async def present_checkpoint(self) -> Checkpoint | None:
        return self._world.checkpoint

    async def checkpoints(self) -> list[Checkpoint]:
        last = self._world.checkpoint
        return [*self._world.former_checkpoints, *([last] if last is not None else [])]

    async def fence(self) -> None:
        self._world.step("fence")
        self._world.owner = self

    async def announce(self, checkpoint: Checkpoint) -> None:
        self._world.step("announce")
        self._world.checkpoint = checkpoint

    async def refuse(self, checkpoint: Checkpoint) -> None:
        self._world.step("refuse")
        self._produced = None
        self._world.checkpoint = checkpoint

    async def recorded(self) -> Recorded:
        self._world.step("recorded")
        return self._world.recorded

    async def loaded(self) -> Mapping[tuple[str, str], Loaded]:
        return self._world.loaded

    def commands(self) -> "FakeCommands":
        return FakeCommands(self._world)

    async def open_topics(self, _cut: int, topics: Sequence[str], described: Collection[str]) -> None:
        self._world.described_topics = set(described)
        self._world.topics |= set(topics)

    async def open_topic(self, policy: TablePolicy, *, keyed: bool) -> None:
        self._world.step("open_topic")
        assert keyed or not policy.tombstones
        self._world.topics.add(policy.topic)

    async def prepare_topics(self, policies: Sequence[TablePolicy]) -> None:
        self._world.step("prepare_topics")
        self._world.prepared.append([policy.topic for policy in policies])

    async def begin(self) -> None:
        self._world.step("begin")
        self._produced = []

    async def produce(self, cut: Cut, records: Sequence[Record]) -> None:
        self._world.step("produce")
        assert self._produced is not None, "begin() comes first"
        for record in records:
            cut.count(record.target, {} if record.op is None else {record.op: 1}, {0: 1})
        self._produced.extend(records)

    async def commit(self, cut: Cut, checkpoint: Checkpoint) -> None:
        if self._world.commit_gate is not None:
            await self._world.commit_gate.wait()
        self._world.step("commit")
        if self._world.owner is not self or self.closed:
            raise SinkUnavailable("fenced")
        assert self._produced is not None, "begin() comes first"
        self._world.cuts.append((cut, self._produced, checkpoint))
        self._world.checkpoint = checkpoint
        self._produced = None
        self._world.step("committed")

    async def deliver(self, cut: Cut, checkpoint: Checkpoint) -> None:
        await self.begin()
        await self.produce(cut, cut.records)
        await self.commit(cut, checkpoint)

    async def close(self) -> None:
        self.closed = True


class MemoryRegistry:
    """A registry in memory. Schemas have the same ids as in a real registry."""

    def __init__(self, schemas: dict[str, list[dict[str, Any]]] | None = None) -> None:
        self.by_id: dict[int, Schema] = {}
        self._schemas = {} if schemas is None else schemas

    async def start(self) -> None:
        pass

    def subjects(self) -> list[str]:
        return list(self._schemas)

    def record_name(self, subject: str) -> str | None:
        last = self._schemas[subject][-1]
        return last.get("name") if isinstance(last, dict) else None

    def record_namespace(self, subject: str) -> str | None:
        last = self._schemas.get(subject, [None])[-1]
        return last.get("namespace") if isinstance(last, dict) else None

    async def fields(self, subject: str, namespace: str) -> FieldHistory:
        return FieldHistory(self._versions(subject, namespace))

    async def keys(self, subject: str, namespace: str) -> KeyHistory:
        return KeyHistory(self._versions(subject, namespace))

    def _versions(self, subject: str, namespace: str) -> list[Any]:
        found = self._schemas.get(subject, [])
        return [schema for schema in found if isinstance(schema, dict) and schema.get("namespace") == namespace]

    async def register(self, subject: str, schema: Schema, _postgres: Mapping[str, Any] | None = None) -> int:
        known: list[Any] = self._schemas.setdefault(subject, [])
        if schema not in known:
            known.append(schema)
        number = schema_id(normalise(schema))
        self.by_id[number] = schema
        return number


class FakeRegistry(MemoryRegistry):
    """A registry that raises the errors that were scheduled for its steps."""

    def __init__(self, world: World) -> None:
        super().__init__(world.schemas)
        self._world = world

    async def start(self) -> None:
        self._world.step("registry")

    async def register(self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None = None) -> int:
        self._world.step("register")
        # A former key is registered without a description, so that it keeps the one that it has.
        assert (postgres is None) == subject.startswith(SERVICES) or subject.endswith("-key")
        return await super().register(subject, schema, postgres)
