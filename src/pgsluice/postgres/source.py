"""One session's connections to PostgreSQL: the replication connection, and an ordinary connection for the catalog.

``PostgresSource`` implements ``pipeline.ends.Source``. It is closed at the end of the session.

``tests/integration/test_postgres_network.py`` covers this module.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from pgsluice.errors import ConfigError, SlotInUse, SourceUnavailable
from pgsluice.history import ServerIdentity, TimelineSwitch
from pgsluice.identity import Partitions
from pgsluice.layout import Layout
from pgsluice.pgbinary.conversions import TypeDescription
from pgsluice.postgres.catalog import Catalog
from pgsluice.postgres.chunks import ChunkReader
from pgsluice.postgres.connection import ReplicationConnection
from pgsluice.postgres.options import Address, ConnectionOptions, StreamOptions
from pgsluice.postgres.primary import Primary
from pgsluice.postgres.stream import ReplicationStream
from pgsluice.relation import PublishedName, Relation
from pgsluice.snapshot import TableSize


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The slot to follow, and its publications."""

    connection: ConnectionOptions
    slot: str
    publications: Sequence[str]
    stream: StreamOptions = field(default_factory=StreamOptions)
    failover: bool = False
    """Whether a new slot is created so that it survives a failover."""
    primary: ConnectionOptions | None = None
    """The connection options of the primary, from which rows are read if we stream from a standby. None means that rows
    are read from the server that we stream from."""
    is_temporary: bool = False
    """Whether a created slot is temporary."""


