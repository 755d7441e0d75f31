import platform

import pytest

from bench.machine import memory_gib, processor


def test_processor_is_named_once() -> None:
    assert processor("processor : 0\nmodel name\t: Fast 9000 @ 3 GHz\n\nprocessor : 1\nmodel name\t: Fast 9000\n") == (
        "Fast 9000 @ 3 GHz"
    )


def test_a_processor_without_a_name_is_its_architecture() -> None:
    assert processor("processor : 0\n") == platform.machine()


def test_the_size_of_the_memory_is_read() -> None:
    assert memory_gib("MemTotal:        8388608 kB\nMemFree: 1 kB\n") == pytest.approx(8)
