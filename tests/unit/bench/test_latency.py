import pytest

from bench.latency import first_seen


def test_a_row_counts_when_it_is_seen_first() -> None:
    assert first_seen("at_least_once", [1, 2, 1], [0.1, 0.2, 0.3]) == {1: 0.1, 2: 0.2}


def test_exactly_once_means_once() -> None:
    assert first_seen("exactly_once", [1, 2], [0.1, 0.2]) == {1: 0.1, 2: 0.2}
    with pytest.raises(RuntimeError, match="1 rows were seen more than once, among them 1"):
        first_seen("exactly_once", [1, 2, 1], [0.1, 0.2, 0.3])
