from sandbox.demo.events import Cut, Event
from sandbox.demo.tally import Tally


def cut(number: int, *lsns: int, events: int | None = None) -> Cut:
    found = [Event("t", {"id": 1}, {"op": "c", "epoch": 1, "lsn": lsn, "seq": 0}) for lsn in lsns]
    return Cut({"cut": number, "events": len(found) if events is None else events}, found)


def tally(*cuts: Cut) -> Tally:
    found = Tally()
    for one in cuts:
        found.add(one)
    return found


def test_a_complete_history_has_no_problems() -> None:
    found = tally(cut(4, 10), cut(5), cut(6, 20, 30))

    assert found.problems == []
    assert found.events == 3
    assert str(found) == "3 events (3 inserts) in 3 cuts"


def test_a_missing_cut_is_reported() -> None:
    assert tally(cut(4, 10), cut(6, 20)).problems == ["cut 6 follows cut 4"]


def test_a_torn_cut_is_reported() -> None:
    assert tally(cut(4, 10, events=2)).problems == ["cut 4 lists 2 events, but has 1"]


def test_events_that_come_twice_are_reported() -> None:
    assert tally(cut(4, 10, 20), cut(5, 20, 30)).problems == ["cut 5 repeats 1 event of earlier cuts"]
