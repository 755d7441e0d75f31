"""Protocols for the two ends of a pipeline and for the registry. They say what the pipeline may assume of each.

``postgres.source``, ``kafka.sink``, ``registry.builtin`` and ``registry.confluent`` implement these protocols.

``tests/unit/pipeline/test_pipeline.py`` covers this module.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Protocol

from pgsluice import waiting
from pgsluice.avro.key_history import KeyHistory
from pgsluice.avro.schema import FieldHistory
from pgsluice.avro.wire import Schema
from pgsluice.checkpoint import Checkpoint
from pgsluice.commands import CommandState
from pgsluice.cut import Cut, Recorded
from pgsluice.history import ServerIdentity, TimelineSwitch
from pgsluice.identity import Partitions
from pgsluice.layout import Layout
from pgsluice.loads import Loaded
from pgsluice.pgbinary.conversions import TypeDescription
from pgsluice.pgoutput.framing import Keepalive, XLogData
from pgsluice.record import Record
from pgsluice.relation import PublishedName, Relation, TableId
from pgsluice.snapshot import Chunk, Shape, Snapshot, TableSize, Taken
from pgsluice.tables import TablePolicy


class Stream(Protocol):
    """A slot that is being streamed."""

    async def read(self) -> list[XLogData | Keepalive]:
        """Wait for frames, and return at least one. Raise the error that ended the stream.

        If the call is cancelled, no frame is lost.
        """

    async def wait_ended(self) -> None:
        """Wait until the stream ends, even if nobody reads it. Then raise the error that ended it.

        This never returns normally.
        """

    def report(self, received: int, flushed: int) -> None:
        """Report these positions in every status update from now on. The stream sends the updates by itself."""

    def ask_position(self) -> None:
        """Ask the server for its position. The server answers with a keepalive."""

    def answer_shutdown(self, wal_end: int) -> None:
        """Allow a server that waits for us at ``wal_end`` to shut down. This does not move the slot."""

    async def stop(self) -> None:
        """Send the last report and end the stream properly."""


class Source(Protocol):
    """The connections of one session to PostgreSQL."""

    async def identify(self) -> ServerIdentity:
        """Return the identity of the server. Call it before :meth:`start`."""

    async def timeline_history(self, timeline: int) -> Sequence[TimelineSwitch]:
        """Return where the ancestors of ``timeline`` ended. Call it before :meth:`start`."""

    async def slot_position(self) -> int | None:
        """Return the slot's confirmed_flush_lsn, or None if there is no slot.

        Raise SlotInUse while another process streams. After :meth:`start`, raise SourceUnavailable if this process does
        not stream from the slot any more.
        """

    async def flushed_lsn(self) -> int:
        """Return the end of the server's flushed WAL."""

    async def is_standby(self) -> bool:
        """Return whether the server is in recovery.

        Raise SourceUnavailable if it was promoted since :meth:`identify`.
        """

    async def can_read_rows(self) -> bool:
        """Return whether :meth:`reader` can read rows, which needs a primary.

        Raise the same errors as :meth:`is_standby`.
        """

    async def create_slot(self) -> int:
        """Create the slot and return its consistent point. All transactions that commit later will be streamed."""

    async def start(self) -> Stream:
        """Begin to stream at the position of the slot.

        Raise SlotInUse if another process streams, or StopError if the slot is unusable.
        """

    async def published_names(self) -> Sequence[PublishedName]:
        """Return the published tables, without waiting for locks."""

    def published_relations(self, tables: Sequence[PublishedName]) -> AsyncIterator[Relation]:
        """Yield each of these tables as a Relation message would describe it now, but without its key.

        Leave out tables that do not exist any more.

        This does not wait for locks. At any time, only some of the tables are in memory.
        """

    async def table_sizes(self, oids: Sequence[int]) -> Mapping[int, TableSize]:
        """Return PostgreSQL's last estimates of the sizes of tables, by oid, without waiting for locks."""

    async def layouts(self, oids: Sequence[int]) -> Mapping[int, Layout]:
        """Return the present layouts of these tables, by oid, without waiting for locks.

        Leave out tables that do not exist any more.
        """

    async def primary_key(self, relation_oid: int) -> tuple[str, ...] | None:
        """Return the columns of the table's present primary key.

        An empty result means that there is no primary key. None means that the table does not exist any more.
        """

    async def identity(self, relation_oid: int) -> frozenset[str]:
        """Return the columns of the table's present replica identity, whether they are published or not.

        The result is empty if the identity is FULL or NOTHING, if the table lacks the key that the identity names, or
        if the table does not exist any more.
        """

    async def partitions(self, root: int) -> Partitions | None:
        """Return the present partitions of a table, or None if the table exists and is not partitioned."""

    async def describe_types(self, oids: Sequence[int]) -> Sequence[TypeDescription]:
        """Return these types and all types that they consist of.

        Leave out types that are built in, and types that do not exist any more.
        """

    def reader(self) -> "Reader":
        """Return a reader of tables, which connects to the primary when it is first used."""

    async def close(self) -> None:
        """Close every connection."""


