# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Runs of rows, from CopyData to records: the compiled twin of ``rows``, which documents what a run does.

A row is parsed and written in one pass, without an object for any of its values. This module knows only the common form
of each value, row and message. If a change has another form, every function returns ``FALLBACK``, and the twin in
Python handles the whole change from its beginning. So every rule and every error message is in one place, the Python
twin. Nothing has to be undone for this, because records are appended only when the whole change has been written.

Nothing is read beyond the end of a message, because every length is compared with the number of remaining bytes before
it is used.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
https://avro.apache.org/docs/1.12.0/specification/#binary-encoding
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_Clear, PyErr_Occurred
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.ref cimport Py_INCREF
from libc.stdint cimport INT32_MIN, INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from pgsluice import rows as pure
from pgsluice import envelope
from pgsluice.avro.binary import POSTGRES_EPOCH_US, encode_bytes
from pgsluice.pgbinary import base, numbers, strings, temporal
from pgsluice.avro.types import Opcode
from pgsluice.pgoutput import framing
from pgsluice.pgoutput.messages import BinaryValue
from pgsluice.record import OVERHEAD_BYTES, Record
from pgsluice.transaction import Transaction, WholeTransactions

cdef Py_ssize_t MESSAGE_AT = framing.MESSAGE_AT
cdef Py_ssize_t RECORD_BYTES = OVERHEAD_BYTES
cdef Py_ssize_t KEPT_BYTES = 1024 * 1024  # memory that a buffer may keep between two changes
cdef bytes NO_BEFORE = envelope.NO_BEFORE, KEY_IMAGE = envelope.KEY_IMAGE, FULL_IMAGE = envelope.FULL_IMAGE
cdef object UPDATE = "u", DELETE = "d"

cdef enum Outcome:
    DONE  # the value, row or record was written
    FALLBACK  # it does not have the common form, so the twin in Python has to handle the whole change


include "buffer.pxi"
include "kinds.pxi"
include "records.pxi"
include "text.pxi"
include "binary.pxi"


# --- rows


cdef struct Value:
    uint8_t kind
    const uint8_t* text
    Py_ssize_t size


cdef struct Message:
    const uint8_t* data
    Py_ssize_t at
    Py_ssize_t end


# One row is written at a time, without waiting for anything, so all tables share these buffers.
cdef Buffer HEAD = Buffer(), TAIL = Buffer(), VALUE = Buffer(), KEY = Buffer(), OLD_KEY = Buffer()
cdef bint busy = False


cdef void free_large() noexcept:
    """Free memory that only a large row needed, because the next row may arrive much later."""
    VALUE.clear()
    KEY.clear()
    OLD_KEY.clear()


