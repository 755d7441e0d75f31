# --- values in text format: each function reads ``size`` bytes at ``text`` and writes Avro, or returns FALLBACK

cdef extern from "Python.h":
    double PyOS_string_to_double(const char*, char**, void*)

cdef int64_t EPOCH_US = POSTGRES_EPOCH_US
cdef int64_t SECOND_US = 1_000_000
cdef int64_t DAY_US = 86_400 * SECOND_US
cdef int64_t EPOCH_DAYS = EPOCH_US // DAY_US

cdef int64_t[19] POWERS  # the powers of ten that fit into 64 bits
cdef int _exponent
POWERS[0] = 1
for _exponent in range(1, 19):
    POWERS[_exponent] = POWERS[_exponent - 1] * 10

cdef int[13] DAYS_OF_MONTH
DAYS_OF_MONTH[:] = [0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


cdef inline bint is_digit(uint8_t byte) noexcept:
    return <uint8_t>(byte - 48) < 10


cdef inline int two_digits(const uint8_t* text) noexcept:
    """Return the value of two digits. If they are not digits, return a number so low that sums stay negative."""
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
            return FALLBACK
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
    return FALLBACK


cdef int write_boolean(Buffer out, const uint8_t* text, Py_ssize_t size) except -1:
    if size != 1 or (text[0] != b"t" and text[0] != b"f"):
        return FALLBACK
    out.put_byte(text[0] == b"t")
    return DONE


cdef int write_integer(Buffer out, Column* column, const uint8_t* text, Py_ssize_t size) except -1:
    cdef bint is_negative = size > 0 and text[0] == b"-"
    cdef Py_ssize_t at = is_negative
    cdef uint64_t magnitude = 0
    cdef int64_t number
    if size - at < 1 or size - at > 19 or size > column.precision + 1:
        return FALLBACK
    while at < size:
        if not is_digit(text[at]):
            return FALLBACK
        magnitude = magnitude * 10 + (text[at] - 48)
        at += 1
    if magnitude > <uint64_t>INT64_MAX:
        return FALLBACK
    number = -<int64_t>magnitude if is_negative else <int64_t>magnitude
    if number < column.lowest or number > column.highest:
        return FALLBACK
    out.put_long(number)
    return DONE


cdef int write_decimal(Buffer out, Column* column, const uint8_t* text, Py_ssize_t size) except -1:
    """Write digits, a point, and as many digits as the scale says. Nothing is rounded."""
    cdef bint is_negative = size > 0 and text[0] == b"-"
    cdef Py_ssize_t at = is_negative
    cdef Py_ssize_t point = size - column.scale - 1 if column.scale else size
    cdef int64_t number = 0
    if point <= at or size - at - (column.scale > 0) > min(18, column.precision + 2 - is_negative):
        return FALLBACK
    while at < size:
        if is_digit(text[at]):
            number = number * 10 + (text[at] - 48)
            if at == point:
                return FALLBACK
        elif at != point or text[at] != b".":
            return FALLBACK
        at += 1
    if column.precision <= 18 and number >= POWERS[column.precision]:
        return FALLBACK
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
        return FALLBACK
    for at in range(size):
        if not is_digit(text[at]) and memchr(b"+-.e", text[at], 4) is NULL:
            return FALLBACK
        terminated[at] = text[at]
    terminated[size] = 0
    number = PyOS_string_to_double(terminated, NULL, NULL)
    if PyErr_Occurred() is not NULL:
        PyErr_Clear()
        return FALLBACK
    if number - number != 0:
        return FALLBACK
    if kind == FLOAT8:
        memcpy(&bits, &number, 8)
        out.put_little_endian(bits, 8)
        return DONE
    single = <float>number
    if single - single != 0:
        return FALLBACK
    if <double>single != number:
        # The text was rounded twice, to a double and then to a single. This is wrong only if the double lies exactly in
        # the middle between two singles. Then the digits of the text decide, and the twin in Python compares them.
        other = 2 * number - <double>single
        single_other = <float>other
        if <double>single_other == other or single_other - single_other != 0:
            return FALLBACK
    if kind == FLOAT4:
        memcpy(&few_bits, &single, 4)
        out.put_little_endian(few_bits, 4)
    else:
        number = single
        memcpy(&bits, &number, 8)
        out.put_little_endian(bits, 8)
    return DONE


cdef int read_day(const uint8_t* text, int64_t* day) noexcept:
    """Read the ten bytes YYYY-MM-DD, of the years 1 to 9999, as days since 1970."""
    cdef int64_t year, cycle, year_of_cycle, shifted
    cdef int month, day_of_month
    if text[4] != b"-" or text[7] != b"-":
        return FALLBACK
    year = <int64_t>two_digits(text) * 100 + two_digits(text + 2)
    month, day_of_month = two_digits(text + 5), two_digits(text + 8)
    if year < 1 or month < 1 or month > 12 or day_of_month < 1 or day_of_month > DAYS_OF_MONTH[month]:
        return FALLBACK
    if month == 2 and day_of_month == 29 and (year % 4 != 0 or (year % 100 == 0 and year % 400 != 0)):
        return FALLBACK
    # Let years begin in March, so that the additional day of a leap year is the last day of its year.
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
    """Read HH:MM:SS[.ffffff], which has to be below 24:00:00."""
    cdef int hour, minute, second
    cdef int64_t fraction = 0
    cdef Py_ssize_t at
    if size < 8 or size == 9 or size > 15 or text[2] != b":" or text[5] != b":":
        return FALLBACK
    hour, minute, second = two_digits(text), two_digits(text + 3), two_digits(text + 6)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return FALLBACK
    if size > 8:
        if text[8] != b".":
            return FALLBACK
        for at in range(9, 15):
            fraction *= 10
            if at < size:
                if not is_digit(text[at]):
                    return FALLBACK
                fraction += text[at] - 48
    time_us[0] = (hour * 3600 + minute * 60 + second) * SECOND_US + fraction
    return DONE


cdef int write_in_units(Buffer out, Column* column, int64_t time_us) except -1:
    if column.unit_us != 1:
        if time_us % column.unit_us != 0:
            return FALLBACK
        time_us //= column.unit_us
    out.put_long(time_us)
    return DONE


cdef int write_date(Buffer out, const uint8_t* text, Py_ssize_t size) except -1:
    cdef int64_t day = 0
    if size != 10 or read_day(text, &day) != DONE:
        return FALLBACK
    out.put_long(day)
    return DONE


cdef int write_time(Buffer out, Column* column, const uint8_t* text, Py_ssize_t size) except -1:
    cdef int64_t time_us = 0
    if read_time(text, size, &time_us) != DONE:
        return FALLBACK
    return write_in_units(out, column, time_us)


cdef int write_timestamp(Buffer out, Column* column, const uint8_t* text, Py_ssize_t size) except -1:
    cdef int64_t day = 0, time_us = 0
    if size < 19 or text[10] != b" " or read_day(text, &day) != DONE:
        return FALLBACK
    if read_time(text + 11, size - 11, &time_us) != DONE:
        return FALLBACK
    return write_in_units(out, column, day * DAY_US + time_us)


cdef int write_uuid(Buffer out, const uint8_t* text, Py_ssize_t size) except -1:
    cdef Py_ssize_t at
    if size != 36:
        return FALLBACK
    for at in range(36):
        if at == 8 or at == 13 or at == 18 or at == 23:
            if text[at] != b"-":
                return FALLBACK
        elif not is_digit(text[at]) and not (b"a" <= text[at] <= b"f"):
            return FALLBACK
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
        return FALLBACK
    out.put_long((size - 2) // 2)
    out.reserve((size - 2) // 2)
    for at in range(2, size, 2):
        high, low = hex_digit(text[at]), hex_digit(text[at + 1])
        if high < 0 or low < 0:
            return FALLBACK
        out.data[out.size] = high << 4 | low
        out.size += 1
    return DONE


cdef int write_ascii(Buffer out, const uint8_t* text, Py_ssize_t size) except -1:
    cdef Py_ssize_t at
    for at in range(size):
        if text[at] > 127:
            return FALLBACK
    out.put_bytes(text, size)
    return DONE
