"""The progress of a load, the position of its rows, and the records about it."""

import json
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from pgsluice.errors import HistoryError
from pgsluice.layout import ColumnLayout, Layout
from pgsluice.loads import (
    FIRST_SEQ,
    Load,
    Loaded,
    LoadMark,
    LoadPosition,
    assumed,
    moved_key,
    read_load_position,
    read_loads,
    table_key,
)
from pgsluice.pgoutput.messages import UNCHANGED, BinaryValue, ColumnValue

CUT = json.loads((Path(__file__).parents[2] / "contract" / "cut.avsc").read_text())

LOAD = Load("5f3a", "public", "orders", 16_400, "0a1b2c3d", ("id", "name"), ("42", "Grüße"), 1000)
BEGUN = Load("5f3a", "public", "orders", 16_400, "0a1b2c3d")
LAYOUT = Layout((ColumnLayout(1, "id", 23, -1, 700),), 1, "0a1b")
LOADED = Loaded("5f3a", "public", "orders", 16_400, rows=1000, epoch=2, cut=17, layout=LAYOUT)


def as_json(value: object) -> Any:  # noqa: ANN401 - any JSON
    """Return ``value`` after it was written to a Kafka record and read back."""
    return json.loads(json.dumps(value))


class TestALoad:
    def test_a_load_is_named_by_its_table(self) -> None:
        assert (LOAD.name, str(LOAD)) == (("public", "orders"), "public.orders")
        assert str(replace(LOAD, table="Or.ders")) == 'public."Or.ders"'

    def test_a_load_begins_without_rows(self) -> None:
        assert (BEGUN.last, BEGUN.rows) == ((), 0)

    def test_a_load_is_read_from_a_checkpoint_as_it_was_written(self) -> None:
        assert read_loads(as_json([asdict(LOAD), asdict(BEGUN)])) == (LOAD, BEGUN)
        assert read_loads([]) == ()

    def test_fields_of_a_load_with_a_default_may_be_missing(self) -> None:
        found = as_json([asdict(BEGUN)])
        del found[0]["last"], found[0]["rows"]
        assert read_loads(found) == (BEGUN,)

    def test_a_load_keeps_the_keys_of_rows_that_have_moved(self) -> None:
        moved = replace(LOAD, is_read=True, moved=(("t7", "tGrüße"), ("b00000007", "t")))
        assert read_loads(as_json([asdict(moved)])) == (moved,)

    @pytest.mark.parametrize(("name", "value"), [("is_read", 1), ("moved", [["t7"], "t8"]), ("moved", [[7]])])
    def test_keys_of_moved_rows_have_to_be_texts(self, name: str, value: object) -> None:
        with pytest.raises(ValueError, match=f"'{name}' has an invalid value"):
            read_loads([as_json(asdict(LOAD)) | {name: value}])

    def test_a_key_says_in_which_format_its_values_came(self) -> None:
        assert moved_key([b"7", BinaryValue(b"\x00\x07")]) == ("t7", "b0007")

    @pytest.mark.parametrize("value", [None, UNCHANGED])
    def test_an_incomplete_key_is_refused(self, value: ColumnValue) -> None:
        assert moved_key([b"7", value]) is None

    @pytest.mark.parametrize("found", [None, {}, "", 3])
    def test_loads_have_to_be_an_array(self, found: object) -> None:
        with pytest.raises(ValueError, match="'loads' is not an array"):
            read_loads(found)

    @pytest.mark.parametrize("found", [None, [], "", 3])
    def test_a_load_has_to_be_an_object(self, found: object) -> None:
        with pytest.raises(ValueError, match="a Load is not an object"):
            read_loads([found])

    @pytest.mark.parametrize("name", ["id", "schema", "table", "oid", "shape"])
    def test_a_load_without_a_field_is_refused(self, name: str) -> None:
        found = as_json(asdict(LOAD))
        del found[name]
        with pytest.raises(ValueError, match=f"'{name}' of a Load is missing"):
            read_loads([found])

    def test_a_load_with_other_fields_is_refused(self) -> None:
        with pytest.raises(ValueError, match="a Load has fields that are not known"):
            read_loads([{**as_json(asdict(LOAD)), "later": 1}])

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("id", None),
            ("id", 3),
            ("table", ["t"]),
            ("oid", "16400"),
            ("oid", True),
            ("oid", 1.0),
            ("oid", -1),
            ("rows", 2**62 + 1),
            ("last", "42"),
            ("last", [42]),
            ("last", ["42", None]),
            ("last", {"42": "42"}),
        ],
    )
    def test_a_load_with_other_values_is_refused(self, name: str, value: object) -> None:
        with pytest.raises(ValueError, match=f"'{name}' has an invalid value"):
            read_loads([{**as_json(asdict(LOAD)), name: value}])

    def test_any_row_count_that_avro_can_hold_is_valid(self) -> None:
        most = replace(LOAD, rows=2**62)
        assert read_loads([as_json(asdict(most))]) == (most,)


