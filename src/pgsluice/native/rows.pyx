# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Runs of rows, from CopyData to records: the compiled twin of ``rows``, which says what is done here.

A row is parsed and written in one pass, without an object for any of its values. What is not the common form of a
value, a row or a message is left to the twin in Python, which then begins with the whole change anew: so there is one
place for every rule and every error, and here only what can be done at once. Nothing is read beyond the end of a
message: every length is compared with the bytes that are there before they are looked at.

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

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_alloc)(PyTypeObject*, Py_ssize_t)

    void PyTuple_SET_ITEM(object, Py_ssize_t, object)
    void PyObject_GC_UnTrack(void*)
    double PyOS_string_to_double(const char*, char**, void*)

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030E0000
    #define FORGET_HASH(record) (((PyTupleObject*)(record))->ob_hash = -1)
    #else
    #define FORGET_HASH(record) ((void)(record))
    #endif
    """
    void FORGET_HASH(void*)  # what a constructor does, where tuples remember theirs

cdef Py_ssize_t MESSAGE_AT = framing.MESSAGE_AT
cdef Py_ssize_t RECORD_BYTES = OVERHEAD_BYTES
cdef Py_ssize_t KEPT_BYTES = 1024 * 1024  # what a buffer may hold on to between two changes
cdef bytes NO_BEFORE = envelope.NO_BEFORE, KEY_IMAGE = envelope.KEY_IMAGE, FULL_IMAGE = envelope.FULL_IMAGE
cdef object UPDATE = "u", DELETE = "d"

cdef enum Outcome:
    DONE  # written
    ODD   # nothing is wrong, nor right: the twin in Python knows

cdef enum Kind:
    PYTHON  # by the writer of the column
    BOOLEAN
    INTEGER
    FLOAT4
    FLOAT4_AS_DOUBLE
    FLOAT8
    DECIMAL
    DATE
    TIME
    TIMESTAMP
    TIMESTAMPTZ
    STRING
    CHECKED_STRING
    UUID
    BYTEA
    SENT_BOOLEAN  # from here on: of values in binary format
    SENT_INT2
    SENT_INT4
    SENT_INT8
    SENT_OID
    SENT_FLOAT4
    SENT_FLOAT4_AS_DOUBLE
    SENT_FLOAT8
    SENT_DECIMAL
    SENT_NUMERIC
    SENT_DATE
    SENT_TIME
    SENT_TIMESTAMP
    SENT_BYTES
    SENT_CHECKED_STRING
    SENT_VERSION_1
    SENT_CHECKED_VERSION_1
    SENT_UUID

KINDS = {
    Opcode.BOOLEAN: BOOLEAN,
    Opcode.INTEGER: INTEGER,
    Opcode.FLOAT4: FLOAT4,
    Opcode.FLOAT4_AS_DOUBLE: FLOAT4_AS_DOUBLE,
    Opcode.FLOAT8: FLOAT8,
    Opcode.DECIMAL: DECIMAL,
    Opcode.DATE: DATE,
    Opcode.TIME: TIME,
    Opcode.TIMESTAMP: TIMESTAMP,
    Opcode.TIMESTAMPTZ: TIMESTAMPTZ,
    # In keys the infinities are numbers; they are none of the common forms.
    Opcode.KEY_DATE: DATE,
    Opcode.KEY_TIMESTAMP: TIMESTAMP,
    Opcode.KEY_TIMESTAMPTZ: TIMESTAMPTZ,
    Opcode.STRING: STRING,
    Opcode.CHECKED_STRING: CHECKED_STRING,
    Opcode.UUID: UUID,
    Opcode.BYTEA: BYTEA,
}

# By what is to be written and what it is read from, as the short cuts of ``avro.from_binary``.
SENT_KINDS = {
    (Opcode.BOOLEAN, numbers.boolean): SENT_BOOLEAN,
    (Opcode.INTEGER, numbers.int2): SENT_INT2,
    (Opcode.INTEGER, numbers.int4): SENT_INT4,
    (Opcode.INTEGER, numbers.int8): SENT_INT8,
    (Opcode.INTEGER, numbers.oid): SENT_OID,
    (Opcode.FLOAT4, numbers.float4): SENT_FLOAT4,
    (Opcode.FLOAT4_AS_DOUBLE, numbers.float4): SENT_FLOAT4_AS_DOUBLE,
    (Opcode.FLOAT8, numbers.float8): SENT_FLOAT8,
    (Opcode.DECIMAL, numbers.numeric): SENT_DECIMAL,
    (Opcode.STRING, numbers.numeric): SENT_NUMERIC,
    (Opcode.CHECKED_STRING, numbers.numeric): SENT_NUMERIC,
    (Opcode.DATE, temporal.date): SENT_DATE,
    (Opcode.KEY_DATE, temporal.date): SENT_DATE,
    (Opcode.TIME, temporal.time): SENT_TIME,
    (Opcode.TIMESTAMP, temporal.timestamp): SENT_TIMESTAMP,
    (Opcode.KEY_TIMESTAMP, temporal.timestamp): SENT_TIMESTAMP,
    (Opcode.TIMESTAMPTZ, temporal.timestamptz): SENT_TIMESTAMP,
    (Opcode.KEY_TIMESTAMPTZ, temporal.timestamptz): SENT_TIMESTAMP,
    (Opcode.STRING, strings.text): SENT_BYTES,
    (Opcode.STRING, base.version_1): SENT_VERSION_1,
    (Opcode.CHECKED_STRING, strings.text): SENT_CHECKED_STRING,
    (Opcode.CHECKED_STRING, base.version_1): SENT_CHECKED_VERSION_1,
    (Opcode.UUID, strings.uuid): SENT_UUID,
    (Opcode.BYTEA, strings.bytea): SENT_BYTES,
}

cdef int64_t EPOCH_US = POSTGRES_EPOCH_US
cdef int64_t SECOND_US = 1_000_000
cdef int64_t DAY_US = 86_400 * SECOND_US
cdef int64_t EPOCH_DAYS = EPOCH_US // DAY_US

cdef int64_t[19] POWERS  # of ten, all that 64 bits hold
cdef int _exponent
POWERS[0] = 1
for _exponent in range(1, 19):
    POWERS[_exponent] = POWERS[_exponent - 1] * 10

cdef int[13] DAYS_OF_MONTH
DAYS_OF_MONTH[:] = [0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]

cdef const char* HEX = b"0123456789abcdef"

cdef enum:
    NUMERIC_NEGATIVE = 0x4000
    NUMERIC_DSCALE_MAX = 0x3FFF
    NUMERIC_PLACES = 64  # what is common: digits before the point, and decimal ones after it

cdef uint32_t FLOAT4_MAGNITUDE = 0x7FFF_FFFF, FLOAT4_INFINITY = 0x7F80_0000
cdef uint64_t FLOAT8_MAGNITUDE = 0x7FFF_FFFF_FFFF_FFFF, FLOAT8_INFINITY = 0x7FF0_0000_0000_0000


include "buffer.pxi"
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


cdef int64_t take_stamp(stamp) except -1:
    """Write what all records of the transaction share, before the seq and behind it; the next seq.

    As ``Stamp.encode`` does.
    """
    transaction = stamp.transaction
    origin = transaction.origin
    HEAD.clear()
    HEAD.put_long(stamp.epoch)
    HEAD.put_long(transaction.commit_lsn)
    TAIL.clear()
    TAIL.put_long(transaction.xid)
    TAIL.put_long(transaction.commit_ts + EPOCH_US)
    if origin is None:
        TAIL.put_byte(0)
    else:
        TAIL.put_byte(2)
        TAIL.put_object(encode_bytes(origin.encode()))
    return stamp.next_seq


cdef struct Account:
    # Of what is pending.
    Py_ssize_t size
    Py_ssize_t events


cdef object new_record(target, op, key, value, timestamp_ms):
    """As ``Record(...)``, without the call."""
    cdef PyTypeObject* record_type = <PyTypeObject*>Record
    cdef object record = record_type.tp_alloc(record_type, 5)
    Py_INCREF(target)
    PyTuple_SET_ITEM(record, 0, target)
    Py_INCREF(op)
    PyTuple_SET_ITEM(record, 1, op)
    Py_INCREF(key)
    PyTuple_SET_ITEM(record, 2, key)
    Py_INCREF(value)
    PyTuple_SET_ITEM(record, 3, value)
    Py_INCREF(timestamp_ms)
    PyTuple_SET_ITEM(record, 4, timestamp_ms)
    FORGET_HASH(<void*>record)
    # Nothing in it refers to records: the collector, which looks at every new object, need not look at millions.
    PyObject_GC_UnTrack(<void*>record)
    return record


cdef void set_column(Column* column, kind, to_text):
    column.kind = KINDS.get(kind.opcode, PYTHON)
    column.sent = SENT_KINDS.get((kind.opcode, to_text), PYTHON)
    column.unit_us = 1
    if column.kind == INTEGER:
        column.lowest, column.highest = kind.parameters
        column.precision = len(str(column.highest))
    elif column.kind == DECIMAL:
        column.precision, column.scale = kind.parameters
    elif column.kind == TIME:
        column.highest = kind.parameters[0]
        if len(kind.parameters) > 1:
            column.unit_us = kind.parameters[1]
    elif column.kind in (DATE, TIMESTAMP, TIMESTAMPTZ):
        column.lowest, column.highest = kind.parameters[:2]
        if len(kind.parameters) > 2:
            column.unit_us = kind.parameters[2]


# One row is written at a time, and nothing waits in between: all tables share these.
cdef Buffer HEAD = Buffer(), TAIL = Buffer(), VALUE = Buffer(), KEY = Buffer(), OLD_KEY = Buffer()
cdef bint busy = False


cdef void free_large() noexcept:
    """Keep no memory that only a large row needs: the next row may be long in coming."""
    VALUE.clear()
    KEY.clear()
    OLD_KEY.clear()


cdef class Rows:
    """The changes of one version of a table; ``encoder`` None: of a table that is left out."""

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
        """Make of what was decided for the table what its rows are written by."""
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
        """Add what an Insert, Update, Delete or Truncate becomes; ProtocolError when it is none."""
        cdef int64_t seq
        cdef Account account
        global busy
        if self.encoder is None:
            return
        if not busy and not self._is_expected(stamp):
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

    cdef bint _is_expected(self, stamp) except -1:
        """Whether records of the transaction are to become dead letters: a matter of the twin."""
        dead_letters = self.encoder.dead_letters
        return dead_letters is not None and dead_letters.expected(stamp.transaction.commit_lsn)

    cdef int _encode(
        self, const uint8_t* data, Py_ssize_t end, bint is_streamed,
        int64_t* seq, timestamp_ms, list records, Account* account,
    ) except -1:
        """Append the records of one message; ODD: nothing was done."""
        cdef Message message
        message.data, message.end, message.at = data, end, 9 if is_streamed else 5
        VALUE.clear()
        KEY.clear()
        if end < 1:
            return ODD
        if data[0] == b"I":
            return self._insert(&message, seq, timestamp_ms, records, account)
        if data[0] == b"U":
            return self._update(&message, seq, timestamp_ms, records, account)
        if data[0] == b"D":
            return self._delete(&message, seq, timestamp_ms, records, account)
        return ODD

    cdef int _insert(self, Message* message, int64_t* seq, timestamp_ms, list records, Account* account) except -1:
        VALUE.put_object(self.insert_head)
        VALUE.put_object(NO_BEFORE)
        if self._after(message, seq) != DONE or self._key(KEY) != DONE or self.lacking_count:
            return ODD  # somebody may have to be told of a row that lacks values
        self._append(self.insert_op, seq, timestamp_ms, records, account)
        return DONE

    cdef int _update(self, Message* message, int64_t* seq, timestamp_ms, list records, Account* account) except -1:
        cdef bint has_old = message.at < message.end and message.data[message.at] == b"O"
        if has_old and not self.is_full:
            return ODD  # the old row is that of a partition, and may have nothing but a key
        VALUE.put_object(self.update_head)
        if has_old:
            VALUE.put_byte(2)
            if self._tuple(message, b"O", False) != DONE or self.lacking_count:
                return ODD
            VALUE.put_object(FULL_IMAGE)
            OLD_KEY.clear()
            if self._key(OLD_KEY) != DONE:
                return ODD
        else:
            VALUE.put_object(NO_BEFORE)
        if self._after(message, seq) != DONE or self._key(KEY) != DONE:
            return ODD
        if has_old and (
            self.lacking_count or KEY.size != OLD_KEY.size or memcmp(KEY.data, OLD_KEY.data, KEY.size) != 0
        ):
            return ODD  # the old row has what is missing; the change of a key is two records
        self._append(UPDATE, seq, timestamp_ms, records, account)
        return DONE

    cdef int _delete(self, Message* message, int64_t* seq, timestamp_ms, list records, Account* account) except -1:
        cdef bint is_whole = message.at < message.end and message.data[message.at] == b"O"
        if is_whole and not self.is_full:
            return ODD  # as for an update
        VALUE.put_object(self.delete_head)
        VALUE.put_byte(2)
        if self._tuple(message, b"O" if is_whole else b"K", not is_whole) != DONE or self.lacking_count:
            return ODD
        if message.at != message.end or self._key(KEY) != DONE:
            return ODD
        VALUE.put_object(FULL_IMAGE if is_whole else KEY_IMAGE)
        VALUE.put(b"\0\0\0", 3)  # after is null, nothing is unchanged, nothing is raw
        self._finish(seq)
        key = self._append(DELETE, seq, timestamp_ms, records, account)
        if self.tombstones and self.has_key:
            records.append(new_record(self.target, None, key, None, timestamp_ms))
            account.size += KEY.size
        return DONE

    cdef int _after(self, Message* message, int64_t* seq) except -1:
        """Write the fields from ``after`` to the end, of the last tuple of a message."""
        cdef int place
        VALUE.put_byte(2)
        if self._tuple(message, b"N", False) != DONE or message.at != message.end:
            return ODD
        if self.lacking_count:
            VALUE.put_long(self.lacking_count)
            for place in range(self.lacking_count):
                VALUE.put_object(<bytes>self.names[self.lacking[place]])
        VALUE.put(b"\0\0", 2)  # the end of unchanged, and no raw
        self._finish(seq)
        return DONE

    cdef int _finish(self, int64_t* seq) except -1:
        """Write the fields from ``epoch`` to the end; there are no flags."""
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
        """Write a row, and keep where its values stand; ``only_identity``: what is sent of others is filler."""
        cdef const uint8_t* data = message.data
        cdef Py_ssize_t at = message.at, end = message.end, size
        cdef int place
        cdef uint8_t sent
        self.lacking_count = 0
        if end - at < 3 or data[at] != kind or big_endian_2(data + at + 1) != <uint32_t>self.width:
            return ODD
        at += 3
        for place in range(self.width):
            if at >= end:
                return ODD
            sent = data[at]
            at += 1
            self.values[place].kind = sent
            if sent == b"t" or sent == b"b":
                if end - at < 4:
                    return ODD
                size = big_endian_4(data + at)
                at += 4
                if size < 0 or size > end - at:
                    return ODD
                self.values[place].text, self.values[place].size = data + at, size
                at += size
                if only_identity and not self.is_identity[place]:
                    VALUE.put_byte(0)
                    continue
                VALUE.put_byte(2)
                if sent == b"t":
                    if self._value(VALUE, &self.columns[place], self.writers, place, &self.values[place]) != DONE:
                        return ODD
                elif self._binary(
                    VALUE, &self.columns[place], self.binary_writers, place, &self.values[place]
                ) != DONE:
                    return ODD
            elif sent == b"n" or sent == b"u":
                VALUE.put_byte(0)
                if sent == b"u" and not (only_identity and not self.is_identity[place]):
                    self.lacking[self.lacking_count] = place
                    self.lacking_count += 1
            else:
                return ODD
        message.at = at
        return DONE

    cdef int _key(self, Buffer out) except -1:
        """Write the key of the row written last."""
        cdef int place
        cdef Value* value
        if not self.has_key:
            return DONE
        out.put_object(self.key_header)
        for place in range(self.key_width):
            value = &self.values[self.key_places[place]]
            if value.kind == b"t":
                if self._value(out, &self.key_columns[place], self.key_writers, place, value) != DONE:
                    return ODD
            elif value.kind != b"b" or self._binary(
                out, &self.key_columns[place], self.key_binary_writers, place, value
            ) != DONE:
                return ODD
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
    """Write what a writer in Python makes of a value; ODD when it makes nothing."""
    try:
        out.put_object(<bytes?>write(value))
    except Exception:
        return ODD  # the twin meets it again, and says what it means
    return DONE


def add_run(list frames, Py_ssize_t at, dict relations, dict ready, stamp, pending):
    """Add the rows that begin at ``frames[at]``, none of them streamed; where the run ended.

    It ends before what is no row of a table in ``ready`` whose version is that of ``relations``, and when ``pending``
    is full.
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
                is_expected = rows.encoder is not None and rows._is_expected(stamp)
            if rows.encoder is not None:
                outcome = ODD if is_expected else rows._encode(
                    data, size, False, &seq, timestamp_ms, records, &account
                )
                if outcome == ODD:
                    stamp.next_seq, pending.size, pending.events = seq, account.size, account.events
                    rows.pure.add(frame[MESSAGE_AT:], stamp, pending, is_streamed=False)
                    seq, account.size, account.events = stamp.next_seq, pending.size, pending.events
            at += 1
    finally:
        free_large()
        busy = False
    stamp.next_seq, pending.size, pending.events = seq, account.size, account.events
    return at
