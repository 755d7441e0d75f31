from collections.abc import Iterator

import pytest

from sandbox.demo.cuts import CutReader
from sandbox.demo.events import Cut, Event
from sandbox.demo.screen import Screen
from sandbox.demo.watch import Watch


class Cuts(CutReader):
    """A reader that has already read everything."""

    def __init__(self, *cuts: Cut) -> None:
        self._cuts = iter(cuts)

    def read(self, limit_s: float) -> Iterator[Cut]:  # noqa: ARG002 - nothing has to be awaited
        yield from self._cuts


def cut(number: int, *ids: int) -> Cut:
    common = {"op": "c", "epoch": 1, "lsn": number, "xid": number, "unchanged": [], "flags": []}
    events = [Event("t", {"id": one}, {**common, "seq": one, "after": {"id": one}}) for one in ids]
    record = {"cut": number, "transactions": 1, "events": len(ids), "end_lsn": number}
    return Cut(record, events)


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_shows_until_the_transaction_has_come(capsys: pytest.CaptureFixture[str]) -> None:
    watch = Watch(Screen(), Cuts(cut(1, 7), cut(2), cut(3, 8), cut(4, 9)))

    watch.until(3)

    assert shown(capsys) == [
        "t insert id=7 0/1 #7",
        "cut 1: 1 transaction, 1 event, up to 0/1",
        "t insert id=8 0/3 #8",
        "cut 3: 1 transaction, 1 event, up to 0/3",
    ]
    assert watch.tally.events == 2


def test_shows_until_tables_are_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    cuts = [cut(1, 7), cut(2, 8), cut(3, 9)]
    for one, state in zip(cuts, ("begin", "end", "end"), strict=True):
        one.record["snapshots"] = [{"id": f"{one.record['cut']}", "state": state}]
    watch = Watch(Screen(), Cuts(*cuts))

    watch.until_loaded(1, lines=6)

    assert shown(capsys)[-1] == "cut 2: 1 transaction, 1 event, up to 0/2"


@pytest.mark.parametrize(("events", "left_out"), [(4, 0), (5, 0), (6, 1), (100, 95)])
def test_many_lines_are_shortened_in_the_middle(events: int, left_out: int, capsys: pytest.CaptureFixture[str]) -> None:
    watch = Watch(Screen(), Cuts(cut(1, *range(events))))

    watch.until(1, lines=6)

    lines = shown(capsys)
    assert lines[0].startswith("t insert id=0 ")
    assert lines[-1].startswith("cut 1: ")
    assert (f"... {left_out:,} lines ..." in lines) == bool(left_out)
    assert len(lines) == min(events + 1, 7)
