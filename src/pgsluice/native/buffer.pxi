# --- Avro's primitive types, written into memory that grows


cdef class Buffer:
    """A growing sequence of bytes."""

    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef int reserve(self, Py_ssize_t more) except -1:
        """Make room for ``more`` bytes."""
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
        """Append Avro bytes, or an Avro string."""
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
        """Append an Avro int or long, which is a zigzag varint."""
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
        """Append the unscaled value of a decimal: the shortest big-endian two's complement, as Avro bytes."""
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