class TestALoadPosition:
    def test_rows_at_one_position_are_numbered_consecutively(self) -> None:
        position = LoadPosition(1000, 5)
        assert position.at(1000) == position
        assert position.after(3) == LoadPosition(1000, 8)

    def test_counting_begins_again_at_another_position(self) -> None:
        assert LoadPosition(1000, 5).at(1100) == LoadPosition(1100, 0)

    def test_rows_are_numbered_before_every_change_that_commits_there(self) -> None:
        assert (LoadPosition(1000).seq, LoadPosition(1000, 5).seq) == (FIRST_SEQ, FIRST_SEQ + 5)
        assert FIRST_SEQ < -1, "-1 is the number of a message outside transactions"

    def test_a_load_position_is_read_from_a_checkpoint_as_it_was_written(self) -> None:
        assert read_load_position(as_json(asdict(LoadPosition(1000, 5)))) == LoadPosition(1000, 5)
        assert read_load_position({}) == LoadPosition(0, 0)

    @pytest.mark.parametrize(
        ("found", "complaint"),
        [
            ([], "a LoadPosition is not an object"),
            ({"lsn": 1, "counts": 2}, "a LoadPosition has fields that are not known"),
            ({"lsn": "0/0"}, "'lsn' has an invalid value"),
            ({"lsn": 2**64}, "'lsn' has an invalid value"),
            ({"count": -1}, "'count' has an invalid value"),
            ({"count": None}, "'count' has an invalid value"),
        ],
    )
    def test_other_load_positions_are_refused(self, found: object, complaint: str) -> None:
        with pytest.raises(ValueError, match=complaint):
            read_load_position(found)

    def test_a_position_after_which_no_row_could_be_numbered_is_refused(self) -> None:
        """Refuse the position, because only another program can have written it."""
        assert read_load_position({"count": 2**62}).seq == 0
        with pytest.raises(ValueError, match="'count' has an invalid value"):
            read_load_position({"count": 2**62 + 1})


def test_a_mark_has_the_fields_of_the_contract() -> None:
    (snapshots,) = (one for one in CUT["fields"] if one["name"] == "snapshots")
    assert [one.name for one in fields(LoadMark)] == [one["name"] for one in snapshots["type"]["items"]["fields"]]


