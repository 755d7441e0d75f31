"""What may be confirmed, and whether a session may go on where the last one ended."""

import json
from dataclasses import replace

import pytest

from pgsluice.errors import ConfigError, HistoryError
from pgsluice.progress import (
    Checkpoint,
    Progress,
    ServerIdentity,
    TimelineSwitch,
    check_origin,
    check_pipeline,
    check_resent,
    check_slot,
    check_timeline,
    owed_lsn,
)
from pgsluice.transaction import Resent, Transaction

SERVER = ServerIdentity("7001", 1, 5000)
CHECKPOINT = Checkpoint("shop", "s", "7001", 1, 2, 9, 1000, last_end_lsn=990, last_xid=700, last_commit_ts=55)


class TestCheckpoint:
    def test_it_survives_the_way_through_kafka(self) -> None:
        assert Checkpoint.from_json(CHECKPOINT.to_json()) == CHECKPOINT

    def test_it_is_readable_json(self) -> None:
        assert json.loads(CHECKPOINT.to_json())["end_lsn"] == 1000

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\xff",
            b"[]",
            b"3",
            b"{}",
            json.dumps({"version": 1}).encode(),
            CHECKPOINT.to_json().replace(b'"version": 1', b'"version": 2'),
            CHECKPOINT.to_json().replace(b"1000", b'"1000"'),
            CHECKPOINT.to_json().replace(b'"slot"', b'"slut"'),
        ],
    )
    def test_anything_else_is_refused_with_the_way_out(self, data: bytes) -> None:
        with pytest.raises(HistoryError, match="topic_prefix"):
            Checkpoint.from_json(data)

    def test_a_cut_advances_it_and_names_its_last_transaction(self) -> None:
        found = CHECKPOINT.advanced(10, 1200, (Transaction(701, 1150, 56), 1180))
        assert found == replace(CHECKPOINT, cut=10, end_lsn=1200, last_end_lsn=1180, last_xid=701, last_commit_ts=56)

    def test_a_heartbeat_keeps_the_last_transaction(self) -> None:
        assert CHECKPOINT.advanced(10, 1200, None) == replace(CHECKPOINT, cut=10, end_lsn=1200)

    def test_it_says_from_where_prepared_transactions_hold_the_slot(self) -> None:
        held = CHECKPOINT.advanced(10, 1200, None, 1100)
        assert held.held_lsn == 1100
        assert held.advanced(11, 1300, (Transaction(701, 1250, 56), 1280)).held_lsn == 0

    def test_an_announcement_has_no_position_yet(self) -> None:
        assert replace(CHECKPOINT, end_lsn=0).is_announcement
        assert not CHECKPOINT.is_announcement


class TestProgress:
    def test_nothing_is_confirmed_before_anything_was_received_in_this_session(self) -> None:
        assert Progress(1000).confirmable == 0

    def test_no_more_is_confirmed_than_was_delivered(self) -> None:
        progress = Progress(1000)
        progress.on_received(2000)
        assert (progress.confirmable, progress.undelivered) == (1000, True)
        progress.on_delivered(2000)
        assert (progress.confirmable, progress.undelivered) == (2000, False)

    def test_no_more_is_confirmed_than_was_received(self) -> None:
        progress = Progress(1000)
        progress.on_received(900)
        assert (progress.confirmable, progress.undelivered) == (900, False)

    def test_what_was_received_never_goes_back(self) -> None:
        progress = Progress(0)
        progress.on_received(2000)
        progress.on_received(1000)
        assert progress.received == 2000

    def test_a_checkpoint_that_goes_back_is_our_mistake(self) -> None:
        with pytest.raises(AssertionError):
            Progress(1000).on_delivered(999)


