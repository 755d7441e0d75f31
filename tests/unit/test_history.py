"""The decision whether a start may continue and from which checkpoint, and the checks before this decision."""

from dataclasses import replace
from typing import Any

import pytest

from pgsluice.checkpoint import Checkpoint, last_checkpoint
from pgsluice.commands import CommandState, Request
from pgsluice.cut import Cut, Recorded
from pgsluice.errors import ConfigError, Diverged, HistoryError, SourceUnavailable
from pgsluice.history import (
    Facts,
    Identity,
    Resumption,
    ServerIdentity,
    TimelineSwitch,
    announcement,
    check_origin,
    check_pipeline,
    check_slot,
    check_timeline,
    resume,
)
from pgsluice.loads import Load, LoadPosition

SERVER = ServerIdentity("7001", 1, 5000)
CHECKPOINT = Checkpoint("shop", "s", "7001", 1, 2, 9, 1000, last_end_lsn=990, last_xid=700, last_commit_ts=55)
SHOP = Identity("shop", "s", "", is_atomic=True, adopt=False)
ADOPTING = replace(SHOP, adopt=True)
COMMANDS = CommandState("topic", 12, requests=(Request("5f3b", "public", "orders"),))
LOAD = Load("5f3a", "public", "orders", 16_400, "0a1b2c3d", ("id",), ("42",), 1000)


def heartbeat(end_lsn: int) -> Cut:
    return Cut(end_lsn=end_lsn)


def facts(*checkpoints: Checkpoint, cut: int | None = None, **found: Any) -> Facts:  # noqa: ANN401 - any of the fields
    """Return the facts of a start without problems. ``found`` replaces some of them."""
    last = last_checkpoint(checkpoints)
    if cut is None:
        cut = last.cut if last is not None else 0
    recorded = Recorded(epoch=2 if cut else 0, cut=cut, end_lsn=2000)
    usual = Facts(checkpoints, recorded, slot_lsn=1000, server=SERVER, switches=(), is_standby=False)
    return replace(usual, **found)


class TestAnAnnouncement:
    def test_an_announcement_has_no_position_yet(self) -> None:
        assert replace(CHECKPOINT, end_lsn=0).is_announcement
        assert not CHECKPOINT.is_announcement

    def test_an_announcement_continues_the_numbers_of_cuts_in_a_new_epoch(self) -> None:
        first = announcement(None, Recorded(), SHOP, SERVER)
        assert (first.epoch, first.cut, first.is_announcement) == (1, 0, True)
        assert announcement(first, Recorded(), SHOP, SERVER) == first
        ninth = Recorded(2, 9, 1000)
        assert announcement(CHECKPOINT, ninth, SHOP, SERVER) == Checkpoint("shop", "s", "7001", 1, 3, 9, 0)

    def test_an_announcement_ignores_a_cut_that_was_not_committed(self) -> None:
        eighth = Recorded(2, 8, 900)
        assert announcement(CHECKPOINT, eighth, SHOP, SERVER) == Checkpoint("shop", "s", "7001", 1, 3, 8, 0)

    def test_commands_outlive_an_epoch(self) -> None:
        """Keep the requests of commands in the next epoch."""
        last = replace(CHECKPOINT, commands=COMMANDS)
        assert announcement(last, Recorded(), SHOP, SERVER).commands == COMMANDS
        begun = resume(facts(last, slot_lsn=2000), ADOPTING).checkpoint
        assert (begun.epoch, begun.loads, begun.commands) == (3, (), COMMANDS)


