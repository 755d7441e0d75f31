"""Chooses the partition of a key as Kafka's Java clients do, so that their topics and ours can be co-partitioned.

The partition is the murmur2 hash of the serialised key, with Kafka's seed and without the sign bit, modulo the number
of partitions. See ``BuiltInPartitioner`` and ``Utils.murmur2`` of org.apache.kafka (KIP-480).
"""

from struct import Struct

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return Kafka's murmur2 hash of ``data`` as an unsigned 32-bit number."""
    length = len(data)
    whole = length & ~3
    h = _SEED ^ length
    for (k,) in Struct("<I").iter_unpack(data[:whole]):
        mixed = k * _M & _MASK
        h = (h * _M & _MASK) ^ ((mixed ^ mixed >> 24) * _M & _MASK)
    if length != whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_for(key: bytes, partitions: int) -> int:
    """Return the partition of ``key`` in a topic with this many ``partitions``."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