class PostgresSource:
    """The server of one session, and the session's connections to this server."""

    def __init__(self, options: SourceOptions, replication: ReplicationConnection, catalog: Catalog) -> None:
        self._options = options
        self._replication = replication
        self._catalog = catalog
        self._started = False
        self._systemid, self._timeline = "", 0
        self._witness: ReplicationConnection | None = None
        """A second replication connection, which exists only if the server is a standby. It shows which timeline is
        being replayed. An ordinary connection cannot show the timeline."""

    @classmethod
    async def open(cls, options: SourceOptions) -> "PostgresSource":
        """Connect to the server.

        Raise ConfigError if a publication is missing, because PostgreSQL 18 would silently leave out its changes.
        """
        replication = await ReplicationConnection.open(options.connection)
        source = cls(options, replication, Catalog(replication.same_server))
        try:
            await source._check_publications()
        except BaseException:
            await source.close()
            raise
        return source

    async def _check_publications(self) -> None:
        if missing := await self._catalog.missing_publications(self._options.publications):
            raise ConfigError(
                f"Publication {', '.join(map(repr, missing))} does not exist in this database: create it (CREATE "
                "PUBLICATION ... FOR TABLE ...) before the slot, or correct postgres.publications."
            )

    @property
    def address(self) -> Address:
        """Return the address of this server, which is one of the hosts in the settings."""
        return self._replication.address

    async def identify(self) -> ServerIdentity:
        """Return the identity of the server. Call it before :meth:`start`."""
        server = await self._replication.identify_system()
        self._systemid, self._timeline = server.systemid, server.timeline
        if await self.is_standby():
            self._witness = await ReplicationConnection.open(self._replication.same_server)
        return server

    async def timeline_history(self, timeline: int) -> list[TimelineSwitch]:
        """Return where the ancestors of ``timeline`` ended. Call it before :meth:`start`."""
        return await self._replication.timeline_history(timeline)

    async def slot_position(self) -> int | None:
        """Return the slot's confirmed_flush_lsn, or None if there is no slot.

        Raise SlotInUse while another process streams from the slot.

        After :meth:`start`, raise SourceUnavailable if no process streams from the slot any more, and our walsender has
        ended. After an error, a walsender releases the slot, but it does not end until the stream has read the error
        and the frames before the error.
        """
        state = await self._catalog.slot(self._options.slot)
        if state is None:
            return None
        if state.active_pid not in (None, self._replication.backend_pid):
            raise SlotInUse(
                f"Replication slot {self._options.slot!r} is active for PID {state.active_pid}: waiting to take over."
            )
        ours = self._replication.backend_pid
        if self._started and state.active_pid is None and not await self._catalog.has_process(ours):
            raise SourceUnavailable(
                "The replication stream has ended, or the catalog's connection reached another server than the "
                "stream. If there are several hosts, set target_session_attrs."
            )
        return state.confirmed_flush_lsn

    async def is_standby(self) -> bool:
        """Return whether the server is in recovery.

        Raise SourceUnavailable if the server was promoted since :meth:`identify`.
        """
        in_recovery = (await self._catalog.server()).in_recovery
        if self._witness is not None and not in_recovery:
            raise SourceUnavailable(
                "The standby was promoted while this session was starting. A new session will check its timeline."
            )
        return in_recovery

    async def can_read_rows(self) -> bool:
        """Return whether :meth:`reader` can read rows, which needs a primary.

        Raise the same errors as :meth:`is_standby`.
        """
        return self._options.primary is not None or not await self.is_standby()

    async def flushed_lsn(self) -> int:
        """Return the end of the server's WAL.

        Raise SourceUnavailable if the server has ended the stream and is waiting until we have read it to its end.
        While nobody reads the stream, only the server's waiting shows that the stream has ended.
        """
        if self._started and await self._catalog.wants_to_end(self._replication.backend_pid):
            raise SourceUnavailable(
                "PostgreSQL has ended the stream and waits until pgsluice has read it, so this session ends now."
            )
        return await self._catalog.current_wal_lsn()

    async def create_slot(self) -> int:
        """Create the slot and return its consistent point."""
        options = self._options
        return await self._replication.create_slot(
            options.slot,
            failover=options.failover,
            is_temporary=options.is_temporary,
            blockers=self._catalog.slot_creation_blockers,
        )

    async def start(self) -> ReplicationStream:
        """Stream from the slot's own position.

        Raise SlotInUse if another process streams, or StopError if the slot is unusable.
        """
        options = self._options
        stream = await self._replication.start(options.slot, options.publications, options.stream)
        stream.inquire = self._is_streaming
        stream.check_received = None if self._witness is None else partial(self._check_timeline, self._witness)
        self._started = True
        return stream

    async def _check_timeline(self, witness: ReplicationConnection) -> None:
        """Raise SourceUnavailable if a standby is on a new timeline, before changes of that timeline are processed.

        A walsender survives a promotion of its own server, and also a promotion of the server that its own server
        follows. After the promotion, the walsender sends data of a timeline that we have not checked, so we do not know
        at which position this timeline left the old one.
        """
        found = (await witness.identify_system()).timeline
        if found != self._timeline:
            raise SourceUnavailable(
                f"The standby has gone over from timeline {self._timeline} to {found}: it was promoted, or the server "
                "that it follows was. A new session will check where the new timeline left the old one."
            )

    async def _is_streaming(self) -> bool:
        state = await self._catalog.slot(self._options.slot)
        return state is not None and state.active_pid == self._replication.backend_pid

    async def published_names(self) -> list[PublishedName]:
        """Return the published tables."""
        return await self._catalog.published_names(self._options.publications)

    def published_relations(self, tables: Sequence[PublishedName]) -> AsyncIterator[Relation]:
        """Yield these tables as Relation messages would describe them now, but without their keys.

        Leave out tables that do not exist any more.
        """
        return self._catalog.published_relations(self._options.publications, tables)

    async def table_sizes(self, oids: Sequence[int]) -> dict[int, TableSize]:
        """Return PostgreSQL's last estimates of the sizes of tables, by oid, without waiting for locks."""
        return await self._catalog.table_sizes(oids)

    async def layouts(self, oids: Sequence[int]) -> dict[int, Layout]:
        """Return the present layouts of these tables, by oid, without waiting for locks.

        Leave out tables that do not exist any more.
        """
        return await self._catalog.layouts(oids, self._options.publications)

    async def primary_key(self, relation_oid: int) -> tuple[str, ...] | None:
        """Return the columns of the present primary key.

        An empty result means that there is no key. None means that the table does not exist any more.
        """
        return await self._catalog.primary_key(relation_oid)

    async def identity(self, relation_oid: int) -> frozenset[str]:
        """Return the columns of the table's present replica identity, whether they are published or not.

        The result is empty if the identity is FULL or NOTHING, if the table lacks the key that the identity names, or
        if the table does not exist any more.
        """
        return await self._catalog.identity(relation_oid)

    async def partitions(self, root: int) -> Partitions | None:
        """Return the present partitions of a table, or None if the table exists and is not partitioned."""
        return await self._catalog.partitions(root, self._options.publications)

    async def describe_types(self, oids: Sequence[int]) -> list[TypeDescription]:
        """Return these types and all types that they consist of.

        Leave out types that are built in, and types that do not exist any more.
        """
        return await self._catalog.describe_types(oids)

    def reader(self) -> ChunkReader:
        """Return a reader of tables, which connects to the primary when it is first used."""
        options = self._options
        if options.primary is None:
            return ChunkReader(self._replication.same_server, options.publications)
        primary = Primary(self._systemid, self._timeline)
        return ChunkReader(options.primary, options.publications, primary)

    async def close(self) -> None:
        """Close the connections, so that the server releases the slot."""
        await self._catalog.close()
        if self._witness is not None:
            await self._witness.close()
        await self._replication.close()
