"""Encodes change events: turns a row change into topic, key and value.

Each version of a relation has one :class:`ChangeEncoder`, which encodes every change of the table. The fields of the
envelope are those of ``contract/envelope.avsc``, in the same order. These fields are written one after the other as
Avro bytes, because a dict for each row would cost more than all other work together.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from pgsluice.avro.binary import (
    END,
    FALSE,
    NULL,
    POSTGRES_EPOCH_US,
    TRUE,
    VALUE,
    encode_array,
    encode_bytes,
    encode_long,
    encode_string,
)
from pgsluice.avro.encoder import FormerKey, KeyEncoder, RowEncoder
from pgsluice.avro.wire import header
from pgsluice.dead_letter import OP, DeadLetter, Reason, SourceChange, encode
from pgsluice.errors import NullKey, PoisonError, ProtocolError
from pgsluice.pgoutput import messages
from pgsluice.pgoutput.messages import UNCHANGED, RowMessage, TupleData
from pgsluice.record import Record, Target
from pgsluice.relation import Relation
from pgsluice.transaction import Transaction

_BEFORE_ALL = -1
"""The ``seq`` of a message that is not part of a transaction."""

_UPDATE, _DELETE, _TRUNCATE = (encode_bytes(op) for op in (b"u", b"d", b"t"))
_NO_IMAGE, KEY_IMAGE, FULL_IMAGE = (encode_bytes(image) for image in (b"none", b"key", b"full"))
NO_BEFORE = NULL + _NO_IMAGE
_NO_MARKS = END + END
"""The fields ``unchanged`` and ``raw`` of a row without unchanged values and without values that Avro cannot hold."""


def _array(texts: Iterable[bytes]) -> bytes:
    """Return an Avro array of strings."""
    return encode_array([encode_bytes(text) for text in texts])


def _map(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return an Avro map of strings."""
    return encode_array([encode_bytes(key) + encode_bytes(text) for key, text in entries])


_KEY_CHANGE = _array([b"key_change"])

_OPS = {messages.Update: "u", messages.Delete: "d"}
"""The ops of updates and deletes. Each :class:`ChangeEncoder` has its own op for inserts."""

OnIncomplete = Callable[[Relation, TupleData], None]

InsertOp = Literal["c", "r"]
"""``c``: the row was inserted. ``r``: the row already existed, and was read."""


class Stamp:
    """The fields that all records of one transaction share, encoded once, and a counter for ``seq``."""

    __slots__ = ("_head", "_origin", "_tail", "epoch", "next_seq", "timestamp_ms", "transaction")

    def __init__(self, transaction: Transaction, epoch: int, *, commit_timestamps: bool) -> None:
        self.transaction = transaction
        self.epoch = epoch
        self.next_seq = 0
        self.timestamp_ms = (transaction.commit_ts + POSTGRES_EPOCH_US) // 1000 if commit_timestamps else 0
        self._head = self._tail = b""
        self._origin: str | None = None

    def encode(self) -> bytes:
        """Return the next record's fields from ``epoch`` to ``origin``."""
        if not self._head or self._origin is not self.transaction.origin:
            self._prepare()
        seq = self.next_seq
        self.next_seq = seq + 1
        return self._head + encode_long(seq) + self._tail

    def origin_of(self, relation: Relation, op: str, seq: int, key_columns: tuple[str, ...] = ()) -> SourceChange:
        """Return the origin of a dead letter: the change that the dead letter replaces."""
        transaction = self.transaction
        return SourceChange(
            *(relation.namespace, relation.name, op),
            *(self.epoch, transaction.commit_lsn, seq, transaction.xid, transaction.commit_ts + POSTGRES_EPOCH_US),
            key_columns,
        )

    def _prepare(self) -> None:
        """Encode the fields before and after ``seq``."""
        transaction, origin = self.transaction, self.transaction.origin
        self._origin = origin
        self._head = encode_long(self.epoch) + encode_long(transaction.commit_lsn)
        self._tail = (
            encode_long(transaction.xid)
            + encode_long(transaction.commit_ts + POSTGRES_EPOCH_US)
            + (NULL if origin is None else VALUE + encode_bytes(origin.encode()))
        )


