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
from pgsluice.avro.sent import base, numbers, strings, temporal
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

# By what is to be written and what it is read from, as the short cuts of ``avro.sent.writers``.
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


# --- Avro's primitives, into memory that grows


cdef class Buffer:
    """Bytes that are written one behind the other."""

    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef int reserve(self, Py_ssize_t more) except -1:
        """Have room for ``more`` bytes."""
        cdef Py_ssize_t wanted = self.size + more
        cdef void* data
        if wanted <= self.capacity:
            return 0
        wanted = max(wanted, 2 * self.capacity, 512)
        data = PyMem_Realloc(self.data, wanted)
        if data is NULL:
            raise MemoryError
        self.data = <uint8_t*>data
        self.capacity = wanted
        return 0

    cdef void clear(self) noexcept:
        if self.capacity > KEPT_BYTES:
            PyMem_Free(self.data)
            self.data = NULL
            self.capacity = 0
        self.size = 0

    cdef int put(self, const void* data, Py_ssize_t size) except -1:
        self.reserve(size)
        memcpy(self.data + self.size, data, size)
        self.size += size
        return 0

    cdef int put_bytes(self, const uint8_t* data, Py_ssize_t size) except -1:
        """Avro bytes, or an Avro string."""
        self.put_long(size)
        return self.put(data, size)

    cdef int put_object(self, bytes data) except -1:
        return self.put(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef int put_byte(self, uint8_t byte) except -1:
        self.reserve(1)
        self.data[self.size] = byte
        self.size += 1
        return 0

    cdef int put_long(self, int64_t number) except -1:
        """An Avro int or long: a zigzag varint."""
        cdef uint64_t z = (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
        self.reserve(10)
        while z > 127:
            self.data[self.size] = (z & 127) | 128
            self.size += 1
            z >>= 7
        self.data[self.size] = z
        self.size += 1
        return 0

    cdef int put_little_endian(self, uint64_t bits, int size) except -1:
        cdef int place
        self.reserve(size)
        for place in range(size):
            self.data[self.size + place] = (bits >> (8 * place)) & 255
        self.size += size
        return 0

    cdef int put_unscaled(self, int64_t number) except -1:
        """A decimal's unscaled value: the shortest big-endian two's complement, as Avro bytes."""
        cdef uint64_t magnitude = <uint64_t>(number if number >= 0 else ~number)
        cdef int size = 1
        while magnitude > 127:
            magnitude >>= 8
            size += 1
        self.put_long(size)
        self.reserve(size)
        while size > 0:
            size -= 1
            self.data[self.size] = (number >> (8 * size)) & 255
            self.size += 1
        return 0

    cdef bytes taken(self):
        return PyBytes_FromStringAndSize(<char*>self.data, self.size)


# --- values: each reads ``size`` bytes at ``text``, and writes an Avro body, or finds them odd


cdef struct Column:
    Kind kind
    Kind sent  # of values in binary format
    int64_t lowest  # exclusive bounds, but those of integers
    int64_t highest
    int precision
    int scale
    int64_t unit_us


cdef inline bint is_digit(uint8_t byte) noexcept:
    return <uint8_t>(byte - 48) < 10


cdef inline int two_digits(const uint8_t* text) noexcept:
    """The number of two digits; negative, far enough to stay so in a sum with others, if they are none."""
    if is_digit(text[0]) and is_digit(text[1]):
        return (text[0] - 48) * 10 + (text[1] - 48)
    return -1_000_000


cdef int write_value(Buffer out, Column* column, const uint8_t* text, Py_ssize_t size) except -1:
    if column.kind == STRING:
        out.put_bytes(text, size)
        return DONE
    if column.kind == INTEGER:
        return write_integer(out, column, text, size)
    if column.kind == TIMESTAMPTZ:
        if size < 22 or memcmp(text + size - 3, b"+00", 3) != 0:
            return ODD
        return write_timestamp(out, column, text, size - 3)
    if column.kind == TIMESTAMP:
        return write_timestamp(out, column, text, size)
    if column.kind == DECIMAL:
        return write_decimal(out, column, text, size)
    if column.kind == BOOLEAN:
        return write_boolean(out, text, size)
    if column.kind == UUID:
        return write_uuid(out, text, size)
    if column.kind == DATE:
        return write_date(out, text, size)
    if column.kind == TIME:
        return write_time(out, column, text, size)
    if column.kind == FLOAT8 or column.kind == FLOAT4 or column.kind == FLOAT4_AS_DOUBLE:
        return write_float(out, column.kind, text, size)
    if column.kind == BYTEA:
        return write_bytea(out, text, size)
    if column.kind == CHECKED_STRING:
        return write_ascii(out, text, size)
    return ODD


cdef int write_boolean(Buffer out, const uint8_t* text, Py_ssize_t size) except -1:
    if size != 1 or (text[0] != b"t" and text[0] != b"f"):
        return ODD
    out.put_byte(text[0] == b"t")
    return DONE


cdef int write_integer(Buffer out, Column* column, const uint8_t* text, Py_ssize_t size) except -1:
    cdef bint is_negative = size > 0 and text[0] == b"-"
    cdef Py_ssize_t at = is_negative
    cdef uint64_t magnitude = 0
    cdef int64_t number
    if size - at < 1 or size - at > 19 or size > column.precision + 1:
        return ODD
    while at < size:
        if not is_digit(text[at]):
            return ODD
        magnitude = magnitude * 10 + (text[at] - 48)
        at += 1
    if magnitude > <uint64_t>INT64_MAX:
        return ODD
    number = -<int64_t>magnitude if is_negative else <int64_t>magnitude
    if number < column.lowest or number > column.highest:
        return ODD
    out.put_long(number)
    return DONE


cdef int write_decimal(Buffer out, Column* column, const uint8_t* text, Py_ssize_t size) except -1:
    """Digits, a point, and as many digits as the type has: never rounded."""
    cdef bint is_negative = size > 0 and text[0] == b"-"
    cdef Py_ssize_t at = is_negative
    cdef Py_ssize_t point = size - column.scale - 1 if column.scale else size
    cdef int64_t number = 0
    if point <= at or size - at - (column.scale > 0) > min(18, column.precision + 2 - is_negative):
        return ODD
    while at < size:
        if is_digit(text[at]):
            number = number * 10 + (text[at] - 48)
            if at == point:
                return ODD
        elif at != point or text[at] != b".":
            return ODD
        at += 1
    if column.precision <= 18 and number >= POWERS[column.precision]:
        return ODD
    out.put_unscaled(-number if is_negative else number)
    return DONE


cdef int write_float(Buffer out, Kind kind, const uint8_t* text, Py_ssize_t size) except -1:
    cdef char[64] terminated
    cdef Py_ssize_t at
    cdef double number, other
    cdef float single, single_other
    cdef uint64_t bits = 0
    cdef uint32_t few_bits = 0
    if size < 1 or size > 63:
        return ODD
    for at in range(size):
        if not is_digit(text[at]) and memchr(b"+-.e", text[at], 4) is NULL:
            return ODD
        terminated[at] = text[at]
    terminated[size] = 0
    number = PyOS_string_to_double(terminated, NULL, NULL)
    if PyErr_Occurred() is not NULL:
        PyErr_Clear()
        return ODD
    if number - number != 0:
        return ODD
    if kind == FLOAT8:
        memcpy(&bits, &number, 8)
        out.put_little_endian(bits, 8)
        return DONE
    single = <float>number
    if single - single != 0:
        return ODD
    if <double>single != number:
        # Rounded twice: wrong where the double is the very middle of two singles. There the text decides.
        other = 2 * number - <double>single
        single_other = <float>other
        if <double>single_other == other or single_other - single_other != 0:
            return ODD
    if kind == FLOAT4:
        memcpy(&few_bits, &single, 4)
        out.put_little_endian(few_bits, 4)
    else:
        number = single
        memcpy(&bits, &number, 8)
        out.put_little_endian(bits, 8)
    return DONE


cdef int read_day(const uint8_t* text, int64_t* day) noexcept:
    """Read the ten bytes YYYY-MM-DD as days since 1970, of the years 1 to 9999."""
    cdef int64_t year, cycle, year_of_cycle, shifted
    cdef int month, day_of_month
    if text[4] != b"-" or text[7] != b"-":
        return ODD
    year = <int64_t>two_digits(text) * 100 + two_digits(text + 2)
    month, day_of_month = two_digits(text + 5), two_digits(text + 8)
    if year < 1 or month < 1 or month > 12 or day_of_month < 1 or day_of_month > DAYS_OF_MONTH[month]:
        return ODD
    if month == 2 and day_of_month == 29 and (year % 4 != 0 or (year % 100 == 0 and year % 400 != 0)):
        return ODD
    # Years that begin in March, so that the day of a leap year is the last one.
    shifted = year - (month < 3)
    cycle, year_of_cycle = shifted // 400, shifted % 400
    day[0] = (
        cycle * 146_097
        + year_of_cycle * 365 + year_of_cycle // 4 - year_of_cycle // 100
        + (153 * (month + (9 if month < 3 else -3)) + 2) // 5 + day_of_month - 1
        - 719_468
    )
    return DONE


cdef int read_time(const uint8_t* text, Py_ssize_t size, int64_t* time_us) noexcept:
    """Read HH:MM:SS[.ffffff], below 24:00:00."""
    cdef int hour, minute, second
    cdef int64_t fraction = 0
    cdef Py_ssize_t at
    if size < 8 or size == 9 or size > 15 or text[2] != b":" or text[5] != b":":
        return ODD
    hour, minute, second = two_digits(text), two_digits(text + 3), two_digits(text + 6)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return ODD
    if size > 8:
        if text[8] != b".":
            return ODD
        for at in range(9, 15):
            fraction *= 10
            if at < size:
                if not is_digit(text[at]):
                    return ODD
                fraction += text[at] - 48
    time_us[0] = (hour * 3600 + minute * 60 + second) * SECOND_US + fraction
    return DONE


cdef int write_in_units(Buffer out, Column* column, int64_t time_us) except -1:
    if column.unit_us != 1:
        if time_us % column.unit_us != 0:
            return ODD
        time_us //= column.unit_us
    out.put_long(time_us)
    return DONE


cdef int write_date(Buffer out, const uint8_t* text, Py_ssize_t size) except -1:
    cdef int64_t day = 0
    if size != 10 or read_day(text, &day) != DONE:
        return ODD
    out.put_long(day)
    return DONE


cdef int write_time(Buffer out, Column* column, const uint8_t* text, Py_ssize_t size) except -1:
    cdef int64_t time_us = 0
    if read_time(text, size, &time_us) != DONE:
        return ODD
    return write_in_units(out, column, time_us)


cdef int write_timestamp(Buffer out, Column* column, const uint8_t* text, Py_ssize_t size) except -1:
    cdef int64_t day = 0, time_us = 0
    if size < 19 or text[10] != b" " or read_day(text, &day) != DONE:
        return ODD
    if read_time(text + 11, size - 11, &time_us) != DONE:
        return ODD
    return write_in_units(out, column, day * DAY_US + time_us)


cdef int write_uuid(Buffer out, const uint8_t* text, Py_ssize_t size) except -1:
    cdef Py_ssize_t at
    if size != 36:
        return ODD
    for at in range(36):
        if at == 8 or at == 13 or at == 18 or at == 23:
            if text[at] != b"-":
                return ODD
        elif not is_digit(text[at]) and not (b"a" <= text[at] <= b"f"):
            return ODD
    out.put_bytes(text, 36)
    return DONE


cdef inline int hex_digit(uint8_t byte) noexcept:
    if is_digit(byte):
        return byte - 48
    byte |= 32
    return byte - 87 if b"a" <= byte <= b"f" else -1


cdef int write_bytea(Buffer out, const uint8_t* text, Py_ssize_t size) except -1:
    cdef Py_ssize_t at, start
    cdef int high, low
    if size < 2 or size % 2 != 0 or text[0] != b"\\" or text[1] != b"x":
        return ODD
    out.put_long((size - 2) // 2)
    out.reserve((size - 2) // 2)
    for at in range(2, size, 2):
        high, low = hex_digit(text[at]), hex_digit(text[at + 1])
        if high < 0 or low < 0:
            return ODD
        out.data[out.size] = high << 4 | low
        out.size += 1
    return DONE


cdef int write_ascii(Buffer out, const uint8_t* text, Py_ssize_t size) except -1:
    cdef Py_ssize_t at
    for at in range(size):
        if text[at] > 127:
            return ODD
    out.put_bytes(text, size)
    return DONE


# --- values in binary format: the same of what the type's send function wrote


cdef inline uint32_t big_endian_2(const uint8_t* data) noexcept:
    return <uint32_t>data[0] << 8 | data[1]


cdef inline uint32_t big_endian_4(const uint8_t* data) noexcept:
    return <uint32_t>data[0] << 24 | <uint32_t>data[1] << 16 | <uint32_t>data[2] << 8 | data[3]


cdef inline uint64_t big_endian_8(const uint8_t* data) noexcept:
    return <uint64_t>big_endian_4(data) << 32 | big_endian_4(data + 4)


cdef int write_sent(Buffer out, Column* column, const uint8_t* data, Py_ssize_t size) except -1:
    if column.sent == SENT_BYTES:
        out.put_bytes(data, size)
        return DONE
    if SENT_INT2 <= column.sent <= SENT_OID:
        return write_sent_integer(out, column.sent, data, size)
    if column.sent == SENT_TIMESTAMP:
        return write_sent_timestamp(out, column, data, size)
    if column.sent == SENT_DECIMAL:
        return write_sent_decimal(out, column, data, size)
    if column.sent == SENT_NUMERIC:
        return write_sent_numeric(out, data, size)
    if column.sent == SENT_BOOLEAN:
        if size != 1 or data[0] > 1:
            return ODD
        out.put_byte(data[0])
        return DONE
    if column.sent == SENT_UUID:
        return write_sent_uuid(out, data, size)
    if column.sent == SENT_DATE:
        return write_sent_date(out, column, data, size)
    if column.sent == SENT_TIME:
        return write_sent_time(out, column, data, size)
    if column.sent == SENT_FLOAT8:
        return write_sent_float8(out, data, size)
    if column.sent == SENT_FLOAT4 or column.sent == SENT_FLOAT4_AS_DOUBLE:
        return write_sent_float4(out, column.sent, data, size)
    if column.sent == SENT_CHECKED_STRING:
        return write_ascii(out, data, size)
    if column.sent == SENT_VERSION_1 or column.sent == SENT_CHECKED_VERSION_1:
        return write_sent_version_1(out, column.sent, data, size)
    return ODD


cdef int write_sent_integer(Buffer out, Kind kind, const uint8_t* data, Py_ssize_t size) except -1:
    if kind == SENT_INT4 and size == 4:
        out.put_long(<int32_t>big_endian_4(data))
    elif kind == SENT_INT8 and size == 8:
        out.put_long(<int64_t>big_endian_8(data))
    elif kind == SENT_INT2 and size == 2:
        out.put_long(<int16_t>big_endian_2(data))
    elif kind == SENT_OID and size == 4:
        out.put_long(big_endian_4(data))
    else:
        return ODD
    return DONE


cdef struct Numeric:
    # Digits to the base 10000, the first of which counts 10000 ** weight.
    const uint8_t* digits
    int count
    int weight
    bint is_negative
    int dscale  # decimal digits after the point


cdef int read_numeric(Numeric* found, const uint8_t* data, Py_ssize_t size) noexcept:
    cdef uint32_t sign, dscale
    cdef int place
    if size < 8:
        return ODD
    found.count, found.weight = big_endian_2(data), <int16_t>big_endian_2(data + 2)
    sign, dscale = big_endian_2(data + 4), big_endian_2(data + 6)
    if size != 8 + 2 * found.count or (sign != 0 and sign != NUMERIC_NEGATIVE) or dscale > NUMERIC_DSCALE_MAX:
        return ODD
    found.digits, found.is_negative, found.dscale = data + 8, sign == NUMERIC_NEGATIVE, dscale
    for place in range(found.count):
        if numeric_digit(found, place) > 9999:
            return ODD
    return DONE


cdef inline int numeric_digit(const Numeric* number, int place) noexcept:
    return big_endian_2(number.digits + 2 * place) if 0 <= place < number.count else 0


cdef int write_sent_decimal(Buffer out, Column* column, const uint8_t* data, Py_ssize_t size) except -1:
    """Never rounded: of the last digit only what the scale leaves of it."""
    cdef Numeric numeric
    cdef int zeros, places, place
    cdef int64_t number = 0, digit
    if read_numeric(&numeric, data, size) != DONE:
        return ODD
    zeros = (numeric.weight + 1 - numeric.count) * 4 + column.scale if numeric.count else 0
    if zeros <= -4 or zeros > 18:
        return ODD
    for place in range(numeric.count):
        digit, places = numeric_digit(&numeric, place), 4
        if zeros < 0 and place == numeric.count - 1:
            places += zeros
            if digit % POWERS[-zeros] != 0:
                return ODD
            digit //= POWERS[-zeros]
        if number >= POWERS[18 - places]:
            return ODD
        number = number * POWERS[places] + digit
    if zeros > 0:
        if number >= POWERS[18 - zeros]:
            return ODD
        number *= POWERS[zeros]
    if column.precision <= 18 and number >= POWERS[column.precision]:
        return ODD
    places = column.scale - numeric.dscale
    if places > 0 and (places > 18 or number % POWERS[places] != 0):
        return ODD  # digits that the value's own scale hides
    out.put_unscaled(-number if numeric.is_negative else number)
    return DONE


cdef int write_sent_numeric(Buffer out, const uint8_t* data, Py_ssize_t size) except -1:
    """As text."""
    cdef Numeric numeric
    cdef uint8_t[3 + 4 * NUMERIC_PLACES + NUMERIC_PLACES] text  # a sign, a zero, a point; then what stands on its sides
    cdef int length = 0, position, decimal_digit
    cdef bint has_begun = False
    if read_numeric(&numeric, data, size) != DONE:
        return ODD
    if numeric.weight >= NUMERIC_PLACES or numeric.dscale > NUMERIC_PLACES:
        return ODD
    if numeric.is_negative:
        text[length] = b"-"
        length += 1
    for position in range(4 * (numeric.weight + 1)):
        decimal_digit = decimal_digit_of(&numeric, position)
        if decimal_digit or has_begun:
            has_begun = True
            text[length] = 48 + decimal_digit
            length += 1
    if not has_begun:
        text[length] = b"0"
        length += 1
    if numeric.dscale:
        text[length] = b"."
        length += 1
        for position in range(4 * (numeric.weight + 1), 4 * (numeric.weight + 1) + numeric.dscale):
            text[length] = 48 + decimal_digit_of(&numeric, position)
            length += 1
    out.put_bytes(text, length)
    return DONE


cdef inline int decimal_digit_of(const Numeric* number, int position) noexcept:
    """One of the four decimal digits of each digit."""
    return numeric_digit(number, position >> 2) // <int>POWERS[3 - (position & 3)] % 10


cdef int write_sent_float8(Buffer out, const uint8_t* data, Py_ssize_t size) except -1:
    cdef uint64_t bits
    if size != 8:
        return ODD
    bits = big_endian_8(data)
    if (bits & FLOAT8_MAGNITUDE) > FLOAT8_INFINITY:
        return ODD  # one of many NaN
    out.put_little_endian(bits, 8)
    return DONE


cdef int write_sent_float4(Buffer out, Kind kind, const uint8_t* data, Py_ssize_t size) except -1:
    cdef uint32_t few_bits
    cdef uint64_t bits = 0
    cdef float single = 0
    cdef double number
    if size != 4:
        return ODD
    few_bits = big_endian_4(data)
    if (few_bits & FLOAT4_MAGNITUDE) > FLOAT4_INFINITY:
        return ODD
    if kind == SENT_FLOAT4:
        out.put_little_endian(few_bits, 4)
    else:
        memcpy(&single, &few_bits, 4)
        number = single
        memcpy(&bits, &number, 8)
        out.put_little_endian(bits, 8)
    return DONE


cdef int write_sent_date(Buffer out, Column* column, const uint8_t* data, Py_ssize_t size) except -1:
    """Days since 2000; the ends of the integer are the infinities."""
    cdef int64_t day
    if size != 4:
        return ODD
    day = <int32_t>big_endian_4(data)
    if day == INT32_MIN or not column.lowest < day + EPOCH_DAYS < column.highest:
        return ODD
    out.put_long(day + EPOCH_DAYS)
    return DONE


cdef int write_sent_time(Buffer out, Column* column, const uint8_t* data, Py_ssize_t size) except -1:
    cdef int64_t time_us
    if size != 8:
        return ODD
    time_us = <int64_t>big_endian_8(data)
    if not 0 <= time_us < column.highest:
        return ODD
    return write_in_units(out, column, time_us)


cdef int write_sent_timestamp(Buffer out, Column* column, const uint8_t* data, Py_ssize_t size) except -1:
    """Microseconds since 2000; the ends of the integer are the infinities."""
    cdef int64_t moment_us
    if size != 8:
        return ODD
    moment_us = <int64_t>big_endian_8(data)
    if moment_us == INT64_MIN or moment_us > INT64_MAX - EPOCH_US:
        return ODD
    moment_us += EPOCH_US
    if not column.lowest < moment_us < column.highest:
        return ODD
    return write_in_units(out, column, moment_us)


cdef int write_sent_uuid(Buffer out, const uint8_t* data, Py_ssize_t size) except -1:
    cdef Py_ssize_t at
    cdef uint8_t* text
    if size != 16:
        return ODD
    out.put_long(36)
    out.reserve(36)
    text = out.data + out.size
    for at in range(16):
        if at == 4 or at == 6 or at == 8 or at == 10:
            text[0] = b"-"
            text += 1
        text[0], text[1] = HEX[data[at] >> 4], HEX[data[at] & 15]
        text += 2
    out.size += 36
    return DONE


cdef int write_sent_version_1(Buffer out, Kind kind, const uint8_t* data, Py_ssize_t size) except -1:
    if size < 1 or data[0] != 1:
        return ODD
    if kind == SENT_CHECKED_VERSION_1:
        return write_ascii(out, data + 1, size - 1)
    out.put_bytes(data + 1, size - 1)
    return DONE


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
        self.target, self.tombstones = encoder.target, encoder.tombstones
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