cdef class Rows:
    """Adds the changes of one version of a table. ``encoder`` is None if the table is not published."""

    cdef readonly object relation
    cdef readonly object encoder
    cdef uint32_t oid
    cdef object pure
    cdef object target
    cdef bint has_key
    cdef bint is_full
    cdef bint tombstones
    cdef int width
    cdef int key_width
    cdef Column* columns
    cdef Column* key_columns
    cdef int* key_places
    cdef bint* is_identity
    cdef Value* values
    cdef int* lacking
    cdef int lacking_count
    cdef list writers
    cdef list binary_writers
    cdef list key_writers
    cdef list key_binary_writers
    cdef list names
    cdef bytes key_header
    cdef object insert_op
    cdef bytes insert_head
    cdef bytes update_head
    cdef bytes delete_head

    def __init__(self, relation, encoder):
        self.relation, self.oid = relation, relation.oid
        self.encoder = encoder
        self.pure = pure.Rows(relation, encoder)
        if encoder is not None:
            self._compile(encoder)

    def __dealloc__(self):
        PyMem_Free(self.columns)
        PyMem_Free(self.key_columns)
        PyMem_Free(self.key_places)
        PyMem_Free(self.is_identity)
        PyMem_Free(self.values)
        PyMem_Free(self.lacking)

    cdef int _compile(self, encoder) except -1:
        """Translate the decisions in ``encoder`` into the tables of opcodes that decide how rows are written."""
        cdef int place
        row, key = encoder.row, encoder.key
        self.target, self.tombstones, self.is_full = encoder.target, encoder.tombstones, encoder.is_full
        self.width, self.has_key = len(row.types), key is not None
        self.columns = <Column*>allocated(self.width, sizeof(Column))
        self.is_identity = <bint*>allocated(self.width, sizeof(bint))
        self.values = <Value*>allocated(self.width, sizeof(Value))
        self.lacking = <int*>allocated(self.width, sizeof(int))
        self.writers, self.binary_writers = [kind.write for kind in row.types], list(row.binary_writers)
        self.names = [encode_bytes(name) for name in row.names]
        for place, kind in enumerate(row.types):
            set_column(&self.columns[place], kind, row.sent[place])
            self.is_identity[place] = row.is_key[place]
        self.key_width = len(key.types) if self.has_key else 0
        self.key_columns = <Column*>allocated(self.key_width, sizeof(Column))
        self.key_places = <int*>allocated(self.key_width, sizeof(int))
        self.key_writers = [kind.write for kind in key.types] if self.has_key else []
        self.key_binary_writers = list(key.binary_writers) if self.has_key else []
        for place in range(self.key_width):
            set_column(&self.key_columns[place], key.types[place], key.sent[place])
            self.key_places[place] = key.places[place]
        self.key_header = encoder.key_header
        self.insert_op = encoder.insert_op
        self.insert_head, self.update_head, self.delete_head = (
            encoder.insert_head, encoder.update_head, encoder.delete_head
        )
        return 0

    def add(self, bytes message, stamp, pending, *, bint is_streamed):
        """Add the records of an Insert, Update, Delete or Truncate. Raise ProtocolError if the message is invalid."""
        cdef int64_t seq
        cdef Account account
        global busy
        if self.encoder is None:
            return
        if not busy and not self._is_expected(stamp.transaction.commit_lsn):
            account.size, account.events = 0, 0
            busy = True
            try:
                seq = take_stamp(stamp)
                done = self._encode(
                    <const uint8_t*>PyBytes_AS_STRING(message), PyBytes_GET_SIZE(message), is_streamed,
                    &seq, stamp.timestamp_ms, pending.records, &account,
                ) == DONE
            finally:
                free_large()
                busy = False
            if done:
                stamp.next_seq = seq
                pending.size += account.size
                pending.events += account.events
                return
        self.pure.add(message, stamp, pending, is_streamed=is_streamed)

    cdef bint _is_expected(self, commit_lsn) except -1:
        """Return whether dead letters replace records of the transaction, which only the twin in Python can do."""
        dead_letters = self.encoder.dead_letters
        return dead_letters is not None and dead_letters.expected(commit_lsn)

    cdef int _encode(
        self, const uint8_t* data, Py_ssize_t end, bint is_streamed,
        int64_t* seq, timestamp_ms, list records, Account* account,
    ) except -1:
        """Append the records of one message. If the result is FALLBACK, nothing was appended."""
        cdef Message message
        message.data, message.end, message.at = data, end, 9 if is_streamed else 5
        VALUE.clear()
        KEY.clear()
        if end < 1:
            return FALLBACK
        if data[0] == b"I":
            return self._insert(&message, seq, timestamp_ms, records, account)
        if data[0] == b"U":
            return self._update(&message, seq, timestamp_ms, records, account)
        if data[0] == b"D":
            return self._delete(&message, seq, timestamp_ms, records, account)
        return FALLBACK

    cdef int _insert(self, Message* message, int64_t* seq, timestamp_ms, list records, Account* account) except -1:
        VALUE.put_object(self.insert_head)
        VALUE.put_object(NO_BEFORE)
        if self._after(message, seq) != DONE or self._key(KEY) != DONE or self.lacking_count:
            return FALLBACK  # the twin calls on_incomplete for a row that lacks values
        self._append(self.insert_op, seq, timestamp_ms, records, account)
        return DONE

    cdef int _update(self, Message* message, int64_t* seq, timestamp_ms, list records, Account* account) except -1:
        cdef bint has_old = message.at < message.end and message.data[message.at] == b"O"
        if has_old and not self.is_full:
            return FALLBACK  # the old row comes from a partition, and may have only the columns of its key
        VALUE.put_object(self.update_head)
        if has_old:
            VALUE.put_byte(2)
            if self._tuple(message, b"O", False) != DONE or self.lacking_count:
                return FALLBACK
            VALUE.put_object(FULL_IMAGE)
            OLD_KEY.clear()
            if self._key(OLD_KEY) != DONE:
                return FALLBACK
        else:
            VALUE.put_object(NO_BEFORE)
        if self._after(message, seq) != DONE or self._key(KEY) != DONE:
            return FALLBACK
        if has_old and (
            self.lacking_count or KEY.size != OLD_KEY.size or memcmp(KEY.data, OLD_KEY.data, KEY.size) != 0
        ):
            # The twin takes missing values from the old row, and writes two records if the key has changed.
            return FALLBACK
        self._append(UPDATE, seq, timestamp_ms, records, account)
        return DONE

    cdef int _delete(self, Message* message, int64_t* seq, timestamp_ms, list records, Account* account) except -1:
        cdef bint is_whole = message.at < message.end and message.data[message.at] == b"O"
        if is_whole and not self.is_full:
            return FALLBACK  # the old row comes from a partition, as in _update
        VALUE.put_object(self.delete_head)
        VALUE.put_byte(2)
        if self._tuple(message, b"O" if is_whole else b"K", not is_whole) != DONE or self.lacking_count:
            return FALLBACK
        if message.at != message.end or self._key(KEY) != DONE:
            return FALLBACK
        VALUE.put_object(FULL_IMAGE if is_whole else KEY_IMAGE)
        VALUE.put(b"\0\0\0", 3)  # after is null, nothing is unchanged, nothing is raw
        self._finish(seq)
        key = self._append(DELETE, seq, timestamp_ms, records, account)
        if self.tombstones and self.has_key:
            records.append(new_record(self.target, None, key, None, timestamp_ms))
            account.size += KEY.size
        return DONE

    cdef int _after(self, Message* message, int64_t* seq) except -1:
        """Write the fields from ``after`` to the end. ``after`` is the last tuple of the message."""
        cdef int place
        VALUE.put_byte(2)
        if self._tuple(message, b"N", False) != DONE or message.at != message.end:
            return FALLBACK
        if self.lacking_count:
            VALUE.put_long(self.lacking_count)
            for place in range(self.lacking_count):
                VALUE.put_object(<bytes>self.names[self.lacking[place]])
        VALUE.put(b"\0\0", 2)  # the end of unchanged, and no raw
        self._finish(seq)
        return DONE

    cdef int _finish(self, int64_t* seq) except -1:
        """Write the fields from ``epoch`` to the end, with an empty list of flags."""
        VALUE.put(HEAD.data, HEAD.size)
        VALUE.put_long(seq[0])
        VALUE.put(TAIL.data, TAIL.size)
        return VALUE.put_byte(0)

    cdef object _append(self, op, int64_t* seq, timestamp_ms, list records, Account* account):
        """Append the record that was written, and return its key."""
        cdef object key = KEY.taken() if self.has_key else None
        records.append(new_record(self.target, op, key, VALUE.taken(), timestamp_ms))
        account.size += VALUE.size + (KEY.size if self.has_key else 0)
        account.events += 1
        seq[0] += 1
        return key

    cdef int _tuple(self, Message* message, uint8_t kind, bint only_identity) except -1:
        """Write a row, and note the position of each value in ``values``.

        ``only_identity``: the row has only the columns of the replica identity. The server fills the others with nulls.
        """
        cdef const uint8_t* data = message.data
        cdef Py_ssize_t at = message.at, end = message.end, size
        cdef int place
        cdef uint8_t sent
        self.lacking_count = 0
        if end - at < 3 or data[at] != kind or big_endian_2(data + at + 1) != <uint32_t>self.width:
            return FALLBACK
        at += 3
        for place in range(self.width):
            if at >= end:
                return FALLBACK
            sent = data[at]
            at += 1
            self.values[place].kind = sent
            if sent == b"t" or sent == b"b":
                if end - at < 4:
                    return FALLBACK
                size = big_endian_4(data + at)
                at += 4
                if size < 0 or size > end - at:
                    return FALLBACK
                self.values[place].text, self.values[place].size = data + at, size
                at += size
                if only_identity and not self.is_identity[place]:
                    VALUE.put_byte(0)
                    continue
                VALUE.put_byte(2)
                if sent == b"t":
                    if self._value(VALUE, &self.columns[place], self.writers, place, &self.values[place]) != DONE:
                        return FALLBACK
                elif self._binary(
                    VALUE, &self.columns[place], self.binary_writers, place, &self.values[place]
                ) != DONE:
                    return FALLBACK
            elif sent == b"n" or sent == b"u":
                VALUE.put_byte(0)
                if sent == b"u" and not (only_identity and not self.is_identity[place]):
                    self.lacking[self.lacking_count] = place
                    self.lacking_count += 1
            else:
                return FALLBACK
        message.at = at
        return DONE

    cdef int _key(self, Buffer out) except -1:
        """Write the key of the row that was written last."""
        cdef int place
        cdef Value* value
        if not self.has_key:
            return DONE
        out.put_object(self.key_header)
        for place in range(self.key_width):
            value = &self.values[self.key_places[place]]
            if value.kind == b"t":
                if self._value(out, &self.key_columns[place], self.key_writers, place, value) != DONE:
                    return FALLBACK
            elif value.kind != b"b" or self._binary(
                out, &self.key_columns[place], self.key_binary_writers, place, value
            ) != DONE:
                return FALLBACK
        return DONE

    cdef int _value(self, Buffer out, Column* column, list writers, int place, Value* value) except -1:
        cdef Py_ssize_t before = out.size
        if write_value(out, column, value.text, value.size) == DONE:
            return DONE
        out.size = before
        return written(out, writers[place], PyBytes_FromStringAndSize(<const char*>value.text, value.size))

    cdef int _binary(self, Buffer out, Column* column, list writers, int place, Value* value) except -1:
        cdef Py_ssize_t before = out.size
        if write_sent(out, column, value.text, value.size) == DONE:
            return DONE
        out.size = before
        return written(out, writers[place], BinaryValue(PyBytes_FromStringAndSize(<const char*>value.text, value.size)))


