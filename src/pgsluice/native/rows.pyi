from collections.abc import Mapping, Sequence

from pgsluice.envelope import ChangeEncoder, Stamp
from pgsluice.pgoutput.framing import Keepalive, XLogData
from pgsluice.record import Pending
from pgsluice.relation import Relation

class Rows:
    relation: Relation
    encoder: ChangeEncoder | None
    def __init__(self, relation: Relation, encoder: ChangeEncoder | None) -> None: ...
    def add(self, message: bytes, stamp: Stamp, pending: Pending, *, is_streamed: bool) -> None: ...

def add_run(
    frames: Sequence[XLogData | Keepalive],
    at: int,
    relations: Mapping[int, Relation],
    ready: Mapping[int, Rows],
    stamp: Stamp,
    pending: Pending,
) -> int: ...
