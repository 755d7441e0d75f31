import pytest

from bench.latency import first_seen


def test_the_latency_ends_when_a_row_is_first_seen() -> None:
    assert first_seen("at_least_once", [1, 2, 1], [0.1, 0.2, 0.3]) == {1: 0.1, 2: 0.2}


def test_repeated_rows_are_an_error_in_exactly_once_mode() -> None:
    assert first_seen("exactly_once", [1, 2], [0.1, 0.2]) == {1: 0.1, 2: 0.2}
    with pytest.raises(RuntimeError, match="1 rows were seen more than once, among them 1"):
        first_seen("exactly_once", [1, 2, 1], [0.1, 0.2, 0.3])