cdef void* allocated(Py_ssize_t count, Py_ssize_t size) except NULL:
    cdef void* found = PyMem_Malloc(max(count, 1) * size)
    if found is NULL:
        raise MemoryError
    return found


cdef int written(Buffer out, write, value) except -1:
    """Write the result of a column's writer in Python. Return FALLBACK if the writer raises an error."""
    try:
        out.put_object(<bytes?>write(value))
    except Exception:
        return FALLBACK  # the twin raises the same error again, and handles it
    return DONE


def add_run(list frames, Py_ssize_t at, dict relations, dict ready, stamp, pending):
    """Add the rows from ``frames[at]`` on, and return the index at which the run ended. No row may be streamed.

    The run ends before a frame that is not a row, and when ``pending`` is full. It also ends before a row whose table
    is missing in ``ready``, or has another version there than in ``relations``.
    """
    cdef Py_ssize_t count = len(frames), limit = pending.limit
    cdef list records = pending.records
    cdef object timestamp_ms = stamp.timestamp_ms
    cdef int64_t seq
    cdef Account account
    cdef Rows rows = None
    cdef bint is_expected = False
    cdef bytes frame
    cdef const uint8_t* data
    cdef Py_ssize_t size
    cdef uint32_t oid
    cdef int outcome
    global busy
    account.size, account.events = pending.size, pending.events
    assert not busy, "one run at a time"
    busy = True
    try:
        seq = take_stamp(stamp)
        while at < count and account.size + RECORD_BYTES * len(records) < limit:
            if not PyBytes_CheckExact(frames[at]):
                break
            frame = <bytes>frames[at]
            data, size = <const uint8_t*>PyBytes_AS_STRING(frame) + MESSAGE_AT, PyBytes_GET_SIZE(frame) - MESSAGE_AT
            if size < 5 or (data[0] != b"I" and data[0] != b"U" and data[0] != b"D"):
                break
            oid = big_endian_4(data + 1)
            if rows is None or rows.oid != oid:
                found = ready.get(oid)
                if found is None or (<Rows?>found).relation is not relations.get(oid):
                    break
                rows = <Rows>found
                is_expected = rows.encoder is not None and rows._is_expected(stamp.transaction.commit_lsn)
            if rows.encoder is not None:
                outcome = FALLBACK if is_expected else rows._encode(
                    data, size, False, &seq, timestamp_ms, records, &account
                )
                if outcome == FALLBACK:
                    stamp.next_seq, pending.size, pending.events = seq, account.size, account.events
                    rows.pure.add(frame[MESSAGE_AT:], stamp, pending, is_streamed=False)
                    seq, account.size, account.events = stamp.next_seq, pending.size, pending.events
            at += 1
    finally:
        free_large()
        busy = False
    stamp.next_seq, pending.size, pending.events = seq, account.size, account.events
    return at


include "whole.pxi"
