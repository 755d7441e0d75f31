"""The two ends of a pipeline, as it knows them, and the registry between: what it may assume of each.

``postgres.source``, ``kafka.sink``, ``registry.builtin`` and ``registry.confluent`` implement them.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Protocol

from pgsluice import waiting
from pgsluice.avro.schema import FieldHistory, KeyHistory
from pgsluice.avro.wire import Schema
from pgsluice.checkpoint import Checkpoint
from pgsluice.commands import CommandState
from pgsluice.cut import Cut, Recorded
from pgsluice.history import ServerIdentity, TimelineSwitch
from pgsluice.layout import Layout
from pgsluice.loads import Loaded
from pgsluice.pgbinary.types import TypeDescription
from pgsluice.pgoutput.framing import Keepalive, XLogData
from pgsluice.record import Record
from pgsluice.relation import PublishedName, Relation, TableId
from pgsluice.snapshot import Chunk, Shape, Snapshot, TableSize, Taken
from pgsluice.tables import TablePolicy


class Stream(Protocol):
    """A slot being streamed."""

    async def read(self) -> list[XLogData | Keepalive]:
        """Wait for frames; at least one. Cancelling loses none. Raises what ended the stream."""

    async def wait_ended(self) -> None:
        """Raise what ended the stream as soon as it is known, also while nobody reads; never returns."""

    def report(self, received: int, flushed: int) -> None:
        """Let the status updates say so from now on; they go out on their own, never waiting for us."""

    def ask_position(self) -> None:
        """Ask the server how far it has come; the answer is a keepalive."""

    def answer_shutdown(self, wal_end: int) -> None:
        """Let a server go that shuts down, without moving the slot."""

    async def stop(self) -> None:
        """Send the last report and end the stream in order."""


class Source(Protocol):
    """One session's connections to PostgreSQL."""

    async def identify(self) -> ServerIdentity:
        """Return who the server is; before :meth:`start`."""

    async def timeline_history(self, timeline: int) -> Sequence[TimelineSwitch]:
        """Return where the ancestors of ``timeline`` ended; before :meth:`start`."""

    async def slot_position(self) -> int | None:
        """Return the slot's confirmed_flush_lsn, None when there is no slot; SlotInUse while another streams.

        After :meth:`start`, SourceUnavailable when it is no longer us who streams.
        """

    async def flushed_lsn(self) -> int:
        """Return the end of the server's flushed WAL."""

    async def is_standby(self) -> bool:
        """Return whether the server is in recovery; SourceUnavailable when it was promoted since :meth:`identify`."""

    async def can_read_rows(self) -> bool:
        """Return whether :meth:`reader` can read rows, which takes a primary; raises as :meth:`is_standby`."""

    async def create_slot(self) -> int:
        """Create the slot and return its consistent point: everything committed later will be streamed."""

    async def start(self) -> Stream:
        """Stream from the slot's own position; SlotInUse while another process does, StopError if unusable."""

    async def published_names(self) -> Sequence[PublishedName]:
        """Return the published tables; it waits for none that somebody has locked."""

    def published_relations(self, tables: Sequence[PublishedName]) -> AsyncIterator[Relation]:
        """Yield these tables as Relation messages would describe them now, but for their keys; none that is gone.

        It waits for no table that somebody has locked, and holds a portion of them in memory at a time.
        """

    async def table_sizes(self, oids: Sequence[int]) -> Mapping[int, TableSize]:
        """Return the sizes of tables as PostgreSQL has estimated them last, by oid; it waits for no lock."""

    async def layouts(self, oids: Sequence[int]) -> Mapping[int, Layout]:
        """Return the layouts of these tables as of now, by oid; those that are gone have none. It waits for no lock."""

    async def primary_key(self, relation_oid: int) -> tuple[str, ...] | None:
        """Return the primary key's columns as of now; empty when there is none, None when the table is gone."""

    async def is_partitioned(self, relation_oid: int) -> bool:
        """Return whether the table has partitions as of now, or is gone, so that it may have had some."""

    async def describe_types(self, oids: Sequence[int]) -> Sequence[TypeDescription]:
        """Return these types and all that they consist of, as of now; without those that are gone or built in."""

    def reader(self) -> "Reader":
        """Return what reads the rows of tables, on connections of its own to the primary; not connected yet."""

    async def close(self) -> None:
        """Close every connection."""


class Reader(Protocol):
    """Reads rows of tables at a snapshot. Everything raises SourceUnavailable, or TableUnreadable about one table."""

    async def shape(self, table: TableId) -> Shape | None:
        """Return what the table looks like now; None if it is gone, or not published any more."""

    async def writers(self, shape: Shape) -> Collection[str]:
        """Return the transactions that may have changed the table and have not ended; names of no meaning."""

    async def begin(self, shape: Shape) -> None:
        """Begin a transaction and lock the table against what would change it unseen."""

    async def look(self) -> Snapshot:
        """Return what is visible at this moment."""

    async def take(self) -> Taken:
        """Take the snapshot of the transaction that was begun."""

    async def rows(self, shape: Shape, after: Sequence[str], limit: int, size: int) -> Chunk:
        """Return the rows that follow the key ``after``, in the order of the key.

        ``limit`` of them at most, and no more once they have ``size`` bytes. TableUnreadable if the table is not of
        that ``shape`` any more.
        """

    async def rows_of(self, shape: Shape, keys: Sequence[Sequence[str]]) -> Chunk:
        """Return the rows that have these keys (see :func:`pgsluice.loads.moved_key`); as :meth:`rows`."""

    async def size(self, shape: Shape) -> int:
        """Return how many bytes the table takes on disk, without its indexes."""

    async def open_rows(self, shape: Shape) -> None:
        """Make ready to read all rows of the table, in any order; TableUnreadable as with :meth:`rows`."""

    async def next_rows(self, shape: Shape, limit: int) -> Chunk:
        """Return the next ``limit`` of them at most."""

    async def check_readable(self, shape: Shape) -> None:
        """TableUnreadable if no row may be read, or PostgreSQL cannot take ``shape.where`` as a condition on them."""

    async def confirm(self) -> None:
        """Make sure that what the snapshot saw is still there, once the stream has come to it; else SourceUnavailable.

        A primary that has crashed can have lost it, and the stream of its standby does not end then.
        """

    async def end(self) -> None:
        """End the transaction, if there is one."""

    async def flush(self) -> None:
        """Have the server write something, so that its stream comes to what was written before."""

    async def close(self) -> None:
        """Close every connection."""


