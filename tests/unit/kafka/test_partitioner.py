"""The partition of a key. tests/integration compares it with Java's own partitioner."""

import pytest

from pgsluice.kafka.partitioner import murmur2, partition_for


@pytest.mark.parametrize(
    ("key", "signed"),
    [  # the test vectors in Kafka's UtilsTest
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_kafkas(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % 2**32


def test_the_partition_drops_the_sign() -> None:
    assert partition_for(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7
    assert partition_for(b"abc", 1) == 0