class TestWhatTheServerOwes:
    """The last transaction delivered, if the slot stands before it."""

    CHECKPOINT = replace(CHECKPOINT, end_lsn=1000, last_end_lsn=900, asked="p")

    def test_it_is_owed_if_the_slot_stands_before_it(self) -> None:
        assert [owed_lsn(self.CHECKPOINT, lsn, "p") for lsn in (500, 900, 1000)] == [900, 0, 0]
        assert owed_lsn(replace(self.CHECKPOINT, last_end_lsn=0), 500, "p") == 0

    def test_it_is_not_owed_to_who_asks_for_something_else(self) -> None:
        assert owed_lsn(self.CHECKPOINT, 500, "q") == 0
        before = Checkpoint.from_json(self.CHECKPOINT.to_json().replace(b', "asked": "p"', b""))
        assert owed_lsn(before, 500, "p") == 0

    def test_it_comes_before_anything_new(self) -> None:
        progress = Progress(1000, 900)
        progress.on_resent(700)
        progress.on_received(900)
        progress.on_resent(900)
        progress.on_received(2000)
        assert progress.received == 2000

    def test_a_server_that_goes_past_it_is_another_one(self) -> None:
        progress = Progress(1000, 900)
        progress.on_resent(700)
        with pytest.raises(HistoryError, match=r"ended at 0/384.*restored from a backup"):
            progress.on_received(901)
        with pytest.raises(HistoryError):
            progress.on_resent(950)


class TestPreparedTransactions:
    def test_nothing_behind_a_prepare_is_confirmed_while_it_is_outstanding(self) -> None:
        progress = received_and_delivered(2000)
        progress.hold(700, 1500)
        progress.hold(800, 1700)
        assert progress.confirmable == 1500

    def test_not_even_when_its_commit_was_received_until_that_is_delivered(self) -> None:
        progress = received_and_delivered(2000)
        progress.hold(700, 1500)
        progress.on_received(2200)
        progress.release(700, 2200)
        progress.on_delivered(2100)
        assert progress.confirmable == 1500
        progress.on_delivered(2200)
        assert progress.confirmable == 2200

    def test_a_commit_that_was_delivered_before_releases_it_at_once(self) -> None:
        progress = received_and_delivered(2000)
        progress.hold(700, 1500)
        progress.release(700, 1900)
        assert progress.confirmable == 2000

    def test_so_does_a_rollback(self) -> None:
        progress = received_and_delivered(2000)
        progress.hold(700, 1500)
        progress.forget(700)
        assert progress.confirmable == 2000

    def test_a_checkpoint_holds_the_slot_until_one_says_that_nothing_does(self) -> None:
        progress = received_and_delivered(2000)
        progress.hold(700, 1500)
        progress.on_delivered(2000, progress.held_at(2000))
        progress.forget(700)
        assert (progress.confirmable, progress.undelivered) == (1500, True)
        progress.on_delivered(2000, progress.held_at(2000))
        assert (progress.confirmable, progress.undelivered) == (2000, False)

    def test_it_says_so_when_the_commit_is_before_its_end(self) -> None:
        progress = received_and_delivered(2000)
        progress.hold(700, 1500)
        progress.hold(800, 1700)
        progress.on_received(2200)
        progress.release(700, 2100)
        assert [progress.held_at(lsn) for lsn in (2000, 2099, 2100)] == [1500, 1500, 1700]
        progress.forget(800)
        assert progress.held_at(2100) == 0

    def test_in_a_new_session_until_it_has_come_again(self) -> None:
        progress = Progress(2000, held=1500, slot_lsn=1400)
        progress.on_received(1500)
        assert (progress.held_at(2000), progress.confirmable, progress.undelivered) == (1500, 1500, False)
        progress.on_received(1999)
        assert (progress.held_at(2000), progress.undelivered) == (0, False)
        progress.on_received(2000)
        assert (progress.held_at(2000), progress.undelivered) == (0, True)

    def test_one_that_was_prepared_before_the_slot_told_of_it_comes_again_anyway(self) -> None:
        progress = Progress(2000, slot_lsn=1500)
        progress.on_received(2000)
        progress.hold(700, 1499)
        assert (progress.confirmable, progress.held_at(2000)) == (2000, 0)
        progress.hold(800, 1500)
        assert progress.confirmable == 1500

    def test_the_end_of_what_is_not_held_changes_nothing(self) -> None:
        progress = received_and_delivered(2000)
        progress.release(700, 3000)
        progress.forget(800)
        assert progress.confirmable == 2000