class TestATableThatIsLoaded:
    def test_a_loaded_table_has_one_record(self) -> None:
        assert LOADED.key == table_key("public", "orders") == b"public.orders"
        assert table_key("public", "or.ders") != table_key("public.or", "ders")

    def test_a_loaded_table_is_read_from_kafka_as_it_was_written(self) -> None:
        assert Loaded.from_json(LOADED.to_json(), "It") == LOADED

    def test_a_loaded_table_is_readable_json(self) -> None:
        assert json.loads(LOADED.to_json()) == {
            "version": 1,
            "state": "end",
            "id": "5f3a",
            "schema": "public",
            "table": "orders",
            "oid": 16_400,
            "rows": 1000,
            "epoch": 2,
            "cut": 17,
            "layout": {
                "columns": [
                    {"attnum": 1, "name": "id", "type_oid": 23, "typmod": -1, "xmin": 700, "is_filled": False},
                ],
                "attnums": 1,
                "storage": "0a1b",
                "filter": "",
                "former": [],
            },
        }

    def test_a_loaded_table_of_a_former_version_has_no_layout(self) -> None:
        found = json.loads(LOADED.to_json())
        del found["layout"]
        assert Loaded.from_json(json.dumps(found).encode(), "It") == replace(LOADED, layout=None)
        assert Loaded.from_json(replace(LOADED, layout=None).to_json(), "It") == replace(LOADED, layout=None)

    @pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b"3", b"null", b"[" * 100_000, b'{"a": "\\ud800"}'])
    def test_values_that_are_not_json_objects_are_refused_with_a_remedy(self, data: bytes) -> None:
        with pytest.raises(HistoryError, match=r"^Record 5 is not one that .* can read: .* kafka\.topic_prefix\.$"):
            Loaded.from_json(data, "Record 5")

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"version": 2}, "it is not a JSON object of version 1 and state 'end' or 'cancelled'"),
            ({"version": None}, "it is not a JSON object of version 1 and state 'end' or 'cancelled'"),
            ({"state": "begin"}, "it is not a JSON object of version 1 and state 'end' or 'cancelled'"),
            ({"later": 1}, "a Loaded has fields that are not known"),
            ({"rows": -1}, "'rows' has an invalid value"),
            ({"id": 1}, "'id' has an invalid value"),
            ({"layout": []}, "a Layout is not an object with the fields attnums, columns, filter, former, storage"),
        ],
    )
    def test_an_invalid_field_is_named(self, change: dict[str, object], complaint: str) -> None:
        data = json.dumps({**json.loads(LOADED.to_json()), **change}).encode()
        with pytest.raises(HistoryError, match=f"^Record 5 is not one that .* can read: {re.escape(complaint)}"):
            Loaded.from_json(data, "Record 5")

    @pytest.mark.parametrize("name", ["version", "state"])
    def test_a_record_without_version_or_state_is_refused(self, name: str) -> None:
        found = json.loads(LOADED.to_json())
        del found[name]
        with pytest.raises(HistoryError, match="version 1 and state 'end'"):
            Loaded.from_json(json.dumps(found).encode(), "It")

    def test_a_record_that_lacks_a_field_is_refused(self) -> None:
        found = json.loads(LOADED.to_json())
        del found["rows"]
        with pytest.raises(HistoryError, match="'rows' of a Loaded is missing"):
            Loaded.from_json(json.dumps(found).encode(), "It")


class TestWhatAnEarlierVersionHasDelivered:
    NOTES = ("public", "notes")

    def test_a_table_delivered_by_an_earlier_version_counts_as_loaded(self) -> None:
        (found,) = assumed({self.NOTES: 7}, [LOAD], {}, 2)
        assert found == Loaded("", "public", "notes", 7, rows=0, epoch=2, state="assumed")
        assert Loaded.from_json(found.to_json(), "Record 5") == found

    def test_a_table_whose_load_was_finished_or_cancelled_gets_no_new_record(self) -> None:
        done = replace(LOADED, schema="public", table="notes", oid=7)
        assert assumed({self.NOTES: 7}, [], {self.NOTES: done}, 2) == []
        assert assumed({self.NOTES: 7}, [], {self.NOTES: replace(done, state="cancelled")}, 2) == []

    def test_a_table_that_is_being_loaded_gets_no_record(self) -> None:
        assert assumed({LOAD.name: LOAD.oid}, [LOAD], {}, 2) == []

    def test_the_load_of_a_former_table_of_the_same_name_does_not_count(self) -> None:
        former = replace(LOADED, schema="public", table="notes", oid=6)
        assert [one.oid for one in assumed({self.NOTES: 7}, [], {self.NOTES: former}, 2)] == [7]
