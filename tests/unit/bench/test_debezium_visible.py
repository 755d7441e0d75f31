import pytest

from bench.debezium.visible import Sample, first

OFFSETS = {("orders", 0): [0, 1, 3], ("orders", 1): [5]}
"""The offsets of visible records. Offset 2 of partition 0 is a marker. Offsets 0 to 4 of partition 1 were aborted."""


def sample(at: float, *ends: int) -> Sample:
    return Sample(at, {("orders", number): end for number, end in enumerate(ends)}, {})


@pytest.mark.parametrize(("ends", "count"), [((), 0), ((2,), 2), ((3,), 2), ((3, 5), 2), ((4, 5), 3), ((4, 6), 4)])
def test_records_before_the_end_are_visible(ends: tuple[int, ...], count: int) -> None:
    assert sample(0.0, *ends).count(OFFSETS) == count


def test_the_first_sample_with_enough_records_is_found() -> None:
    samples = [sample(0.0), sample(0.1, 2, 0), sample(0.2, 2, 6), sample(0.3, 4, 6), sample(0.4, 5, 7)]
    assert first(samples, OFFSETS, 2).at == 0.1
    assert first(samples, OFFSETS, 4).at == 0.3