class TestGoingOn:
    def test_a_start_without_problems(self) -> None:
        assert resume(facts(CHECKPOINT), SHOP) == Resumption(CHECKPOINT, CHECKPOINT.cut)
        assert resume(facts(CHECKPOINT), ADOPTING) == Resumption(CHECKPOINT, CHECKPOINT.cut)

    def test_the_checkpoint_has_the_selection(self) -> None:
        found = resume(facts(CHECKPOINT), replace(SHOP, selection="p")).checkpoint
        assert (found.selection, found.selection_lsn) == ("p", 1000)

    def test_a_slot_before_the_checkpoint_sends_again(self) -> None:
        assert resume(facts(CHECKPOINT, slot_lsn=500), SHOP) == Resumption(CHECKPOINT, CHECKPOINT.cut)

    def test_a_slot_that_was_announced_begins_its_epoch(self) -> None:
        announced = Checkpoint("shop", "s", "7001", 1, 1, 0, 0)
        found = resume(facts(announced, server=replace(SERVER, timeline=2)), replace(SHOP, selection="p"))
        assert found == Resumption(Checkpoint("shop", "s", "7001", 2, 1, 1, 1000, tracks_loads=True), 0)
        assert (found.checkpoint.selection, found.checkpoint.selection_lsn) == ("p", 1000)

    def test_the_first_cut_of_an_announced_slot_may_have_been_aborted(self) -> None:
        announced = Checkpoint("shop", "s", "7001", 1, 1, 0, 0)
        assert resume(facts(announced, cut=1), SHOP).checkpoint.cut == 1

    def test_a_new_history_begins_at_the_slot(self) -> None:
        found = resume(facts(CHECKPOINT, slot_lsn=1500), replace(ADOPTING, selection="p"))
        assert found.checkpoint == Checkpoint("shop", "s", "7001", 1, 3, 10, 1500)
        assert found.begins_epoch
        assert "Somebody else advanced" in (found.reason or "")

    def test_transactions_before_a_new_epoch_are_not_delivered(self) -> None:
        """Do not treat earlier transactions as delivered, because the server may have been restored."""
        first = resume(facts(CHECKPOINT, slot_lsn=1500), replace(ADOPTING, selection="p")).checkpoint
        assert (first.delivered.lsn, first.delivered.transaction_lsn, first.delivered.message_lsn) == (1500, 0, 0)

    def test_a_new_epoch_has_new_numbers(self) -> None:
        """Continue the numbers after the cut whose checkpoint is lost, because readers know this cut."""
        ahead = Recorded(epoch=2, cut=10, end_lsn=2000)
        found = resume(facts(CHECKPOINT, recorded=ahead, slot_lsn=1500), ADOPTING)
        assert (found.checkpoint.epoch, found.checkpoint.cut) == (3, 11)

    def test_a_new_epoch_begins_without_any_former_records(self) -> None:
        found = resume(facts(), ADOPTING).checkpoint
        assert (found.epoch, found.cut, found.end_lsn) == (1, 1, 1000)

    def test_a_new_epoch_continues_the_numbers_of_former_cut_records(self) -> None:
        found = resume(facts(cut=41), ADOPTING).checkpoint
        assert (found.epoch, found.cut) == (3, 42)
        announced = Checkpoint("shop", "s", "7001", 1, 1, 0, 0)
        found = resume(facts(announced, cut=41), ADOPTING).checkpoint
        assert (found.epoch, found.cut) == (3, 42)


class TestWhetherLoadsAreTracked:
    def test_loads_are_tracked_from_the_first_cut(self) -> None:
        announced = announcement(None, Recorded(), SHOP, SERVER)
        assert announced.is_announcement
        assert resume(facts(announced), SHOP).checkpoint.tracks_loads

    def test_loads_are_tracked_after_an_announcement_of_an_earlier_version(self) -> None:
        announced = replace(announcement(None, Recorded(), SHOP, SERVER), tracks_loads=False)
        assert resume(facts(announced), SHOP).checkpoint.tracks_loads

    def test_loads_are_tracked_without_any_former_records(self) -> None:
        assert resume(facts(), ADOPTING).checkpoint.tracks_loads

    @pytest.mark.parametrize("tracks_loads", [False, True])
    def test_otherwise_loads_are_tracked_as_before(self, tracks_loads: bool) -> None:  # noqa: FBT001 - a parameter
        last = replace(CHECKPOINT, tracks_loads=tracks_loads)
        assert resume(facts(last), SHOP).checkpoint.tracks_loads == tracks_loads
        assert resume(facts(last, slot_lsn=1500), ADOPTING).checkpoint.tracks_loads == tracks_loads
        announced = announcement(last, Recorded(), SHOP, SERVER)
        assert resume(facts(announced), SHOP).checkpoint.tracks_loads == tracks_loads


