"""Computes percentiles. No I/O."""

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value such that at least ``share`` percent of the ``values`` are less than or equal to it.

    There must be at least one value.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]
