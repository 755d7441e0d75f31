"""The transactions that a snapshot sees, the position where the stream passes the snapshot, and how a table is read."""

from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pgsluice.relation import CATALOG, Column, PgType, Relation
from pgsluice.snapshot import Chunk, Shape, Snapshot, reached_at

EPOCH = 2**32
HALF = 2**31
XMAX, DISTANCE, AGE = st.integers(0, 2**63), st.integers(-HALF, HALF - 1), st.integers(0, 1000)
KIB, MIB = 1024, 1024**2
PAGE = 8 * KIB


class TestTheTextOfASnapshot:
    """The text that pg_current_snapshot() returns."""

    @pytest.mark.parametrize(
        ("text", "snapshot"),
        [
            ("10:20:10,14,15", Snapshot(10, 20, frozenset({10, 14, 15}))),
            ("10:20:14", Snapshot(10, 20, frozenset({14}))),
            ("10:10:", Snapshot(10, 10, frozenset())),
            ("18446744073709551614:18446744073709551615:", Snapshot(2**64 - 2, 2**64 - 1, frozenset())),
        ],
    )
    def test_the_text_of_a_snapshot_is_parsed(self, text: str, snapshot: Snapshot) -> None:
        assert Snapshot.parse(text) == snapshot

    @pytest.mark.parametrize(
        "text",
        [
            *("", "10", "10:20", ":20:", "10::", "10:20:,", "10:20:14,", "10:20:,14", "10:20:14:", "a:b:", "-1:20:"),
            *("10:20:14\n", " 10:20:", "10:20:14, 15", "\u0661:\u0662:", "1" * 21 + ":20:"),
        ],
    )
    def test_other_texts_are_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"^not a snapshot: .*expected xmin:xmax:xip_list"):
            Snapshot.parse(text)


class TestWhatIsVisible:
    def test_everything_below_xmin_and_nothing_from_xmax_on_is_visible(self) -> None:
        snapshot = Snapshot(100, 110, frozenset())
        assert [snapshot.is_visible(xid) for xid in (3, 99, 110, 111, HALF)] == [True, True, False, False, False]

    def test_between_xmin_and_xmax_every_id_that_was_not_running_is_visible(self) -> None:
        snapshot = Snapshot(100, 110, frozenset({100, 104}))
        found = [xid for xid in (99, 100, 103, 104, 105, 109) if snapshot.is_visible(xid)]
        assert found == [99, 103, 105, 109]

    def test_an_id_of_the_stream_is_one_of_the_present_epoch(self) -> None:
        snapshot = Snapshot(5 * EPOCH + 1000, 5 * EPOCH + 1010, frozenset({5 * EPOCH + 1005}))
        assert [snapshot.is_visible(xid) for xid in (999, 1004, 1005, 1009, 1010)] == [True, True, False, True, False]

    def test_a_high_id_is_of_the_former_epoch_when_a_new_epoch_has_just_begun(self) -> None:
        snapshot = Snapshot(5 * EPOCH - 3, 5 * EPOCH + 4, frozenset({5 * EPOCH - 3, 5 * EPOCH + 3}))
        assert [snapshot.is_visible(xid) for xid in (EPOCH - 4, EPOCH - 3, EPOCH - 2)] == [True, False, True]
        assert [snapshot.is_visible(xid) for xid in (3, 4, 5)] == [False, False, False]

    def test_a_low_id_is_of_the_next_epoch_when_this_epoch_is_about_to_end(self) -> None:
        snapshot = Snapshot(5 * EPOCH - 10, 5 * EPOCH - 5, frozenset())
        assert [snapshot.is_visible(xid) for xid in (EPOCH - 6, EPOCH - 5, 3, 100)] == [True, False, False, False]

    def test_a_server_in_its_first_epoch_may_have_been_reset_to_a_high_id(self) -> None:
        snapshot = Snapshot(EPOCH - 10, EPOCH - 5, frozenset({EPOCH - 10}))
        found = [xid for xid in (EPOCH - 11, EPOCH - 10, EPOCH - 9, EPOCH - 5, 3) if snapshot.is_visible(xid)]
        assert found == [EPOCH - 11, EPOCH - 9]

    @given(xmax=XMAX, distance=DISTANCE, age=AGE, runs=st.booleans())
    @example(xmax=EPOCH, distance=-HALF, age=0, runs=False)
    @example(xmax=EPOCH, distance=HALF - 1, age=0, runs=False)
    def test_ids_within_half_an_epoch_are_told_apart(self, xmax: int, distance: int, age: int, *, runs: bool) -> None:
        """Tell the ids of two xid epochs apart.

        In PostgreSQL, two ids are never further apart than half an xid epoch.
        """
        full = xmax + distance
        assume(full >= 0)
        snapshot = Snapshot(xmax - age, xmax, frozenset({full} if runs and distance < 0 else ()))
        is_between = -age <= distance < 0
        assert snapshot.is_visible(full % EPOCH) == (distance < -age or (is_between and not runs))