def received_and_delivered(lsn: int) -> Progress:
    progress = Progress(lsn)
    progress.on_received(lsn)
    return progress


class TestWhetherToGoOn:
    def test_from_the_same_pipeline_slot_cluster_and_timeline(self) -> None:
        check_pipeline(CHECKPOINT, "shop")
        check_origin(CHECKPOINT, "s", SERVER)
        check_slot(CHECKPOINT, 1000, SERVER)
        assert check_timeline(CHECKPOINT, SERVER, []) == CHECKPOINT

    def test_a_slot_behind_sends_again(self) -> None:
        check_slot(CHECKPOINT, 500, SERVER)

    def test_not_from_another_pipelines_checkpoint(self) -> None:
        with pytest.raises(ConfigError, match="belong to pipeline 'shop', not to 'other'"):
            check_pipeline(CHECKPOINT, "other")

    def test_not_from_another_slot(self) -> None:
        with pytest.raises(HistoryError, match="written for slot 's'"):
            check_origin(CHECKPOINT, "t", SERVER)

    def test_not_from_another_cluster(self) -> None:
        with pytest.raises(HistoryError, match="system identifier 7001, this server's is 7002"):
            check_origin(CHECKPOINT, "s", replace(SERVER, systemid="7002"))

    def test_not_with_a_gap_before_the_slot(self) -> None:
        with pytest.raises(HistoryError, match="is at 0/3E9, but only changes before 0/3E8 are in Kafka"):
            check_slot(CHECKPOINT, 1001, SERVER)

    def test_not_behind_a_transaction_that_was_prepared_and_had_not_ended(self) -> None:
        held = replace(CHECKPOINT, held_lsn=800)
        check_slot(held, 800, SERVER)
        with pytest.raises(HistoryError, match=r"is at 0/321, behind a PREPARE TRANSACTION at 0/320"):
            check_slot(held, 801, SERVER)

    def test_not_on_a_server_behind_the_checkpoint(self) -> None:
        with pytest.raises(HistoryError, match="the server's WAL ends at 0/3E7"):
            check_slot(CHECKPOINT, 500, replace(SERVER, xlogpos=999))

    def test_on_a_promoted_standby_that_has_everything_delivered(self) -> None:
        history = [TimelineSwitch(1, 1000), TimelineSwitch(2, 1500)]
        found = check_timeline(CHECKPOINT, replace(SERVER, timeline=3), history)
        assert found == replace(CHECKPOINT, timeline=3)

    def test_not_on_one_that_was_promoted_before_it(self) -> None:
        with pytest.raises(HistoryError, match="was left at 0/3E7"):
            check_timeline(CHECKPOINT, replace(SERVER, timeline=2), [TimelineSwitch(1, 999)])

    def test_not_on_a_timeline_that_is_no_descendant(self) -> None:
        with pytest.raises(HistoryError, match="is not an ancestor of it"):
            check_timeline(CHECKPOINT, replace(SERVER, timeline=2), [])

    @pytest.mark.parametrize("resent", [Resent(Transaction(700, 950, 55), 990), Resent(Transaction(1, 900, 1), 930)])
    def test_a_transaction_that_comes_again_is_the_one_delivered(self, resent: Resent) -> None:
        check_resent(CHECKPOINT, resent)

    @pytest.mark.parametrize("transaction", [Transaction(701, 950, 55), Transaction(700, 950, 56)])
    def test_another_one_in_its_place_shows_a_restored_server(self, transaction: Transaction) -> None:
        with pytest.raises(HistoryError, match="restored from a backup"):
            check_resent(CHECKPOINT, Resent(transaction, 990))
