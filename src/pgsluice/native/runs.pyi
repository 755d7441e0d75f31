from collections.abc import Callable
from typing import Any

from pgsluice.cut import Cut
from pgsluice.record import Record

def produce_run(
    produce: Callable[..., Any],
    records: list[Record],
    at: int,
    partitions: Callable[[str], int],
    cut: Cut,
    *,
    room: int,
    largest: int,
) -> tuple[int, int]: ...
