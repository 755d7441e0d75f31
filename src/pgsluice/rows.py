"""Turns runs of rows into Kafka records. Nearly every change takes this path from CopyData to a record.

This module and the modules that it uses are the specification of this path. Read them in this order:

1. ``pgoutput.framing``: a CopyData message of the server is an XLogData frame or a Keepalive. XLogData has a header of
   fixed width, and then one message of pgoutput.
2. ``pgoutput.decoder``: an Insert, Update or Delete names the table by its OID. It has one or two tuples, in which each
   value is null, unchanged, text, or binary.
3. ``envelope``: the change becomes the envelope (docs/events.md) and the key. An update that changes the key becomes
   two records.
4. ``avro.encoder``: one writer for each column turns the value's bytes into Avro. ``avro.text``, ``avro.temporal_text``
   and ``avro.from_binary`` have the writers. ``avro.binary`` has the encodings of Avro's own types.
5. ``record``: the topic, key and value of one Kafka record.

All decisions about a table are made before its first row: its columns, schema, key and topic, and the function that
writes each column. For each row, only these functions are called.

The session calls :func:`add_run` with the frames that it has read, and with the index at which a run begins. The run
continues as long as rows of one transaction follow, their tables have encoders, and there is room for their records.
The session handles the frame that ended the run, and then starts a new run.

``native.rows`` is the compiled twin of this module. It writes the common forms of rows itself, and leaves all others to
this module. ``native.speedups`` chooses between the two. Both twins produce the same records, byte for byte.

https://www.postgresql.org/docs/current/protocol-replication.html#PROTOCOL-REPLICATION-START-REPLICATION
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
https://avro.apache.org/docs/1.12.0/specification/#binary-encoding
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

# ruff: noqa: ARG001 - a function has the arguments of its compiled twin

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from pgsluice.envelope import ChangeEncoder, Stamp
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.pgoutput.framing import MESSAGE_AT, Keepalive, XLogData
from pgsluice.record import Pending
from pgsluice.relation import Relation
from pgsluice.transaction import WholeTransactions

_ROWS: Final = frozenset((b"I", b"U", b"D"))
"""The types of the messages Insert, Update and Delete."""

OID: Final = slice(MESSAGE_AT + 1, MESSAGE_AT + 5)
"""The table's OID in a frame with a row that is not streamed. It comes right after the message type."""


def is_row(frame: XLogData | Keepalive) -> TypeGuard[XLogData]:
    """Return whether the frame is a row, so that a run can begin with it."""
    return isinstance(frame, bytes) and frame[MESSAGE_AT : MESSAGE_AT + 1] in _ROWS


class Rows:
    """The changes of one version of a table, as records.

    Without an ``encoder``, the table is not published, and its changes are dropped.
    """

    def __init__(self, relation: Relation, encoder: ChangeEncoder | None) -> None:
        self.relation = relation
        self.encoder = encoder

    def add(self, message: bytes, stamp: Stamp, pending: Pending, *, is_streamed: bool) -> None:
        """Add the records of an Insert, Update, Delete or Truncate to ``pending``.

        ``is_streamed``: the message has a transaction id, because the server sent it before the commit. Raise
        ProtocolError if the message is invalid, and PoisonError if Avro cannot hold the key and dead letters are off.
        """
        if self.encoder is not None:
            decoder = Decoder()
            decoder.in_stream = is_streamed
            decoded: Any = decoder.decode(message)
            pending.add(self.encoder.encode(decoded, stamp))


def add_run(
    frames: Sequence[XLogData | Keepalive],
    at: int,
    relations: Mapping[int, Relation],
    ready: Mapping[int, Rows],
    stamp: Stamp,
    pending: Pending,
) -> int:
    """Add the rows from ``frames[at]`` on to ``pending``. Return the index of the first frame that was not added.

    ``relations`` has the present version of each table, as the server described it last. ``ready`` has the tables that
    have an encoder already. All rows belong to the transaction of ``stamp``, and none is streamed.

    The run ends

    * before a frame that is not a row;
    * before a row whose table has no encoder for its present version, because making an encoder may have to wait for
      the catalog or a schema registry;
    * when ``pending`` is full, because the caller has to make room.
    """
    while at < len(frames) and not pending.full:
        frame = frames[at]
        if not is_row(frame):
            break
        oid = int.from_bytes(frame[OID], "big")
        rows = ready.get(oid)
        if rows is None or relations.get(oid) is not rows.relation:
            break
        rows.add(frame[MESSAGE_AT:], stamp, pending, is_streamed=False)
        at += 1
    return at


def add_transactions(  # noqa: PLR0913 - what all transactions of a run share
    frames: Sequence[XLogData | Keepalive],
    at: int,
    relations: Mapping[int, Relation],
    ready: Mapping[int, Rows],
    pending: Pending,
    *,
    from_lsn: int,
    room: int,
    epoch: int,
    commit_timestamps: bool,
) -> WholeTransactions | None:
    """Add the complete transactions from ``frames[at]`` on. Return None if there is none.

    Only the compiled twin has this shortcut, so this function always returns None. If a transaction is not added, the
    caller processes its messages one by one, with the same result.

    The twin adds a transaction if it commits at ``from_lsn`` or later, if all its rows would be in one run, and if it
    does not fill ``pending`` by itself. ``pending`` may hold several transactions, until they reach ``room`` bytes.
    """
    return None
