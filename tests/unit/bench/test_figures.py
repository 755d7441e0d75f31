import pytest

from bench.figures import percentile


@pytest.mark.parametrize(("share", "found"), [(0, 1), (50, 50), (95, 95), (99, 99), (99.1, 100), (100, 100)])
def test_percentiles_are_values_that_were_measured(share: float, found: int) -> None:
    assert percentile(list(reversed(range(1, 101))), share) == found


def test_all_percentiles_of_a_single_value_are_equal() -> None:
    assert {percentile([7.0], share) for share in (0, 50, 99, 100)} == {7.0}
