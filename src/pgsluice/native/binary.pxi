# --- values in binary format: functions like those of text.pxi, for the bytes that the type's send function wrote

cdef const char* HEX = b"0123456789abcdef"

cdef enum:
    NUMERIC_NEGATIVE = 0x4000
    NUMERIC_DSCALE_MAX = 0x3FFF
    NUMERIC_PLACES = 64  # the common form has at most 64 groups of four digits before the point, and 64 digits after it

cdef uint32_t FLOAT4_MAGNITUDE = 0x7FFF_FFFF, FLOAT4_INFINITY = 0x7F80_0000
cdef uint64_t FLOAT8_MAGNITUDE = 0x7FFF_FFFF_FFFF_FFFF, FLOAT8_INFINITY = 0x7FF0_0000_0000_0000


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
            return FALLBACK
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
    return FALLBACK


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
        return FALLBACK
    return DONE


cdef struct Numeric:
    # Base-10000 digits. The first digit is multiplied by 10000 ** weight.
    const uint8_t* digits
    int count
    int weight
    bint is_negative
    int dscale  # decimal digits after the point


cdef int read_numeric(Numeric* found, const uint8_t* data, Py_ssize_t size) noexcept:
    cdef uint32_t sign, dscale
    cdef int place
    if size < 8:
        return FALLBACK
    found.count, found.weight = big_endian_2(data), <int16_t>big_endian_2(data + 2)
    sign, dscale = big_endian_2(data + 4), big_endian_2(data + 6)
    if size != 8 + 2 * found.count or (sign != 0 and sign != NUMERIC_NEGATIVE) or dscale > NUMERIC_DSCALE_MAX:
        return FALLBACK
    found.digits, found.is_negative, found.dscale = data + 8, sign == NUMERIC_NEGATIVE, dscale
    for place in range(found.count):
        if numeric_digit(found, place) > 9999:
            return FALLBACK
    return DONE


cdef inline int numeric_digit(const Numeric* number, int place) noexcept:
    return big_endian_2(number.digits + 2 * place) if 0 <= place < number.count else 0


cdef int write_sent_decimal(Buffer out, Column* column, const uint8_t* data, Py_ssize_t size) except -1:
    """Write a numeric as a decimal with the column's scale. The number is never rounded.

    If the last group of four digits reaches beyond the scale, the digits beyond the scale have to be zero.
    """
    cdef Numeric numeric
    cdef int zeros, places, place
    cdef int64_t number = 0, digit
    if read_numeric(&numeric, data, size) != DONE:
        return FALLBACK
    zeros = (numeric.weight + 1 - numeric.count) * 4 + column.scale if numeric.count else 0
    if zeros <= -4 or zeros > 18:
        return FALLBACK
    for place in range(numeric.count):
        digit, places = numeric_digit(&numeric, place), 4
        if zeros < 0 and place == numeric.count - 1:
            places += zeros
            if digit % POWERS[-zeros] != 0:
                return FALLBACK
            digit //= POWERS[-zeros]
        if number >= POWERS[18 - places]:
            return FALLBACK
        number = number * POWERS[places] + digit
    if zeros > 0:
        if number >= POWERS[18 - zeros]:
            return FALLBACK
        number *= POWERS[zeros]
    if column.precision <= 18 and number >= POWERS[column.precision]:
        return FALLBACK
    places = column.scale - numeric.dscale
    if places > 0 and (places > 18 or number % POWERS[places] != 0):
        return FALLBACK  # the value has digits beyond its own scale, which its text does not show
    out.put_unscaled(-number if numeric.is_negative else number)
    return DONE


cdef int write_sent_numeric(Buffer out, const uint8_t* data, Py_ssize_t size) except -1:
    """Write a numeric as text."""
    cdef Numeric numeric
    cdef uint8_t[3 + 4 * NUMERIC_PLACES + NUMERIC_PLACES] text  # a sign, a zero, a point, and the digits on both sides
    cdef int length = 0, position, decimal_digit
    cdef bint has_begun = False
    if read_numeric(&numeric, data, size) != DONE:
        return FALLBACK
    if numeric.weight >= NUMERIC_PLACES or numeric.dscale > NUMERIC_PLACES:
        return FALLBACK
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
    """Return the decimal digit at ``position``. Each base-10000 digit has four decimal digits."""
    return numeric_digit(number, position >> 2) // <int>POWERS[3 - (position & 3)] % 10


cdef int write_sent_float8(Buffer out, const uint8_t* data, Py_ssize_t size) except -1:
    cdef uint64_t bits
    if size != 8:
        return FALLBACK
    bits = big_endian_8(data)
    if (bits & FLOAT8_MAGNITUDE) > FLOAT8_INFINITY:
        return FALLBACK  # NaN, which has many representations
    out.put_little_endian(bits, 8)
    return DONE


cdef int write_sent_float4(Buffer out, Kind kind, const uint8_t* data, Py_ssize_t size) except -1:
    cdef uint32_t few_bits
    cdef uint64_t bits = 0
    cdef float single = 0
    cdef double number
    if size != 4:
        return FALLBACK
    few_bits = big_endian_4(data)
    if (few_bits & FLOAT4_MAGNITUDE) > FLOAT4_INFINITY:
        return FALLBACK
    if kind == SENT_FLOAT4:
        out.put_little_endian(few_bits, 4)
    else:
        memcpy(&single, &few_bits, 4)
        number = single
        memcpy(&bits, &number, 8)
        out.put_little_endian(bits, 8)
    return DONE


cdef int write_sent_date(Buffer out, Column* column, const uint8_t* data, Py_ssize_t size) except -1:
    """Write a date, which is sent as days since 2000. The lowest and highest integer are the infinities."""
    cdef int64_t day
    if size != 4:
        return FALLBACK
    day = <int32_t>big_endian_4(data)
    if day == INT32_MIN or not column.lowest < day + EPOCH_DAYS < column.highest:
        return FALLBACK
    out.put_long(day + EPOCH_DAYS)
    return DONE


cdef int write_sent_time(Buffer out, Column* column, const uint8_t* data, Py_ssize_t size) except -1:
    cdef int64_t time_us
    if size != 8:
        return FALLBACK
    time_us = <int64_t>big_endian_8(data)
    if not 0 <= time_us < column.highest:
        return FALLBACK
    return write_in_units(out, column, time_us)


cdef int write_sent_timestamp(Buffer out, Column* column, const uint8_t* data, Py_ssize_t size) except -1:
    """Write a timestamp, which is sent as µs since 2000. The lowest and highest integer are the infinities."""
    cdef int64_t moment_us
    if size != 8:
        return FALLBACK
    moment_us = <int64_t>big_endian_8(data)
    if moment_us == INT64_MIN or moment_us > INT64_MAX - EPOCH_US:
        return FALLBACK
    moment_us += EPOCH_US
    if not column.lowest < moment_us < column.highest:
        return FALLBACK
    return write_in_units(out, column, moment_us)


cdef int write_sent_uuid(Buffer out, const uint8_t* data, Py_ssize_t size) except -1:
    cdef Py_ssize_t at
    cdef uint8_t* text
    if size != 16:
        return FALLBACK
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
        return FALLBACK
    if kind == SENT_CHECKED_VERSION_1:
        return write_ascii(out, data + 1, size - 1)
    out.put_bytes(data + 1, size - 1)
    return DONE