class TestStopping:
    def test_a_start_without_a_checkpoint_is_refused(self) -> None:
        with pytest.raises(HistoryError, match="there is no checkpoint for it in Kafka"):
            resume(facts(), SHOP)

    @pytest.mark.parametrize("identity", [SHOP, ADOPTING])
    @pytest.mark.parametrize("change", [{"epoch": 2**30}, {"cut": 2**62}, {"cut": 2**61 + 1}])
    def test_numbers_that_no_epoch_could_follow_are_refused(self, change: dict[str, int], identity: Identity) -> None:
        """Refuse these high numbers, because only another program can have written them."""
        last = replace(CHECKPOINT, **change)  # type: ignore[arg-type]  # these fields are numbers
        if identity is SHOP and "epoch" in change:
            assert resume(facts(last), identity).checkpoint.epoch == 2**30
        else:
            with pytest.raises(
                HistoryError, match=r"never assigns such high numbers.* choose another kafka\.topic_pref"
            ):
                resume(facts(replace(last, slot="other")), replace(identity, slot="other" if identity is SHOP else "s"))
        with pytest.raises(HistoryError, match="such high numbers"):
            announcement(last, Recorded(), SHOP, SERVER)

    def test_another_pipelines_topics_are_refused_even_with_adopt_slot(self) -> None:
        check_pipeline(CHECKPOINT, "shop")
        with pytest.raises(ConfigError, match="belong to pipeline 'shop', not to 'other'"):
            resume(facts(CHECKPOINT), replace(ADOPTING, pipeline="other"))

    def test_another_slot_is_refused(self) -> None:
        with pytest.raises(HistoryError, match="written for slot 's'"):
            check_origin(CHECKPOINT, "t", SERVER)

    def test_another_cluster_is_refused(self) -> None:
        with pytest.raises(HistoryError, match="system identifier 7001, but this server's is 7002"):
            resume(facts(CHECKPOINT, server=replace(SERVER, systemid="7002")), SHOP)

    def test_a_gap_before_the_slot_is_refused(self) -> None:
        with pytest.raises(HistoryError, match="is at 0/3E9, but only changes before 0/3E8 are in Kafka"):
            resume(facts(CHECKPOINT, slot_lsn=1001), SHOP)

    def test_a_slot_after_a_prepared_transaction_that_had_not_ended_is_refused(self) -> None:
        held = replace(CHECKPOINT, held_lsn=800)
        check_slot(held, 800, SERVER)
        with pytest.raises(HistoryError, match=r"is at 0/321, after a PREPARE TRANSACTION at 0/320"):
            check_slot(held, 801, SERVER)

    def test_a_new_slot_whose_checkpoint_is_lost_is_refused(self) -> None:
        announced = Checkpoint("shop", "s", "7001", 1, 1, 0, 0)
        with pytest.raises(HistoryError, match="Cut 41 was delivered, but the checkpoint that belongs to it is lost"):
            resume(facts(announced, cut=41), SHOP)


class TestAServerThatWentBack:
    """A server whose WAL ended before the delivered position. The WAL may have grown since then."""

    BEHIND = replace(SERVER, xlogpos=999)

    def test_a_server_with_too_little_wal_is_refused(self) -> None:
        with pytest.raises(Diverged, match="the server's WAL ends at 0/3E7"):
            resume(facts(CHECKPOINT, slot_lsn=500, server=self.BEHIND), SHOP)

    def test_a_refusal_holds_when_its_wal_has_grown(self) -> None:
        refused = replace(CHECKPOINT, refused="The server's WAL ends at 0/3E7.")
        with pytest.raises(HistoryError, match=r"ends at 0/3E7\. An earlier run found this.*mistake.*--adopt-slot"):
            resume(facts(CHECKPOINT, refused), SHOP)

    def test_a_refusal_ends_with_a_new_epoch(self) -> None:
        refused = replace(CHECKPOINT, refused="The server's WAL ends at 0/3E7.")
        found = resume(facts(refused, slot_lsn=500), ADOPTING).checkpoint
        assert found == Checkpoint("shop", "s", "7001", 1, 3, 10, 500)

    def test_the_start_waits_for_a_standby(self) -> None:
        with pytest.raises(SourceUnavailable, match="The server is a standby, and it has not replayed 0/3E8 yet"):
            resume(facts(CHECKPOINT, server=self.BEHIND, is_standby=True), ADOPTING)

    def test_the_start_waits_for_a_standby_on_an_older_timeline(self) -> None:
        ahead = replace(CHECKPOINT, timeline=2)
        with pytest.raises(SourceUnavailable, match="has not replayed"):
            resume(facts(ahead, server=self.BEHIND, is_standby=True), SHOP)


