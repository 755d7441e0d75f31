"""Percentiles. Pure."""

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile ``share``: the least of the ``values`` that this percentage of them does not exceed.

    At least one value is needed.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]
