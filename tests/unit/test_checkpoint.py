"""The checkpoint record: its JSON, how a cut changes it, and which of the records in a topic is used."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pgsluice.checkpoint import Checkpoint, last_checkpoint
from pgsluice.commands import CommandState, Request
from pgsluice.cut import Cut
from pgsluice.errors import HistoryError
from pgsluice.loads import Load, LoadPosition
from pgsluice.transaction import Delivered, Transaction

CHECKPOINT = Checkpoint("shop", "s", "7001", 1, 2, 9, 1000, last_end_lsn=990, last_xid=700, last_commit_ts=55)
COMMANDS = CommandState("topic", 12, requests=(Request("5f3b", "public", "orders"),))
LOAD = Load("5f3a", "public", "orders", 16_400, "0a1b2c3d", ("id",), ("42",), 1000)


def heartbeat(end_lsn: int) -> Cut:
    return Cut(end_lsn=end_lsn)


class TestCheckpoint:
    def test_a_checkpoint_is_read_as_it_was_written(self) -> None:
        whole = replace(
            CHECKPOINT,
            last_message_lsn=980,
            last_message_crc="0a1b2c3d",
            held_lsn=900,
            selection="p",
            selection_lsn=3,
            refused="Restored.",
            loads=(LOAD,),
            load_position=LoadPosition(950, 3),
            tracks_loads=True,
            commands=COMMANDS,
        )
        found = Checkpoint.from_json(whole.to_json())
        assert (found, found.selection, found.selection_lsn) == (whole, "p", 3)

    def test_a_checkpoint_is_readable_json(self) -> None:
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
    def test_other_values_are_refused_with_a_remedy(self, data: bytes) -> None:
        with pytest.raises(HistoryError, match="topic_prefix"):
            Checkpoint.from_json(data)

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"end_lsn": 2**64}, "'end_lsn' is outside 0 to 18446744073709551615"),
            ({"held_lsn": -1}, "'held_lsn' is outside 0 to"),
            ({"epoch": 0}, "'epoch' is outside 1 to 1073741824"),
            ({"epoch": 2**31 - 1}, "'epoch' is outside 1 to 1073741824"),
            ({"cut": -1}, "'cut' is outside 0 to 4611686018427387904"),
            ({"cut": 2**63 - 1}, "'cut' is outside"),
            ({"cut": True}, "'cut' is not an integer"),
            ({"cut": 9.0}, "'cut' is not an integer"),
            ({"timeline": 2**32}, "'timeline' is outside 1 to 4294967295"),
            ({"last_xid": 2**32}, "'last_xid' is outside"),
            ({"last_commit_ts": 2**63}, "'last_commit_ts' is outside"),
            ({"slot": None}, "'slot' is not a string"),
            ({"systemid": "\ud800"}, "half of a surrogate pair"),
            ({"asked": [[]] * 200 + [[]]}, "'asked' is not a string"),
            ({"later": 1}, "it has fields that are not known"),
            ({"loads": None}, "'loads' is not an array"),
            ({"loads": [3]}, "a Load is not an object"),
            ({"loads": [{"id": "5f3a"}]}, "'schema' of a Load is missing"),
            ({"place": None}, "a LoadPosition is not an object"),
            ({"commands": None}, "'commands' is not an object"),
            ({"tracks_loads": 1}, "'tracks_loads' is not true or false"),
            ({"place": {"lsn": -1}}, "'lsn' has an invalid value"),
        ],
    )
    def test_an_invalid_field_is_named(self, change: dict[str, object], complaint: str) -> None:
        data = json.dumps({**json.loads(CHECKPOINT.to_json()), **change}).encode()
        with pytest.raises(HistoryError, match=f"^Record 5 is not one that .* can read: .*{complaint}"):
            Checkpoint.from_json(data, "Record 5")

    @pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000])
    def test_nested_json_is_refused(self, data: bytes) -> None:
        with pytest.raises(HistoryError, match="nested too deeply"):
            Checkpoint.from_json(data)

    def test_the_last_message_of_an_earlier_version_is_unknown(self) -> None:
        former = json.loads(CHECKPOINT.to_json())
        for name in ("last_message_lsn", "last_message_crc", "asked_lsn", "refused"):
            del former[name]
        assert Checkpoint.from_json(json.dumps(former).encode()) == replace(CHECKPOINT, last_message_lsn=1000)

    def test_a_checkpoint_of_a_version_without_snapshots_has_no_loads(self) -> None:
        former = json.loads(CHECKPOINT.to_json())
        del former["loads"], former["place"]
        found = Checkpoint.from_json(json.dumps(former).encode())
        assert (found, found.loads, found.load_position) == (CHECKPOINT, (), LoadPosition())

    def test_a_checkpoint_of_a_version_without_commands_has_no_commands(self) -> None:
        former = json.loads(CHECKPOINT.to_json())
        del former["commands"]
        assert Checkpoint.from_json(json.dumps(former).encode()) == CHECKPOINT

    def test_only_a_paused_pipeline_writes_the_field_that_older_versions_refuse(self) -> None:
        assert "is_pipeline_paused" not in json.loads(CHECKPOINT.to_json())["commands"]
        paused = replace(CHECKPOINT, commands=replace(COMMANDS, is_pipeline_paused=True))
        assert json.loads(paused.to_json())["commands"]["is_pipeline_paused"] is True
        assert Checkpoint.from_json(paused.to_json()) == paused

    def test_a_checkpoint_of_a_version_without_default_loads_does_not_track_loads(self) -> None:
        found = json.loads(replace(CHECKPOINT, tracks_loads=True).to_json())
        del found["tracks_loads"]
        assert not Checkpoint.from_json(json.dumps(found).encode()).tracks_loads

    def test_loads_are_tracked_when_a_cut_has_the_loaded_tables(self) -> None:
        cut = heartbeat(2000)
        assert not CHECKPOINT.advanced(cut, 10).tracks_loads
        cut.add_assumed([])
        tracking = CHECKPOINT.advanced(cut, 10)
        assert tracking.tracks_loads
        assert tracking.advanced(heartbeat(3000), 11).tracks_loads

    def test_a_cut_records_the_commands_that_were_read(self) -> None:
        advanced = CHECKPOINT.advanced(Cut(end_lsn=1200, commands=COMMANDS), 10)
        assert advanced == replace(CHECKPOINT, cut=10, end_lsn=1200, commands=COMMANDS)
        assert advanced.advanced(heartbeat(1300), 11).commands == COMMANDS

    def test_a_cut_records_the_progress_of_loads(self) -> None:
        further = replace(LOAD, last=("50",), rows=1008)
        loading = replace(CHECKPOINT, loads=(LOAD,), load_position=LoadPosition(950, 3))
        advanced = loading.advanced(Cut(end_lsn=1200, loads=[further], load_position=LoadPosition(1100, 9)), 10)
        assert advanced == replace(loading, cut=10, end_lsn=1200, loads=(further,), load_position=LoadPosition(1100, 9))
        ended = advanced.advanced(Cut(end_lsn=1300, loads=[], load_position=LoadPosition(1250, 1)), 11)
        assert (ended.loads, ended.load_position) == ((), LoadPosition(1250, 1))

    def test_a_cut_without_loaded_rows_keeps_the_progress_of_loads(self) -> None:
        loading = replace(CHECKPOINT, loads=(LOAD,), load_position=LoadPosition(950, 3))
        advanced = loading.advanced(heartbeat(1200), 10)
        assert (advanced.loads, advanced.load_position) == ((LOAD,), LoadPosition(950, 3))

    def test_a_cut_advances_it_and_names_its_last_transaction(self) -> None:
        cut = Cut(end_lsn=1200, last=(Transaction(701, 1150, 56), 1180), last_message=(1100, "0a1b2c3d"))
        assert CHECKPOINT.advanced(cut, 10) == replace(
            CHECKPOINT,
            cut=10,
            end_lsn=1200,
            last_end_lsn=1180,
            last_xid=701,
            last_commit_ts=56,
            last_message_lsn=1100,
            last_message_crc="0a1b2c3d",
        )

    def test_a_heartbeat_keeps_the_last_transaction_and_the_last_message(self) -> None:
        former = replace(CHECKPOINT, last_message_lsn=980, last_message_crc="0a1b2c3d")
        assert former.advanced(heartbeat(1200), 10) == replace(former, cut=10, end_lsn=1200)

    def test_a_checkpoint_has_the_position_at_which_a_prepare_holds_the_slot(self) -> None:
        held = CHECKPOINT.advanced(heartbeat(1200), 10, 1100)
        assert held.held_lsn == 1100
        assert held.advanced(heartbeat(1300), 11).held_lsn == 0

    def test_between_the_last_transaction_and_the_end_nothing_was_delivered(self) -> None:
        assert replace(CHECKPOINT, last_message_lsn=980).delivered == Delivered(1000, 990, 980)

    def test_after_another_selection_undelivered_changes_are_possible(self) -> None:
        assert CHECKPOINT.selecting("") is CHECKPOINT
        assert CHECKPOINT.selecting("more tables").delivered == Delivered(1000, 1000, 1000)
        beaten = CHECKPOINT.selecting("more tables").advanced(heartbeat(1200), 10)
        assert beaten.delivered == Delivered(1200, 1000, 1000)


class TestTheLastCheckpoint:
    """The choice between the checkpoints that a read of the topic returns."""

    @pytest.mark.parametrize(
        ("found", "last"),
        [
            ([], None),
            ([(2, 9, 1000)], (2, 9, 1000)),
            ([(2, 8, 900), (2, 9, 1000)], (2, 9, 1000)),
            ([(3, 40, 9000), (2, 10, 1100)], (2, 10, 1100)),  # a forged checkpoint does not hide later ones
            ([(2, 9, 1000), (2, 10, 5000), (2, 10, 1100)], (2, 10, 1100)),  # an aborted record of cut 10 comes first
        ],
    )
    def test_the_last_written_checkpoint_is_used(
        self, found: Sequence[tuple[int, int, int]], last: tuple[int, int, int] | None
    ) -> None:
        made = [replace(CHECKPOINT, epoch=epoch, cut=cut, end_lsn=lsn) for epoch, cut, lsn in found]
        counts = last_checkpoint(made)
        assert (counts and (counts.epoch, counts.cut, counts.end_lsn)) == last
