"""Waiting rows, each with the version of its table at the time of its arrival."""

import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from pgsluice import waiting
from pgsluice.pgoutput.messages import Insert, LogicalMessage
from pgsluice.relation import BUILTIN_TYPES, Column, Relation, size_of
from pgsluice.transaction import Change, Emitted, Paused, Transaction
from pgsluice.waiting import NO_RELATION, Waiting, changes
from tests.support.ends import MemoryRows
from tests.support.pgoutput_encoder import encode

TRANSACTION = Transaction(700, 100, 5)
TABLE = Relation(7, "public", "t", "d", (Column("id", BUILTIN_TYPES[23], -1, is_key=True),))
ALTERED = replace(TABLE, columns=(*TABLE.columns, Column("more", BUILTIN_TYPES[25], -1, is_key=False)))
OTHER = replace(TABLE, oid=8, name="o")


def waiting_rows(*relations: Relation, xid: int = 700, is_streamed: bool = True) -> Waiting:
    """Return a transaction with one waiting row for each of these versions. All rows are of subtransaction ``xid``."""
    found = Waiting(700, MemoryRows(), is_streamed, lambda: found.bytes)
    append(found, relations, xid)
    return found


def append(found: Waiting, relations: Iterable[Relation], xid: int) -> None:
    for relation in relations:
        number = found.number(relation)
        found.rows.append(number, encode(Insert(xid if found.is_streamed else None, relation.oid, [b"1"])))


def relations_of(found: Waiting) -> list[Relation]:
    return [event.relation for event in changes(found, TRANSACTION) if isinstance(event, Change)]


class TestVersionsOfTables:
    def test_a_row_keeps_the_table_version_under_which_it_was_sent(self) -> None:
        rows = [TABLE, ALTERED, OTHER, ALTERED]
        assert relations_of(waiting_rows(*rows)) == rows

    def test_a_version_is_kept_once_for_any_number_of_rows(self) -> None:
        assert waiting_rows(TABLE, TABLE, OTHER, TABLE).relations == [TABLE, OTHER]

    def test_equal_versions_are_kept_once(self) -> None:
        """Keep equal versions once, because a table can be altered back and forth repeatedly."""
        rows = [version for _ in range(10) for version in (replace(TABLE), replace(ALTERED))]
        found = waiting_rows(*rows)
        assert found.relations == [TABLE, ALTERED]
        assert relations_of(found) == rows

    def test_versions_beyond_the_limit_wait_between_the_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(waiting, "VERSIONS_MAX", 2)
        versions = [replace(TABLE, name=f"t{number}") for number in range(4)]
        rows = [row for version in versions for row in (version, version, OTHER)]
        found = waiting_rows(*rows, versions[3])
        assert found.relations == [versions[0], OTHER]
        assert relations_of(found) == [*rows, versions[3]]

    def test_versions_beyond_the_memory_of_all_transactions_wait_between_the_rows(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(waiting, "VERSIONS_BYTES_MAX", size_of(TABLE))
        found = waiting_rows(TABLE, OTHER)
        assert (found.relations, found.bytes) == ([TABLE], size_of(TABLE))
        assert relations_of(found) == [TABLE, OTHER]
        assert found.last.keys() == {TABLE.oid}


class TestSubtransactions:
    def test_rows_of_a_rolled_back_subtransaction_are_left_out(self) -> None:
        found = waiting_rows(TABLE)
        append(found, [OTHER], 701)
        assert not found.aborted
        found.aborted.add(701)
        assert relations_of(found) == [TABLE]

    def test_any_number_of_rolled_back_subtransactions_takes_little_memory(self) -> None:
        found = waiting_rows()
        xids = (2**32 - 1, *range(701, 200_700, 2))
        tracemalloc.start()
        for xid in xids:
            found.aborted.add(xid)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert taken < 4 * len(xids)
        assert [xid in found.aborted for xid in (2**32 - 1, 701, 702, 200_699, 200_701)] == [
            True,
            True,
            False,
            True,
            False,
        ]

    def test_other_tasks_get_turns_while_many_rows_are_skipped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(waiting, "SKIPPED_AT_ONCE", 3)
        found = waiting_rows(*[TABLE] * 7, xid=701)
        append(found, [TABLE], 700)
        found.aborted.add(701)
        assert [type(event) for event in changes(found, TRANSACTION)] == [Paused, Paused, Change]


def test_a_message_comes_in_its_place() -> None:
    found = waiting_rows(TABLE, is_streamed=False)
    message = LogicalMessage(None, transactional=True, lsn=90, prefix="p", content=b"c")
    found.rows.append(NO_RELATION, encode(message))
    change, emitted = changes(found, TRANSACTION)
    assert isinstance(change, Change)
    assert not change.is_streamed
    assert emitted == Emitted(TRANSACTION, message)


class OnDisk(MemoryRows):
    """Rows that have to be loaded from disk before the first one can be read."""

    def __iter__(self) -> Iterator[tuple[int, bytes] | None]:
        yield None
        yield from super().__iter__()


def test_rows_that_have_to_be_loaded_are_awaited() -> None:
    found = Waiting(700, OnDisk(), is_streamed=True, versions_bytes=lambda: 0)
    append(found, [TABLE], 700)
    assert [type(event) for event in changes(found, TRANSACTION)] == [Paused, Change]