class Reader(Protocol):
    """Reads rows of tables at a snapshot. All methods may raise SourceUnavailable, or TableUnreadable for one table."""

    async def shape(self, table: TableId) -> Shape | None:
        """Return the present shape of the table, or None if it does not exist or is not published any more."""

    async def writers(self, shape: Shape) -> Collection[str]:
        """Return an identifier of each unfinished transaction that may have changed the table."""

    async def begin(self, shape: Shape) -> None:
        """Begin a transaction, and lock the table against changes that the stream does not send."""

    async def look(self) -> Snapshot:
        """Return a snapshot that says which transactions are visible now."""

    async def take(self) -> Taken:
        """Take the snapshot of the transaction that :meth:`begin` began. Return it with its position and time."""

    async def rows(self, shape: Shape, after: Sequence[str], limit: int, size: int) -> Chunk:
        """Return the rows that follow the key ``after``, in the order of the key.

        Return at most ``limit`` rows, and stop once the rows have ``size`` bytes. Raise TableUnreadable if the table
        does not have this ``shape`` any more.
        """

    async def rows_of(self, shape: Shape, keys: Sequence[Sequence[str]], size: int) -> Chunk:
        """Return the rows with these keys (see :func:`pgsluice.loads.moved_key`).

        Raise the same errors as :meth:`rows`. Raise ReadTooSlow if several rows together have more than ``size`` bytes.
        """

    async def check_keys(self, shape: Shape, after: Sequence[str], keys: Sequence[Sequence[str]]) -> None:
        """Raise ValueRefused if PostgreSQL does not accept ``after`` or one of ``keys`` as a key of the table."""

    async def size(self, shape: Shape) -> int:
        """Return how many bytes the table takes on disk, without its indexes."""

    async def open_rows(self, shape: Shape) -> None:
        """Prepare to read all rows of the table, in any order. Raise TableUnreadable as :meth:`rows` does."""

    async def next_rows(self, shape: Shape, limit: int, size: int) -> Chunk:
        """Return the next rows, at most ``limit``. Stop soon after the rows have ``size`` bytes."""

    async def check_readable(self, shape: Shape) -> None:
        """Raise TableUnreadable if we may not read the rows, or if ``shape.where`` is not a valid condition on them."""

    async def confirm(self) -> None:
        """Check that the server still has the rows that the snapshot saw.

        Call it when the stream has reached the snapshot.

        A primary that has crashed may have lost these rows, although the stream of its standby continues. In that case,
        raise SourceUnavailable.
        """

    async def end(self) -> None:
        """End the transaction, if there is one."""

    async def flush(self) -> None:
        """Make the server write a message to its WAL, so that the stream advances even if nobody else writes."""

    async def close(self) -> None:
        """Close every connection."""