class TestCutRecordsAheadOfTheCheckpoint:
    """Kafka has lost the last records of the checkpoint topic, or a broker that is not up to date has answered."""

    def test_one_cut_record_ahead_is_that_of_an_aborted_cut(self) -> None:
        assert resume(facts(CHECKPOINT, cut=10), SHOP) == Resumption(CHECKPOINT, CHECKPOINT.cut)

    def test_two_cut_records_ahead_are_refused_because_they_would_be_delivered_again(self) -> None:
        with pytest.raises(HistoryError, match=r"Cut 11 is recorded.*checkpoint belongs to cut 9.*Kafka lost"):
            resume(facts(CHECKPOINT, cut=11), SHOP)

    @pytest.mark.parametrize("cut", [10, 11])
    def test_a_slot_up_to_the_recorded_cuts_is_not_reported(self, cut: int) -> None:
        with pytest.raises(HistoryError, match="Kafka lost the last records of the checkpoint topic"):
            resume(facts(CHECKPOINT, cut=cut, slot_lsn=2000), SHOP)

    def test_a_slot_beyond_the_recorded_cuts_is_reported(self) -> None:
        with pytest.raises(HistoryError, match="Somebody else advanced"):
            resume(facts(CHECKPOINT, cut=10, slot_lsn=2001), SHOP)

    def test_a_new_epoch_begins_after_all_recorded_cuts(self) -> None:
        found = resume(facts(CHECKPOINT, cut=41), ADOPTING).checkpoint
        assert (found.epoch, found.cut, found.end_lsn) == (3, 42, 1000)

    def test_without_transactions_recorded_cuts_are_delivered_again(self) -> None:
        at_least_once = replace(SHOP, is_atomic=False)
        assert resume(facts(CHECKPOINT, cut=41), at_least_once) == Resumption(CHECKPOINT, CHECKPOINT.cut)

    def test_without_transactions_a_slot_that_cannot_send_them_stops_the_start(self) -> None:
        with pytest.raises(HistoryError, match="Kafka lost the last records of the checkpoint topic"):
            resume(facts(CHECKPOINT, cut=41, slot_lsn=1500), replace(SHOP, is_atomic=False))


