"""Percentiles. Pure."""

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile ``share`` of ``values``: the least value that so many per cent do not exceed.

    At least one value is needed.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]