class Sink(Protocol):
    """One session of delivery; any error out of it ends the session, and a new sink is made."""

    async def prepare(self) -> None:
        """Make the service topics exist, without disturbing an owner at work."""

    @property
    def is_atomic(self) -> bool:
        """Whether the records of a cut, its own and its checkpoint are committed together."""

    async def present_checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint that can be read at once, without disturbing an owner at work."""

    async def checkpoints(self) -> Sequence[Checkpoint]:
        """Return the last committed checkpoints, the one that counts last; complete only after :meth:`fence`.

        The one before the last cut's is among them if Kafka still has it. Where there is none of this pipeline, there
        may be one of another pipeline.
        """

    async def fence(self) -> None:
        """From here on no earlier session of this pipeline can commit anything."""

    async def announce(self, checkpoint: Checkpoint) -> None:
        """Commit ``checkpoint`` alone: durable when this returns."""

    async def refuse(self, checkpoint: Checkpoint) -> None:
        """Give up what is not committed, and commit ``checkpoint`` alone: durable when this returns.

        It records that the server has another history, so that no later start accepts it because its WAL has grown.
        """

    async def recorded(self) -> Recorded:
        """Return what the cut records tell of earlier sessions."""

    async def loaded(self) -> Mapping[tuple[str, str], Loaded]:
        """Return the tables whose rows have been read to the end, by schema and name; after :meth:`fence`."""

    def commands(self) -> "CommandReader | None":
        """Return what reads the commands to this pipeline, with clients of its own; None if it takes none."""

    async def open_topics(self, cut: int, topics: Sequence[str], described: Collection[str]) -> None:
        """Account for topics that were written in earlier sessions, so that full cuts name them.

        After :meth:`recorded`; ``cut``: the number of the last one that was committed; ``described``: all topics that
        have a schema.
        """

    async def open_topic(self, policy: TablePolicy, *, keyed: bool) -> None:
        """Make the topic of a table exist and pin its partitions for the session."""

    async def begin(self) -> None:
        """Start a Kafka transaction."""

    async def produce(self, cut: Cut, records: list[Record]) -> None:
        """Add records to the transaction and count them in ``cut``."""

    async def commit(self, cut: Cut, checkpoint: Checkpoint) -> None:
        """Commit it with the cut's record and the checkpoint: durable when this returns."""

    async def deliver(self, cut: Cut, checkpoint: Checkpoint) -> None:
        """Begin, produce all of ``cut`` and commit: durable when this returns."""

    async def close(self) -> None:
        """Give up what is not committed."""


class CommandReader(Protocol):
    """Reads the commands that somebody has sent to the pipeline; what is in the records, the caller finds out."""

    async def open(self, state: CommandState) -> CommandState:
        """Begin to read where ``state`` ends, or at the topic's end if that is not known; the state from there on."""

    async def read(self) -> Sequence[tuple[int, bytes | None]]:
        """Wait for records for a moment; return the offset and the value of each that has come."""

    async def close(self) -> None:
        """Close every connection."""


class Spool(waiting.Spool, Protocol):
    """Where the rows of one session wait for their commit."""

    @property
    def memory(self) -> int:
        """Bytes in memory."""

    @property
    def spilled(self) -> int:
        """Bytes on disk."""

    @property
    def busy_s(self) -> float:
        """How long the disk has been busy with one job; 0 when it has nothing to do."""

    async def relieve(self) -> bool:
        """Move a part of what waits to disk if memory is above its bound, and return whether more has to be moved.

        UnavailableError when there is no room on disk either, or when the disk hangs.
        """

    async def load(self) -> None:
        """Read what has to be loaded before the next row (:class:`pgsluice.transaction.Paused`), or give others a turn.

        UnavailableError when the disk hangs, or what is read is not as it was written.
        """

    def close(self) -> None:
        """Forget everything."""


class Registry(Protocol):
    """Where Avro schemas get their ids."""

    async def start(self) -> None:
        """Know every schema registered so far; again at each session."""

    def subjects(self) -> Sequence[str]:
        """Return every subject."""

    def record_name(self, subject: str) -> str | None:
        """Return the name of the record that was registered last for ``subject``, None if that is no record."""

    def record_namespace(self, subject: str) -> str | None:
        """Return the namespace of the record that was registered last for ``subject``, None if it has none."""

    async def fields(self, subject: str, namespace: str) -> FieldHistory:
        """Return the fields that the schemas of ``subject`` with this namespace have had. Use it at once."""

    async def keys(self, subject: str, namespace: str) -> KeyHistory:
        """Return the keys that were registered for ``subject`` with this namespace. Use it at once."""

    async def register(self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None = None) -> int:
        """Return the schema's id; when this returns, the schema is durable and readable by consumers."""