class TestACheckpointWithoutItsCutRecord:
    """A late marker has made the checkpoint visible, and the process died before the cut was committed."""

    SHOWN = replace(CHECKPOINT, cut=10, end_lsn=2000)

    def test_the_checkpoint_before_the_one_without_a_cut_record_is_used(self) -> None:
        assert resume(facts(CHECKPOINT, self.SHOWN, cut=9), SHOP) == Resumption(CHECKPOINT, CHECKPOINT.cut)

    def test_a_checkpoint_with_a_cut_record_is_used(self) -> None:
        assert resume(facts(CHECKPOINT, self.SHOWN, cut=10), SHOP) == Resumption(self.SHOWN, self.SHOWN.cut)

    def test_a_new_epoch_ignores_a_checkpoint_without_a_cut_record(self) -> None:
        refused = replace(self.SHOWN, refused="The server went back.")
        found = resume(facts(CHECKPOINT, self.SHOWN, refused, cut=9), ADOPTING)
        assert (found.checkpoint.epoch, found.checkpoint.cut, found.committed) == (3, 10, 9)

    def test_a_refusal_recorded_with_a_checkpoint_without_a_cut_record_is_valid(self) -> None:
        refused = replace(self.SHOWN, refused="The server went back.")
        with pytest.raises(HistoryError, match="The server went back"):
            resume(facts(CHECKPOINT, self.SHOWN, refused, cut=9), SHOP)

    def test_a_refusal_recorded_before_a_checkpoint_without_a_cut_record_is_valid(self) -> None:
        """Stop because of a refusal, even if the first checkpoint of a new epoch follows it.

        This checkpoint is visible, but its cut was not committed.
        """
        refused, shown = replace(CHECKPOINT, refused="The server went back."), replace(self.SHOWN, epoch=3)
        with pytest.raises(HistoryError, match="The server went back"):
            resume(facts(CHECKPOINT, refused, shown, cut=9), SHOP)

    def test_the_checkpoint_is_used_if_the_slot_is_beyond_the_checkpoint_before_it(self) -> None:
        found = resume(facts(CHECKPOINT, self.SHOWN, cut=9, slot_lsn=1001), SHOP)
        assert found == Resumption(self.SHOWN, self.SHOWN.cut)

    def test_the_checkpoint_is_used_if_retention_has_deleted_all_cut_records(self) -> None:
        assert resume(facts(CHECKPOINT, self.SHOWN, cut=0), SHOP) == Resumption(self.SHOWN, self.SHOWN.cut)

    def test_the_checkpoint_is_used_if_more_than_one_cut_record_is_missing(self) -> None:
        assert resume(facts(CHECKPOINT, self.SHOWN, cut=8), SHOP) == Resumption(self.SHOWN, self.SHOWN.cut)

    def test_the_checkpoint_is_used_if_there_is_no_other_checkpoint(self) -> None:
        assert resume(facts(self.SHOWN, cut=9), SHOP) == Resumption(self.SHOWN, self.SHOWN.cut)

    def test_an_epoch_whose_first_cut_has_no_record_begins_again(self) -> None:
        announced = Checkpoint("shop", "s", "7001", 1, 1, 0, 0)
        first = Checkpoint("shop", "s", "7001", 1, 1, 1, 1000, tracks_loads=True)
        assert resume(facts(announced, first, cut=0), SHOP) == Resumption(first, 0)
        assert resume(facts(announced, first, cut=1), SHOP) == Resumption(first, first.cut)
        with pytest.raises(HistoryError, match="Somebody else advanced"):
            resume(facts(announced, first, cut=0, slot_lsn=1001), SHOP)

    def test_the_checkpoint_is_used_without_transactions(self) -> None:
        found = resume(facts(CHECKPOINT, self.SHOWN, cut=9), replace(SHOP, is_atomic=False))
        assert found == Resumption(self.SHOWN, self.SHOWN.cut)