class MessageEncoder:
    """Turns messages of pg_logical_emit_message into records with the fields of ``contract/message.avsc``."""

    def __init__(self, target: Target) -> None:
        assert target.key_schema_id is not None, "the key of a message is its prefix"
        self._target = target
        self._head = header(target.value_schema_id)
        self._key_head = header(target.key_schema_id)

    def encode(self, message: messages.LogicalMessage, stamp: Stamp) -> list[Record]:
        """Return the record of a transactional message."""
        transaction = stamp.transaction
        position = encode_long(stamp.epoch) + encode_long(transaction.commit_lsn) + encode_long(stamp.next_seq)
        stamp.next_seq += 1
        origin = transaction.origin
        tail = (
            VALUE + encode_long(transaction.xid),
            VALUE + encode_long(transaction.commit_ts + POSTGRES_EPOCH_US),
            NULL if origin is None else VALUE + encode_bytes(origin.encode()),
        )
        return [self._record(message, position + b"".join(tail), stamp.timestamp_ms)]

    def encode_standalone(self, message: messages.LogicalMessage, epoch: int) -> list[Record]:
        """Return the record of a message outside transactions.

        The record's position is the LSN of the message. The record comes before the changes of a transaction that
        commits at the same LSN.
        """
        position = encode_long(epoch) + encode_long(message.lsn) + encode_long(_BEFORE_ALL)
        return [self._record(message, position + NULL + NULL + NULL, 0)]

    def _record(self, message: messages.LogicalMessage, tail: bytes, timestamp_ms: int) -> Record:
        prefix = encode_bytes(message.prefix.encode())
        content = encode_bytes(message.content) + (TRUE if message.transactional else FALSE)
        return Record(self._target, "m", self._key_head + prefix, self._head + prefix + content + tail, timestamp_ms)


EXPECTED_MAX: Final = 16 * 1024 * 1024
"""The limit of memory for dead letters of changes that are not delivered yet. This is enough for about ten thousand
dead letters, unless their keys are large."""

_LETTER_BYTES: Final = 1024
"""A generous estimate of the memory that one dead letter takes in addition to its key."""


def _held_bytes(letters: Mapping[tuple[int, str], DeadLetter]) -> int:
    return sum(_LETTER_BYTES + len(letter.key or b"") for letter in letters.values())


class DeadLetters:
    """Writes dead letters to ``target``, and knows which records they have to replace.

    The object outlives sessions. If Kafka refuses a record in one session, the record is replaced when PostgreSQL sends
    the change again in the next session. The key schema of ``target`` is a string. ``say`` is called with each dead
    letter.
    """

    def __init__(self, target: Target, say: Callable[[DeadLetter], None]) -> None:
        assert target.key_schema_id is not None, "the key of a dead letter is a topic's name"
        self._target = target
        self._say = say
        self._key_header, self._head = header(target.key_schema_id), header(target.value_schema_id)
        self._expected: dict[int, dict[tuple[int, str], DeadLetter]] = {}
        """Maps each commit LSN to the expected dead letters of its transaction. Each dead letter is found by the (seq,
        topic) of the record that it replaces."""

    def expect(self, letters: Iterable[DeadLetter]) -> bool:
        """Expect to write ``letters``. Each replaces a refused record when PostgreSQL sends the record's change again.

        Return False if all ``letters`` were expected before, because this means that replacing the records did not
        help. Also return False if the expected dead letters take more than ``EXPECTED_MAX`` bytes, because so many
        refusals cannot be rare exceptions.
        """
        fresh = False
        for letter in letters:
            of_transaction = self._expected.setdefault(letter.origin.lsn, {})
            place = letter.origin.seq, letter.topic
            fresh |= place not in of_transaction
            of_transaction[place] = letter
        return fresh and sum(map(_held_bytes, self._expected.values())) <= EXPECTED_MAX

    def forget(self, delivered_lsn: int) -> None:
        """Forget the dead letters of transactions that were delivered."""
        self._expected = {lsn: letters for lsn, letters in self._expected.items() if lsn >= delivered_lsn}

    def expected(self, commit_lsn: int) -> bool:
        """Return whether records of this transaction have to be replaced."""
        return commit_lsn in self._expected

    def replace(self, records: list[Record], commit_lsn: int, seq: int) -> list[Record]:
        """Return ``records``, with the expected dead letters in place of refused records.

        ``seq``: the ``seq`` of the first record.
        """
        letters = self._expected[commit_lsn]
        found: list[Record] = []
        letter = None
        for record in records:
            if record.op is not None:
                letter = letters.get((seq, record.target.topic))
                found.append(record if letter is None else self.record(letter, record.timestamp_ms))
                seq += 1
            elif letter is None:
                # The record is a tombstone. It has the same key as the ``d`` record before it, so it is left out if
                # that record was refused.
                found.append(record)
        return found

    def record(self, letter: DeadLetter, timestamp_ms: int) -> Record:
        """Return the record of ``letter``."""
        self._say(letter)
        key = self._key_header + encode_string(letter.topic)
        return Record(self._target, OP, key, self._head + encode(letter), timestamp_ms)


