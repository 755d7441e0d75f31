"""The layout of a table, which shows whether DDL has changed existing rows."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from pgsluice import layout as module
from pgsluice.layout import ColumnLayout, Layout, read_layout, unsent

ID = ColumnLayout(1, "id", 23, -1, 700)
NAME = ColumnLayout(2, "name", 1043, 24, 700)
PRICE = ColumnLayout(4, "price", 1700, 655366, 712)
BEFORE = Layout((ID, NAME, PRICE), 4, "0a1b")
NOTE = ColumnLayout(5, "note", 25, -1, 800)


def with_columns(*columns: ColumnLayout, **others: Any) -> Layout:  # noqa: ANN401 - the fields of a Layout
    return replace(BEFORE, columns=columns, attnums=max(4, *(one.attnum for one in columns)), **others)


class TestRowsHaveNothingThatWasNotSent:
    def test_nothing_is_unsent_if_the_table_is_as_it_was(self) -> None:
        assert unsent(BEFORE, BEFORE) is None

    def test_nothing_is_unsent_after_all_rows_were_rewritten_unchanged(self) -> None:
        assert unsent(BEFORE, replace(BEFORE, storage="2c3d")) is None

    def test_nothing_is_unsent_after_a_column_without_values_was_added(self) -> None:
        assert unsent(BEFORE, with_columns(ID, NAME, PRICE, NOTE)) is None

    def test_nothing_is_unsent_after_a_column_was_dropped(self) -> None:
        assert unsent(BEFORE, with_columns(ID, PRICE)) is None

    def test_nothing_is_unsent_after_a_column_was_renamed(self) -> None:
        assert unsent(BEFORE, with_columns(ID, replace(NAME, name="title", xmin=800), PRICE)) is None

    def test_nothing_is_unsent_after_a_setting_of_a_column_was_changed(self) -> None:
        assert unsent(BEFORE, with_columns(ID, replace(NAME, xmin=800), PRICE)) is None

    def test_nothing_is_unsent_after_the_maximum_length_of_a_text_was_raised(self) -> None:
        assert unsent(BEFORE, with_columns(ID, replace(NAME, typmod=54, xmin=800), PRICE)) is None


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (replace(BEFORE, filter="4e5f"), "the row filter of its publication was changed"),
        (with_columns(ID, NAME, PRICE, replace(NOTE, is_filled=True)), "column note was added with values"),
        (with_columns(ID, NAME, PRICE, NOTE, storage="2c3d"), "column note was added with values"),
        (with_columns(ID, NAME, PRICE, replace(NOTE, attnum=3)), "column note was not published before"),
        (with_columns(ID, replace(NAME, type_oid=25), PRICE), "column name has another type now"),
        (with_columns(ID, NAME, replace(PRICE, typmod=786438)), "column price has another type now"),
        (
            with_columns(ID, replace(NAME, xmin=800), PRICE, storage="2c3d"),
            "column name was altered, and the rows were rewritten",
        ),
        (
            with_columns(ID, PRICE, replace(NAME, attnum=5)),
            "column name has replaced another column of this name",
        ),
        (
            with_columns(ID, NAME, replace(PRICE, name="Na me"), replace(NOTE, name="price")),
            "column price has replaced another column of this name",
        ),
    ],
)
def test_ddl_that_gives_rows_unsent_values_is_named(new: Layout, reason: str) -> None:
    assert unsent(BEFORE, new) == reason


def test_names_are_quoted_where_sql_needs_it() -> None:
    new = with_columns(ID, NAME, PRICE, replace(NOTE, name="No te", is_filled=True))
    assert unsent(BEFORE, new) == 'column "No te" was added with values'


class TestNamesThatColumnsHadBefore:
    def test_former_names_of_columns_are_kept(self) -> None:
        dropped = with_columns(ID, PRICE).after(BEFORE)
        assert dropped.former == (("name", 2),)
        renamed = with_columns(ID, replace(PRICE, name="amount")).after(dropped)
        assert renamed.former == (("name", 2), ("price", 4))

    def test_a_former_name_may_not_be_given_to_another_column(self) -> None:
        dropped = with_columns(ID, PRICE).after(BEFORE)
        added = with_columns(ID, PRICE, replace(NOTE, name="name"))
        assert unsent(dropped, added) == "column name has replaced another column of this name"

    def test_a_column_may_have_its_former_name_again(self) -> None:
        renamed = with_columns(ID, replace(NAME, name="title"), PRICE).after(BEFORE)
        back = BEFORE.after(renamed)
        assert unsent(renamed, back) is None
        assert back.former == (("title", 2),)

    def test_too_many_former_names_are_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "FORMER_MAX", 1)
        assert unsent(BEFORE, with_columns(ID, PRICE)) is None
        assert unsent(BEFORE, with_columns(ID)) == "its columns have had more than 1 other names"


def test_a_layout_can_be_limited_to_the_published_columns() -> None:
    assert BEFORE.only(["id", "price", "other"]) == replace(BEFORE, columns=(ID, PRICE))


def test_the_number_of_a_column_is_known_if_it_still_has_its_type() -> None:
    assert BEFORE.attnum("price", 1700) == 4
    assert BEFORE.attnum("price", 25) is None
    assert BEFORE.attnum("other", 25) is None


def as_json(layout: Layout) -> Any:  # noqa: ANN401 - any JSON
    return json.loads(json.dumps(asdict(layout)))


def test_a_layout_survives_the_way_through_kafka() -> None:
    layout = replace(BEFORE, filter="4e5f", former=(("old", 3), ("older", 2)))
    assert read_layout(as_json(layout)) == layout


@pytest.mark.parametrize("found", [None, [], 3, {}, {"columns": []}])
def test_a_layout_with_other_fields_is_refused(found: object) -> None:
    with pytest.raises(ValueError, match=r"^a Layout is not an object with the fields attnums, columns, filter, "):
        read_layout(found)


@pytest.mark.parametrize("column", [None, [], 3, {}])
def test_a_layout_with_invalid_columns_is_refused(column: object) -> None:
    with pytest.raises(ValueError, match=r"^a ColumnLayout is not an object with the fields attnum, is_filled, name, "):
        read_layout({**as_json(BEFORE), "columns": [column]})


@pytest.mark.parametrize("name", ["columns", "former"])
def test_columns_and_former_names_are_arrays(name: str) -> None:
    with pytest.raises(ValueError, match="the columns or the former names of a layout are not an array"):
        read_layout({**as_json(BEFORE), name: {}})


@pytest.mark.parametrize(
    ("name", "value"), [("attnums", "4"), ("attnums", -2), ("attnums", True), ("storage", None), ("filter", 3)]
)
def test_a_layout_with_other_values_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match="a layout has an invalid value"):
        read_layout({**as_json(BEFORE), name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("attnum", "1"), ("attnum", 1.0), ("typmod", -2), ("xmin", 2**62 + 1), ("name", None), ("is_filled", 0)],
)
def test_a_layout_with_invalid_values_in_columns_is_refused(name: str, value: object) -> None:
    found = as_json(BEFORE)
    found["columns"][1][name] = value
    with pytest.raises(ValueError, match="a column of a layout has an invalid value"):
        read_layout(found)


@pytest.mark.parametrize("former", [None, [], ["old"], ["old", "2"], [2, "old"], ["old", 2, 3], {"old": 2}])
def test_a_former_name_has_to_be_a_name_and_a_number(former: object) -> None:
    with pytest.raises(ValueError, match="an entry of `former` in a layout is not an array of a name and a number"):
        read_layout({**as_json(BEFORE), "former": [former]})
