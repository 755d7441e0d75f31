# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Runs of records into librdkafka's queue: the compiled twin of ``runs``, which documents what a run does.

Records are counted per target. The cut gets the counts when the run ends.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pgsluice.kafka import runs as pure

cdef object TRUNCATE = pure.TRUNCATE
cdef Py_ssize_t LONGEST = pure.LONGEST
cdef Py_ssize_t TURN = 2000  # the run releases the GIL after this many records, so that other threads can run


cdef uint32_t murmur2(const uint8_t* data, Py_ssize_t size) noexcept:
    """Kafka's hash of a key: org.apache.kafka.common.utils.Utils.murmur2."""
    cdef uint32_t m = 0x5BD1E995, k, h = 0x9747B28C ^ <uint32_t>size
    cdef Py_ssize_t at = 0
    while size - at >= 4:
        k = data[at] | <uint32_t>data[at + 1] << 8 | <uint32_t>data[at + 2] << 16 | <uint32_t>data[at + 3] << 24
        k *= m
        k ^= k >> 24
        k *= m
        h = h * m ^ k
        at += 4
    if at < size:
        k = data[at]
        if size - at > 1:
            k |= <uint32_t>data[at + 1] << 8
        if size - at > 2:
            k |= <uint32_t>data[at + 2] << 16
        h = (h ^ k) * m
    h = (h ^ h >> 13) * m
    return h ^ h >> 15


cdef class Tally:
    """Counts the records that a run has produced for one target."""

    cdef object target
    cdef object topic
    cdef uint32_t partitions
    cdef int64_t* produced
    cdef dict ops
    cdef object last_op
    cdef int64_t last_count
    cdef Py_ssize_t used_at

    def __cinit__(self, target, uint32_t partitions):
        assert partitions > 0, "every topic has partitions"
        self.target, self.topic, self.partitions = target, target.topic, partitions
        self.produced = <int64_t*>PyMem_Calloc(max(partitions, 1), sizeof(int64_t))
        if self.produced is NULL:
            raise MemoryError
        self.ops, self.last_op, self.last_count, self.used_at = {}, None, 0, -1

    def __dealloc__(self):
        PyMem_Free(self.produced)

    cdef int count(self, op, uint32_t partition, Py_ssize_t at) except -1:
        self.produced[partition] += 1
        if op is not self.last_op:
            self.settle()
            self.last_op = op
        self.last_count += 1
        self.used_at = at
        return 0

    cdef int settle(self) except -1:
        if self.last_op is not None and self.last_count:
            self.ops[self.last_op] = self.ops.get(self.last_op, 0) + self.last_count
        self.last_count = 0
        return 0

    cdef int give(self, cut) except -1:
        cdef uint32_t partition
        self.settle()
        produced = {
            partition: self.produced[partition] for partition in range(self.partitions) if self.produced[partition]
        }
        cut.count(self.target, self.ops, produced)
        return 0


def last_use(Tally tally):
    """Return the index of the last record that was counted in a tally.

    Tallies are given to the cut in this order, because the version of a table that was used last is the current one.
    """
    return tally.used_at


def produce_run(produce, list records, Py_ssize_t at, partitions, cut, *, Py_ssize_t room, Py_ssize_t largest):
    """Produce the records from ``records[at]`` on, and count them in ``cut``.

    Return the index at which the run ended, and the room that is left. ``partitions`` returns how many partitions a
    topic has. ``room``: the bytes of values that may still be queued. The run ends when no room is left, and after
    LONGEST records. It ends before a record for all partitions, before a value above ``largest`` bytes, and before a
    record that ``produce`` refuses.
    """
    cdef dict tallies = {}
    cdef Tally tally = None
    cdef Py_ssize_t size, size_of_key, end = min(len(records), at + LONGEST), turn = at + TURN
    cdef uint32_t partition
    cdef tuple record
    try:
        while at < end and room > 0:
            found = records[at]
            assert isinstance(found, tuple), "a Record is a tuple"
            record = <tuple>found
            target, op, key, value, timestamp_ms = record[0], record[1], record[2], record[3], record[4]
            size = 0 if value is None else PyBytes_GET_SIZE(<bytes?>value)
            if op == TRUNCATE or size > largest:
                break
            if tally is None or tally.target is not target:
                tally = tallies.get(<size_t><void*>target)
                if tally is None:
                    tally = tallies[<size_t><void*>target] = Tally(target, partitions(target.topic))
            partition = 0
            if key is not None:
                size_of_key = PyBytes_GET_SIZE(<bytes?>key)
                partition = (
                    murmur2(<const uint8_t*>PyBytes_AS_STRING(<bytes>key), size_of_key) & 0x7FFFFFFF
                ) % tally.partitions
            try:
                # Positional arguments are faster. The two None are the parameters ``callback`` and ``on_delivery``.
                produce(tally.topic, value, key, partition, None, None, timestamp_ms)
            except Exception:
                break  # the sink sends this record on its own, gets the same error again, and handles it
            room -= size
            tally.count(op, partition, at)
            at += 1
            if at == turn:
                turn += TURN
                with nogil:
                    pass
    finally:
        for tally in sorted(tallies.values(), key=last_use):
            if tally.used_at >= 0:
                tally.give(cut)
    return at, room
