# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Rows of COPY as XLogData: the compiled twin of ``copy.row_frame``, which documents the conversion.

A row is read once. Each value is written with its escapes resolved, and its length is written when its end is known. A
row that PostgreSQL cannot have written is left to the twin in Python, which raises the error.

https://www.postgresql.org/docs/current/sql-copy.html#SQL-COPY-FILE-FORMATS
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from pgsluice.pgoutput import copy as pure
from pgsluice.pgoutput import framing

cdef Py_ssize_t MESSAGE_AT = framing.MESSAGE_AT

cdef enum:
    HEAD_BYTES = 8  # "I", the OID, "N", the number of columns
    VALUE_BYTES = 5  # "t" and the length. NULL takes one byte, "n".
    COLUMNS_MAX = 0xFFFF

cdef uint8_t[256] ESCAPED  # the byte for each letter after a backslash, or 0 if PostgreSQL does not write this escape
memset(ESCAPED, 0, 256)
ESCAPED[ord("b")] = 8
ESCAPED[ord("f")] = 12
ESCAPED[ord("n")] = 10
ESCAPED[ord("r")] = 13
ESCAPED[ord("t")] = 9
ESCAPED[ord("v")] = 11
ESCAPED[ord("\\")] = 92


cdef inline void put_big_endian_4(uint8_t* to, uint32_t number) noexcept:
    to[0], to[1], to[2], to[3] = number >> 24, number >> 16 & 255, number >> 8 & 255, number & 255


cdef uint8_t* write_values(uint8_t* to, const uint8_t* line, Py_ssize_t size, int columns) noexcept:
    """Write the values of ``line``, and return the end of the written bytes.

    Return NULL if PostgreSQL cannot have written the line. ``to`` must have room for ``VALUE_BYTES`` for each column,
    and for the line.
    """
    cdef const uint8_t* at = line
    cdef const uint8_t* end = line + size - 1  # the newline
    cdef uint8_t* head
    cdef uint8_t escaped
    cdef int column
    for column in range(columns):
        if column:
            if at == end or at[0] != b"\t":
                return NULL
            at += 1
        if end - at >= 2 and at[0] == b"\\" and at[1] == b"N" and (at + 2 == end or at[2] == b"\t"):
            to[0] = b"n"
            to += 1
            at += 2
            continue
        head = to
        head[0] = b"t"
        to += VALUE_BYTES
        while at < end and at[0] != b"\t":
            if at[0] == b"\\":
                if at + 1 == end:
                    return NULL
                escaped = ESCAPED[at[1]]
                if escaped == 0:
                    return NULL
                to[0] = escaped
                at += 2
            else:
                to[0] = at[0]
                at += 1
            to += 1
        put_big_endian_4(head + 1, <uint32_t>(to - head - VALUE_BYTES))
    return to if at == end else NULL


def row_frame(bytes line, uint32_t oid, int columns):
    """Return the frame of one row of relation ``oid``. Raise ProtocolError if it does not have ``columns`` values."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(line)
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(line)
    cdef uint8_t* begin
    cdef uint8_t* end
    if size < 1 or data[size - 1] != b"\n" or not 0 < columns <= COLUMNS_MAX:
        return pure.row_frame(line, oid, columns)
    frame = PyBytes_FromStringAndSize(NULL, MESSAGE_AT + HEAD_BYTES + VALUE_BYTES * columns + size)
    begin = <uint8_t*>PyBytes_AS_STRING(frame)
    memset(begin, 0, MESSAGE_AT)
    begin[0] = b"w"
    end = begin + MESSAGE_AT
    end[0] = b"I"
    put_big_endian_4(end + 1, oid)
    end[5] = b"N"
    end[6], end[7] = columns >> 8, columns & 255
    end = write_values(end + HEAD_BYTES, data, size, columns)
    if end is NULL:
        return pure.row_frame(line, oid, columns)
    return frame[: end - begin]
