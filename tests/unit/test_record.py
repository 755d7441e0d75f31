"""The pending records of the transaction in progress, and their limit."""

from pgsluice.record import OVERHEAD_BYTES, Pending, Record, Target

TARGET = Target("shop.public.orders", 11, 12)


def test_the_size_of_pending_is_that_of_keys_and_values() -> None:
    pending = Pending(1_000_000)
    pending.add([Record(TARGET, "c", b"12", b"345"), Record(TARGET, None, None, None)])
    assert (pending.size, pending.held) == (5, 5 + 2 * OVERHEAD_BYTES)


def test_a_tombstone_is_no_event() -> None:
    pending = Pending(1_000_000)
    pending.add([Record(TARGET, "d", b"1", b"2"), Record(TARGET, None, b"1", None)])
    assert pending.events == 1


def test_pending_is_full_at_its_limit() -> None:
    pending = Pending(2 * OVERHEAD_BYTES + 5)
    pending.add([Record(TARGET, "c", b"1", b"2")])
    assert not pending.full
    pending.add([Record(TARGET, "c", b"1", b"22")])
    assert pending.full


def test_clearing_does_not_change_a_list_that_was_handed_over() -> None:
    pending = Pending(1_000_000)
    records = pending.records
    pending.add([Record(TARGET, "c", b"1", b"2")])
    pending.clear()
    assert len(records) == 1
    assert (pending.records, pending.size, pending.events) == ([], 0, 0)
