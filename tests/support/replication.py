"""Functions for tests of ``pgsluice.postgres``. They open and close its connections, and read streams up to a point."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pgsluice.pgoutput import messages
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.pgoutput.framing import MESSAGE_AT, Keepalive, XLogData
from pgsluice.postgres.connection import ReplicationConnection
from pgsluice.postgres.options import ConnectionOptions, StreamOptions
from pgsluice.postgres.stream import ReplicationStream
from sandbox.postgres import Database

Frames = Sequence[XLogData | Keepalive]

SLOT = "followed"
PUBLICATION = "published"


def options_for(database: Database, **parameters: str) -> ConnectionOptions:
    """Return the options of a connection to a database, with status updates so frequent that tests need not wait."""
    return ConnectionOptions({"dsn": database.conninfo(), **parameters}, status_interval_s=0.1)


@asynccontextmanager
async def replication(options: ConnectionOptions) -> AsyncIterator[ReplicationConnection]:
    """Open a replication connection, and close it when the block ends."""
    connection = await ReplicationConnection.open(options)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def streaming(
    database: Database,
    options: ConnectionOptions | None = None,
    publications: Sequence[str] = (PUBLICATION,),
    wanted: StreamOptions | None = None,
) -> AsyncIterator[ReplicationStream]:
    """Stream from ``SLOT``. Create the slot if it does not exist."""
    async with replication(options or options_for(database)) as connection:
        if await connection.slot(SLOT) is None:
            await connection.create_slot(SLOT)
        yield await connection.start(SLOT, publications, wanted)


async def read_transactions(stream: ReplicationStream, count: int = 1) -> list[messages.Message]:
    """Read up to the ``count``-th commit. Return all messages."""
    decoder, decoded, commits = Decoder(), [], 0
    while commits < count:
        for message in decode(await stream.read(), decoder):
            decoded.append(message)
            commits += isinstance(message, messages.Commit)
    return decoded


async def read_inserts(stream: ReplicationStream, count: int) -> list[list[bytes | None]]:
    """Read whole transactions until they have inserted at least ``count`` rows. Return the values of the rows."""
    rows: list[list[bytes | None]] = []
    while len(rows) < count:
        decoded = await read_transactions(stream)
        rows += [_values(message.new) for message in decoded if isinstance(message, messages.Insert)]
    return rows


def decode(frames: Frames, decoder: Decoder | None = None) -> list[messages.Message]:
    """Return the messages of the frames."""
    decoder = decoder or Decoder()
    return [decoder.decode(frame[MESSAGE_AT:]) for frame in frames if isinstance(frame, bytes)]


def _values(row: messages.TupleData) -> list[bytes | None]:
    return [value if isinstance(value, bytes) else None for value in row]