class Sink(Protocol):
    """One session of delivery. Any error ends the session, and the next session creates a new sink."""

    async def prepare(self) -> None:
        """Create the service topics if they do not exist. This does not disturb a running owner."""

    @property
    def is_atomic(self) -> bool:
        """Return whether the records of a cut are committed together with its cut record and its checkpoint."""

    async def present_checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint that can be read without fencing. This does not disturb a running owner."""

    async def checkpoints(self) -> Sequence[Checkpoint]:
        """Return the last committed checkpoints. The last of them is the valid one. Call it after :meth:`fence`.

        Before :meth:`fence`, some checkpoints may be missing. If Kafka still has the checkpoint of the cut before the
        last cut, the result contains this checkpoint as well. If this pipeline has no checkpoint, the result may
        contain a checkpoint of another pipeline.
        """

    async def fence(self) -> None:
        """Keep earlier sessions of this pipeline from committing anything from now on."""

    async def announce(self, checkpoint: Checkpoint) -> None:
        """Commit ``checkpoint`` without any changes. The checkpoint is durable when this returns."""

    async def refuse(self, checkpoint: Checkpoint) -> None:
        """Abort the open transaction, and commit ``checkpoint`` without any changes.

        The checkpoint is durable when this returns. It records that the server has another history. Without this
        record, a later start could accept the server as soon as its WAL has grown beyond the last position.
        """

    async def recorded(self) -> Recorded:
        """Return the information that the cut records contain about earlier sessions."""

    async def loaded(self) -> Mapping[tuple[str, str], Loaded]:
        """Return the tables whose rows have been read completely, by schema and name. Call it after :meth:`fence`."""

    def commands(self) -> "CommandReader | None":
        """Return a reader of commands, which has its own clients, or None if this pipeline accepts no commands."""

    async def open_topics(self, cut: int, topics: Sequence[str], described: Collection[str]) -> None:
        """Note the topics that earlier sessions wrote to, because full cuts have to name these topics as well.

        Call it after :meth:`recorded`. ``cut`` is the number of the last committed cut. ``topics`` are the data topics
        written so far. ``described`` are all topics that have a schema.
        """

    async def open_topic(self, policy: TablePolicy, *, keyed: bool) -> None:
        """Create the topic of a table if it does not exist, and fix its number of partitions for the session."""

    async def prepare_topics(self, policies: Sequence[TablePolicy]) -> None:
        """Create the topics of several tables with keys together, because this is faster than one by one.

        Topics that cannot be created are skipped. :meth:`open_topic` raises the error later.
        """

    async def begin(self) -> None:
        """Start a Kafka transaction."""

    async def produce(self, cut: Cut, records: list[Record]) -> None:
        """Add records to the transaction and count them in ``cut``."""

    async def commit(self, cut: Cut, checkpoint: Checkpoint) -> None:
        """Commit the transaction with the record of ``cut`` and with ``checkpoint``.

        Both are durable when this returns.
        """

    async def deliver(self, cut: Cut, checkpoint: Checkpoint) -> None:
        """Begin a transaction, produce all of ``cut`` and commit it. All of it is durable when this returns."""

    async def close(self) -> None:
        """Abort the open transaction."""


class CommandReader(Protocol):
    """Reads the commands to the pipeline. The caller decodes the records."""

    async def open(self, state: CommandState) -> CommandState:
        """Prepare to read from the offset in ``state``, or from the topic's end if ``state`` belongs to another topic.

        Return ``state`` with the topic and the offset from which commands are read.
        """

    async def read(self) -> Sequence[tuple[int, bytes | None]]:
        """Wait a short time for records. Return the offset and the value of each record."""

    async def close(self) -> None:
        """Close every connection."""


class Spool(waiting.Spool, Protocol):
    """Keeps the rows of one session until their transactions commit."""

    @property
    def memory(self) -> int:
        """Return how many bytes are in memory."""

    @property
    def spilled(self) -> int:
        """Return how many bytes are on disk."""

    @property
    def busy_s(self) -> float:
        """Return how long the disk has been busy with one job, or 0 if it has nothing to do."""

    async def relieve(self) -> bool:
        """Move some rows to disk if they take too much memory. Return whether more has to be moved.

        Raise UnavailableError if the disk has no room or hangs.
        """

    async def load(self) -> None:
        """Read the data of the next row from disk. If there is nothing to read, only let other tasks run.

        Call it after a :class:`pgsluice.transaction.Paused`. Raise UnavailableError if the disk hangs, or if the files
        have been changed.
        """

    def close(self) -> None:
        """Discard all rows."""


class Registry(Protocol):
    """Assigns ids to Avro schemas."""

    async def start(self) -> None:
        """Read all schemas that are registered so far. Call it again in each session."""

    def subjects(self) -> Sequence[str]:
        """Return every subject."""

    def record_name(self, subject: str) -> str | None:
        """Return the record name of the last schema of ``subject``, or None if that schema is not a record."""

    def record_namespace(self, subject: str) -> str | None:
        """Return the namespace of the last schema of ``subject``, or None if that schema has no namespace."""

    async def fields(self, subject: str, namespace: str) -> FieldHistory:
        """Return all fields of the schemas that ``subject`` has had with this namespace.

        Use the result before anything else is registered, because registrations change it.
        """

    async def keys(self, subject: str, namespace: str) -> KeyHistory:
        """Return the keys that were registered for ``subject`` with this namespace.

        Use the result before anything else is registered, because registrations change it.
        """

    async def register(self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None = None) -> int:
        """Register the schema and return its id.

        The schema is durable, and consumers can read it, when this returns.
        """