class ChangeEncoder:
    """Turns changes of one version of a relation into records.

    ``key_encoder`` is None if the table has no key. ``former_key`` is for rows with a null in the key. If it is None,
    such a row is an error. If ``dead_letters`` is None, a change that cannot be written is an error. ``insert_op`` is
    "r" if the inserts are rows that were read.
    """

    def __init__(  # noqa: PLR0913 - half of the parameters are options, which are passed by name
        self,
        relation: Relation,
        target: Target,
        row_encoder: RowEncoder,
        key_encoder: KeyEncoder | None,
        *,
        former_key: FormerKey | None = None,
        tombstones: bool,
        truncate: bool,
        dead_letters: DeadLetters | None = None,
        insert_op: InsertOp = "c",
    ) -> None:
        self.relation = relation
        self.is_full = relation.replica_identity == "f"
        """Whether the table has REPLICA IDENTITY FULL, so that old rows are complete. If the table has another
        identity, an old row that the server marks as complete (``O``) comes from a partition of the table, and may have
        only the key columns."""
        self.target = target
        self.insert_op = insert_op
        self._identity = [index for index, column in enumerate(relation.columns) if column.is_key]
        self.row = row_encoder
        self.key = key_encoder
        self._former_key = former_key
        self.key_header = header(target.key_schema_id) if target.key_schema_id is not None else b""
        self.tombstones = tombstones
        self._truncate = truncate
        self.dead_letters = dead_letters
        self.on_incomplete: OnIncomplete | None = None
        """Called for each row that appears under a new key without all its values. The server does not send TOAST
        values that did not change."""
        head = header(target.value_schema_id)
        names = encode_bytes(relation.namespace.encode()) + encode_bytes(relation.name.encode())
        self.insert_head, self.update_head, self.delete_head, self._truncate_head = (
            head + op + names for op in (encode_string(insert_op), _UPDATE, _DELETE, _TRUNCATE)
        )
        self._encoders: Mapping[type, Callable[[Any, Stamp], list[Record]]] = {
            messages.Insert: self._encode_insert,
            messages.Update: self._encode_update,
            messages.Delete: self._encode_delete,
            messages.Truncate: self._encode_truncate,
        }

    def encode(self, message: RowMessage, stamp: Stamp) -> list[Record]:
        """Return the records of a change, in order.

        Raise PoisonError if the key of a record cannot be written, and dead letters are off.
        """
        seq = stamp.next_seq
        try:
            records = self._encoders[type(message)](message, stamp)
        except PoisonError as error:
            stamp.next_seq = seq + 1  # the change takes one seq, even if encoding failed half-way
            op = self.insert_op if isinstance(message, messages.Insert) else _OPS[type(message)]
            records = [self._dead_letter(op, stamp, seq, error)]
        dead_letters = self.dead_letters
        if dead_letters is not None and dead_letters.expected(stamp.transaction.commit_lsn):
            return dead_letters.replace(records, stamp.transaction.commit_lsn, seq)
        return records

    def _encode_insert(self, message: messages.Insert, stamp: Stamp) -> list[Record]:
        """Return one record with the new row."""
        value = self._with_after(self.insert_head + NO_BEFORE, message.new, stamp, END, [])
        # An insert can be incomplete if it was an update whose old row did not pass the row filter.
        self._tell_if_incomplete(message.new)
        return [Record(self.target, self.insert_op, self._encode_key(message.new), value, stamp.timestamp_ms)]

    def _encode_update(self, message: messages.Update, stamp: Stamp) -> list[Record]:
        """Return one record. If the key has changed, return two: ``d`` under the old key, and ``c`` under the new one.

        Without the ``d``, a compacted topic or a reader of one partition would keep the row under the old key forever.
        """
        key, whole = self._old_row(message)
        old = key if whole is None else whole
        if old is None:  # the server sends an old row only if the identity is full, or a column of the identity changed
            value = self._with_after(self.update_head + NO_BEFORE, message.new, stamp, END, [])
            return [Record(self.target, "u", self._encode_key(message.new), value, stamp.timestamp_ms)]
        new = self._filled(message.new, old, whole=whole is not None)
        self._tell_if_incomplete(new)  # even if the record's key is the same: `keys` may leave out the changed column
        raw: list[tuple[bytes, bytes]] = []
        before = self._before(key, whole, raw)
        old_key, new_key = self._try_key(old), self._try_key(new)
        if isinstance(old_key, PoisonError) and isinstance(new_key, PoisonError):
            raise new_key
        if old_key == new_key:
            value = self._with_after(self.update_head + before, new, stamp, END, raw)
            return [self._record("u", new_key, value, stamp)]
        gone = self._gone(before, raw, stamp, _KEY_CHANGE)
        records = self._delete_records(old_key, gone, stamp)
        value = self._with_after(self.insert_head + before, new, stamp, _KEY_CHANGE, raw)
        return [*records, self._record("c", new_key, value, stamp)]

    def _encode_delete(self, message: messages.Delete, stamp: Stamp) -> list[Record]:
        """Return one record with the old row, and a tombstone if the settings ask for tombstones."""
        raw: list[tuple[bytes, bytes]] = []
        key, whole = self._old_row(message)
        before = self._before(key, whole, raw)
        old = key if whole is None else whole
        assert old is not None, "the decoder sets message.key or message.old"
        return self._delete_records(self._try_key(old), self._gone(before, raw, stamp, END), stamp)

    def _old_row(self, message: messages.Update | messages.Delete) -> tuple[TupleData | None, TupleData | None]:
        """Return the old row as a pair: the row with only its key, and the complete row. At least one of them is None.

        Both are None if the server did not send an old row.
        """
        if self.is_full or message.old is None:
            return message.key, message.old
        return message.old, None

    def _encode_truncate(self, message: messages.Truncate, stamp: Stamp) -> list[Record]:
        """Return one record without a key, or none if truncates are skipped. The sink writes it to all partitions."""
        if not self._truncate:
            return []
        flags = [b"cascade"] * message.cascade + [b"restart_identity"] * message.restart_identity
        body = self._truncate_head + NO_BEFORE + NULL + END + END
        return [Record(self.target, "t", None, body + stamp.encode() + _array(flags), stamp.timestamp_ms)]

    def _tell_if_incomplete(self, new: TupleData) -> None:
        if self.on_incomplete is not None and UNCHANGED in new:
            self.on_incomplete(self.relation, new)

    def _delete_records(self, key: bytes | PoisonError | None, value: bytes, stamp: Stamp) -> list[Record]:
        records = [self._record("d", key, value, stamp)]
        if self.tombstones and isinstance(key, bytes):
            records.append(Record(self.target, None, key, None, stamp.timestamp_ms))
        return records

    def _record(self, op: str, key: bytes | PoisonError | None, value: bytes, stamp: Stamp) -> Record:
        """Return the record of the ``value`` that was encoded last, or a dead letter if ``key`` is an error."""
        if isinstance(key, PoisonError):
            return self._dead_letter(op, stamp, stamp.next_seq - 1, key)
        return Record(self.target, op, key, value, stamp.timestamp_ms)

    def _dead_letter(self, op: str, stamp: Stamp, seq: int, error: PoisonError) -> Record:
        """Return the dead letter of a change whose key Avro cannot hold. Raise PoisonError if dead letters are off."""
        origin = stamp.origin_of(self.relation, op, seq, self.key.columns if self.key is not None else ())
        if self.dead_letters is None:
            raise PoisonError(
                f"A change of {origin} cannot be written: {error}. Name other key columns with `keys` in "
                '[[tables.rules]], exclude the table, or set delivery.poison = "dead_letter".'
            ) from None
        letter = DeadLetter(origin, self.target.topic, Reason.KEY_NOT_REPRESENTABLE, str(error))
        return self.dead_letters.record(letter, stamp.timestamp_ms)

    def _gone(self, before: bytes, raw: list[tuple[bytes, bytes]], stamp: Stamp, flags: bytes) -> bytes:
        """Return the value of a ``d`` record, which has no ``after`` and no unchanged columns."""
        return self.delete_head + before + NULL + END + _map(raw) + stamp.encode() + flags

    def _with_after(
        self, head: bytes, new: TupleData, stamp: Stamp, flags: bytes, raw_before: list[tuple[bytes, bytes]]
    ) -> bytes:
        """Return a value with the row ``new``: all fields of the envelope, in the order of its schema.

        ``head`` has the fields up to ``before_image``. ``raw_before``: the values of the old row that Avro cannot hold.
        """
        unchanged: list[bytes] = []
        raw: list[tuple[bytes, bytes]] = []
        row = self.row.encode(new, unchanged, raw)
        # Nearly all rows have neither unchanged nor raw values, so the empty array and the empty map are one constant.
        marks = _array(unchanged) + _map(raw + raw_before) if unchanged or raw or raw_before else _NO_MARKS
        return b"".join((head, VALUE, row, marks, stamp.encode(), flags))

    def _before(self, key: TupleData | None, old: TupleData | None, raw: list[tuple[bytes, bytes]]) -> bytes:
        """Return ``before`` and ``before_image``. Values that Avro cannot hold are appended to ``raw``."""
        unchanged: list[bytes] = []
        found: list[tuple[bytes, bytes]] = []
        if old is not None:
            image = VALUE + self.row.encode(old, unchanged, found) + FULL_IMAGE
        else:
            assert key is not None, "the caller passes key or old"
            image = VALUE + self.row.encode_key_image(key, unchanged, found) + KEY_IMAGE
        if unchanged:
            raise ProtocolError(
                f"The old row of a change of {self.relation} lacks values (unchanged TOAST), but the server should "
                "have sent all of them. Please report it."
            )
        raw.extend((b"before." + name, text) for name, text in found)
        return image

    def _filled(self, new: TupleData, old: TupleData, *, whole: bool) -> TupleData:
        """Return ``new`` with unchanged values taken from ``old``, which has only the key unless it is ``whole``."""
        if UNCHANGED not in new:
            return new
        known = range(len(new)) if whole else self._identity
        filled = list(new)
        for position in known:
            if filled[position] is UNCHANGED:
                filled[position] = old[position]
        return filled

    def _encode_key(self, values: TupleData) -> bytes | None:
        if self.key is None:
            return None
        try:
            return self.key_header + self.key.encode(values)
        except NullKey:
            if self._former_key is None:
                raise
            return self._former_key.encode(values)

    def _try_key(self, values: TupleData) -> bytes | PoisonError | None:
        """Return the key. If it cannot be written and dead letters are on, return the error instead of raising it."""
        try:
            return self._encode_key(values)
        except PoisonError as error:
            if self.dead_letters is None:
                raise
            return error