class TestWhereTheStreamHasPassedASnapshot:
    def test_the_stream_has_passed_a_snapshot_where_the_next_record_would_begin(self) -> None:
        assert reached_at(0x16B374D8, 16 * MIB, PAGE) == 0x16B374D8

    @pytest.mark.parametrize("segment_bytes", [1 * MIB, 16 * MIB])
    @pytest.mark.parametrize("page_bytes", [1024, PAGE, 65536])
    def test_on_a_new_page_the_position_is_before_the_page_header(self, segment_bytes: int, page_bytes: int) -> None:
        page = 3 * 16 * MIB + page_bytes
        assert reached_at(page + 24, segment_bytes, page_bytes) == page
        assert reached_at(page + 40, segment_bytes, page_bytes) == page + 40
        assert reached_at(page, segment_bytes, page_bytes) == page

    @pytest.mark.parametrize("segment_bytes", [1 * MIB, 16 * MIB])
    def test_the_first_page_of_a_segment_has_a_longer_header(self, segment_bytes: int) -> None:
        assert reached_at(7 * segment_bytes + 40, segment_bytes, PAGE) == 7 * segment_bytes

    def test_the_servers_segment_size_decides_which_pages_begin_a_segment(self) -> None:
        assert reached_at(3 * MIB + 40, 1 * MIB, PAGE) == 3 * MIB
        assert reached_at(3 * MIB + 40, 16 * MIB, PAGE) == 3 * MIB + 40

    def test_the_servers_page_size_decides_where_pages_begin(self) -> None:
        assert reached_at(3 * MIB + 8192 + 24, 16 * MIB, 65536) == 3 * MIB + 8192 + 24


class TestATableAsItIsRead:
    RELATION = Relation(
        7, "public", "t", "d", tuple(Column(name, PgType(23, CATALOG, "int4"), -1, is_key=True) for name in "abc")
    )

    @pytest.mark.parametrize(("key", "places"), [(("a",), (0,)), (("c", "a"), (2, 0)), ((), ())])
    def test_the_key_has_its_own_order(self, key: tuple[str, ...], places: tuple[int, ...]) -> None:
        shape = Shape(self.RELATION, is_root=False, key=key, filter="", replaces=True, is_trusted=True, digest="d")
        assert shape.key_places == places

    def test_a_condition_is_part_of_what_is_read(self) -> None:
        shape = Shape(self.RELATION, is_root=False, key=(), filter="", replaces=True, is_trusted=True, digest="d")
        assert shape.read_digest == "d"
        some, others = replace(shape, where="a > 1").read_digest, replace(shape, where="a > 2").read_digest
        assert len({"d", some, others}) == 3


def test_a_chunk_counts_the_bytes_of_its_rows() -> None:
    assert Chunk([b"abc", b"de"], is_last=True).bytes == 5