class TestAForgedCheckpoint:
    """Another program has written a checkpoint with our key. The cut records contradict it."""

    RECORDED = Recorded(2, 9, 1000, positions={8: (2, 900), 9: (2, 1000)})
    FORMER = replace(CHECKPOINT, cut=8, end_lsn=900)
    ANNOUNCED = replace(CHECKPOINT, epoch=3, end_lsn=0)

    def test_the_genuine_checkpoint_is_accepted(self) -> None:
        found = facts(self.FORMER, CHECKPOINT, recorded=self.RECORDED)
        assert resume(found, SHOP) == Resumption(CHECKPOINT, CHECKPOINT.cut)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"end_lsn": 4000}, "cut 9 is of epoch 2 and goes up to 0/3E8"),
            ({"end_lsn": 999}, "cut 9 is of epoch 2 and goes up to 0/3E8"),
            ({"epoch": 3}, "cut 9 is of epoch 2 and goes up to 0/3E8"),
            ({"epoch": 1}, "cut 9 is of epoch 2 and goes up to 0/3E8"),
            ({"cut": 8}, "cut 8 is of epoch 2 and goes up to 0/384"),
            ({"cut": 11, "end_lsn": 4000}, "the last one is cut 9"),
            ({"cut": 40, "epoch": 7, "end_lsn": 4000}, "the last one is cut 9"),
            ({"epoch": 2, "end_lsn": 0}, "cut 9 is of epoch 2 and goes up to 0/3E8"),
        ],
    )
    @pytest.mark.parametrize("genuine", [[], [CHECKPOINT]])
    def test_a_checkpoint_that_cut_records_contradict_is_refused(
        self, genuine: list[Checkpoint], change: dict[str, int], says: str
    ) -> None:
        """Refuse the forged checkpoint.

        There is one exception. If compaction has deleted the genuine checkpoint, and the forged one is ahead of the cut
        records, only the later comparison with the topics can refuse it.
        """
        forged = replace(CHECKPOINT, **change)  # type: ignore[arg-type]  # these fields are numbers
        found = facts(*genuine, forged, recorded=self.RECORDED, slot_lsn=900)
        if not genuine and forged.cut > 9:
            assert resume(found, SHOP).committed == forged.cut
            return
        with pytest.raises(HistoryError, match=f"the cut records say that {says}.*Another program.*--adopt-slot"):
            resume(found, SHOP)

    @pytest.mark.parametrize("higher", [CHECKPOINT, replace(CHECKPOINT, epoch=7)])
    def test_an_old_checkpoint_that_is_written_again_is_refused(self, higher: Checkpoint) -> None:
        """Refuse an old checkpoint that another program has written again.

        The checkpoint before it may be genuine or forged.
        """
        found = facts(higher, self.FORMER, recorded=self.RECORDED, slot_lsn=900)
        with pytest.raises(HistoryError, match=r"is that of cut 8 in epoch 2, .* the last one is cut 9"):
            resume(found, SHOP)

    def test_an_old_forged_checkpoint_is_ignored(self) -> None:
        """Ignore an old checkpoint that a cut record contradicts, because its cut may have been aborted."""
        forged, earlier = replace(CHECKPOINT, epoch=1), replace(CHECKPOINT, cut=7, end_lsn=800)
        found = facts(forged, earlier, self.FORMER, recorded=self.RECORDED, slot_lsn=900)
        assert resume(found, SHOP) == Resumption(self.FORMER, 8)

    @pytest.mark.parametrize(
        "forged",
        [
            FORMER,
            replace(CHECKPOINT, end_lsn=4000),
            replace(CHECKPOINT, cut=40, end_lsn=4000),
        ],
    )
    def test_a_new_epoch_continues_from_the_confirmed_cuts(self, forged: Checkpoint) -> None:
        found = resume(facts(CHECKPOINT, forged, recorded=self.RECORDED, slot_lsn=900), ADOPTING)
        assert (found.checkpoint.epoch, found.checkpoint.cut, found.checkpoint.end_lsn) == (3, 10, 900)
        assert found.committed == 9

    def test_a_forged_checkpoint_of_the_next_cut_is_ignored(self) -> None:
        forged = replace(CHECKPOINT, epoch=7, cut=10, end_lsn=4000)
        found = facts(CHECKPOINT, forged, recorded=self.RECORDED)
        assert resume(found, SHOP) == Resumption(CHECKPOINT, CHECKPOINT.cut)

    def test_a_forged_checkpoint_before_a_genuine_one_is_ignored(self) -> None:
        forged = replace(CHECKPOINT, epoch=7, cut=40, end_lsn=4000)
        found = facts(self.FORMER, forged, CHECKPOINT, recorded=self.RECORDED)
        assert resume(found, SHOP) == Resumption(CHECKPOINT, CHECKPOINT.cut)

    def test_an_announcement_is_not_forged(self) -> None:
        found = resume(facts(CHECKPOINT, self.ANNOUNCED, recorded=self.RECORDED), SHOP)
        assert (found.checkpoint.epoch, found.checkpoint.cut, found.checkpoint.end_lsn) == (3, 10, 1000)

    def test_the_first_checkpoint_of_an_epoch_is_not_forged(self) -> None:
        first = replace(CHECKPOINT, epoch=3, cut=10, end_lsn=1000)
        recorded = Recorded(3, 10, 1000, positions={9: (2, 1000), 10: (3, 1000)})
        assert resume(facts(CHECKPOINT, self.ANNOUNCED, first, recorded=recorded), SHOP) == Resumption(first, 10)

    def test_a_refusal_is_not_forged_even_with_the_position_of_a_promotion(self) -> None:
        refused = replace(CHECKPOINT, end_lsn=950, refused="The server went back.")
        with pytest.raises(HistoryError, match="The server went back"):
            resume(facts(CHECKPOINT, refused, recorded=self.RECORDED), SHOP)

    def test_a_checkpoint_one_cut_behind_is_not_forged(self) -> None:
        """Accept a checkpoint one cut behind.

        A late marker can hide the last checkpoint, or make the cut record of an aborted cut visible.
        """
        found = facts(self.FORMER, recorded=self.RECORDED, slot_lsn=900)
        assert resume(found, SHOP) == Resumption(self.FORMER, 8)

    def test_the_first_checkpoint_of_an_epoch_that_never_began_does_not_hide_those_that_follow(self) -> None:
        shown = replace(CHECKPOINT, epoch=3, cut=9, end_lsn=4000)
        found = facts(self.FORMER, shown, CHECKPOINT, recorded=self.RECORDED)
        assert resume(found, SHOP) == Resumption(CHECKPOINT, CHECKPOINT.cut)

    def test_without_cut_records_every_checkpoint_is_accepted(self) -> None:
        found = facts(self.FORMER, CHECKPOINT, recorded=Recorded())
        assert resume(found, SHOP) == Resumption(CHECKPOINT, CHECKPOINT.cut)

    def test_without_transactions_records_may_come_late(self) -> None:
        late = replace(CHECKPOINT, end_lsn=1100)
        found = facts(late, recorded=self.RECORDED)
        assert resume(found, replace(SHOP, is_atomic=False)) == Resumption(late, late.cut)


