"""Tests that our partitioner and that of Kafka's Java client choose the same partition for each key.

So topics that pgsluice writes and topics that Java programs write are co-partitioned.
"""

import random
from pathlib import Path

from pgsluice.kafka.partitioner import murmur2, partition_for
from sandbox.artifacts import fetch
from sandbox.java import run_program

PARTITION_COUNTS = (1, 2, 3, 7, 12, 100, 1000)

PROGRAM = """
import java.util.HexFormat;
import java.util.Scanner;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

public class Partitions {
    public static void main(String[] counts) {
        for (Scanner lines = new Scanner(System.in); lines.hasNextLine(); ) {
            byte[] key = HexFormat.of().parseHex(lines.nextLine());
            StringBuilder answer = new StringBuilder().append(Integer.toUnsignedString(Utils.murmur2(key)));
            for (String count : counts)
                answer.append(' ').append(BuiltInPartitioner.partitionForKey(key, Integer.parseInt(count)));
            System.out.println(answer);
        }
    }
}
"""


def keys() -> list[bytes]:
    """Return keys of all lengths up to 64, several long keys, and keys that the daemon writes."""
    generator = random.Random(20260101)
    lengths = [*range(65), *range(65), *range(65), *(generator.randrange(65, 2000) for _ in range(300))]
    framed = [b"\x00" + generator.randbytes(4) + bytes([2 * n % 128]) for n in range(200)]
    return [*map(generator.randbytes, lengths), *framed, b"\xff" * 64, bytes(64)]


def test_hash_and_partition_equal_those_of_kafkas_client(tmp_path: Path) -> None:
    source = tmp_path / "Partitions.java"
    source.write_text(PROGRAM)
    stdin = "".join(f"{key.hex()}\n" for key in keys())
    printed = run_program(source, fetch("kafka"), [str(count) for count in PARTITION_COUNTS], stdin)
    java = [[int(number) for number in line.split()] for line in printed.splitlines()]
    assert java == [[murmur2(key), *(partition_for(key, count) for count in PARTITION_COUNTS)] for key in keys()]
