"""Percentiles. Pure."""

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of the ``values`` such that at least ``share`` percent of them are not greater.

    There must be at least one value.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]