class TestAnotherTimeline:
    PROMOTED = replace(SERVER, timeline=2)

    def test_the_same_timeline_is_accepted(self) -> None:
        assert check_timeline(CHECKPOINT, SERVER, []) is CHECKPOINT

    def test_a_promoted_standby_that_has_everything_delivered_is_accepted(self) -> None:
        switches = [TimelineSwitch(1, 1000), TimelineSwitch(2, 1500)]
        found = check_timeline(CHECKPOINT, replace(SERVER, timeline=3), switches)
        assert found == replace(CHECKPOINT, timeline=3)

    def test_a_timeline_that_lacks_a_delivered_transaction_is_refused(self) -> None:
        with pytest.raises(HistoryError, match="was left at 0/3DD"):
            check_timeline(CHECKPOINT, self.PROMOTED, [TimelineSwitch(1, 989)])

    def test_a_timeline_that_lacks_a_delivered_message_is_refused(self) -> None:
        with pytest.raises(HistoryError, match="was left at 0/3E6"):
            check_timeline(replace(CHECKPOINT, last_message_lsn=999), self.PROMOTED, [TimelineSwitch(1, 998)])

    def test_a_timeline_that_begins_before_loaded_rows_is_refused(self) -> None:
        loading = replace(CHECKPOINT, end_lsn=1100, load_position=LoadPosition(1100, 3))
        with pytest.raises(HistoryError, match="Rows that were read from tables are in Kafka at 0/44C on timeline 1"):
            check_timeline(loading, self.PROMOTED, [TimelineSwitch(1, 1099)])
        assert check_timeline(loading, self.PROMOTED, [TimelineSwitch(1, 1100)]).load_position == loading.load_position

    def test_a_timeline_that_lacks_only_heartbeats_continues_at_the_promotion(self) -> None:
        ahead = replace(CHECKPOINT, end_lsn=9000, selection_lsn=8000, held_lsn=7000)
        found = check_timeline(ahead, self.PROMOTED, [TimelineSwitch(1, 1200)])
        assert found == replace(CHECKPOINT, timeline=2, end_lsn=1200)
        assert found.selection_lsn == 1200

    def test_earlier_prepared_transactions_still_hold_the_slot(self) -> None:
        ahead = replace(CHECKPOINT, end_lsn=9000, held_lsn=1100)
        assert check_timeline(ahead, self.PROMOTED, [TimelineSwitch(1, 1200)]).held_lsn == 1100

    def test_the_wal_of_a_new_timeline_may_end_before_the_heartbeats(self) -> None:
        ahead = replace(CHECKPOINT, end_lsn=9000)
        server = replace(self.PROMOTED, xlogpos=1300)
        found = resume(facts(ahead, server=server, switches=[TimelineSwitch(1, 1200)]), SHOP)
        assert found.checkpoint.end_lsn == 1200

    def test_a_timeline_that_does_not_descend_from_the_checkpoints_timeline_is_refused(self) -> None:
        with pytest.raises(HistoryError, match="is not an ancestor of it"):
            check_timeline(CHECKPOINT, self.PROMOTED, [])
