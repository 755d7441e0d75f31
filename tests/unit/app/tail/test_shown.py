import json

import pytest

from pgsluice.app.tail.shown import Filter, Shown, to_json, to_text
from pgsluice.tables import TablePattern

UPDATE = Shown(
    "u",
    0x1_0000_002A,
    745,
    "2026-11-26T01:24:31.123456Z",
    "public",
    "Order lines",
    before={"id": "1", "note": "old"},
    before_image="full",
    after={"id": "1", "note": "new"},
    unchanged=("doc",),
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1", "1"),
        (None, "null"),
        ("null", '"null"'),
        ("", '""'),
        ("two words", '"two words"'),
        ('a"b', '"a\\"b"'),
        ("(unchanged)", '"(unchanged)"'),
        ("2024-02-29", "2024-02-29"),
        ("größe", "größe"),
        (1.5, "1.5"),
        (True, "true"),
        ([1, None], "[1, null]"),
    ],
)
def test_different_values_are_shown_differently(value: object, text: str) -> None:
    assert to_text(Shown("c", 1, 2, None, "s", "t", after={"v": value}), colors=False).endswith(f"insert  s.t v={text}")


def test_a_line_shows_what_changed_and_what_was_not_sent() -> None:
    assert to_text(UPDATE, colors=False) == (
        '2026-11-26T01:24:31.123456Z  1/2A  xid 745  update  public."Order lines" id=1 note=old -> new doc=(unchanged)'
    )


def test_changes_without_rows_are_shown_on_one_line() -> None:
    truncate = Shown("t", 1, 2, None, "s", "t", flags=("cascade",), origin="other server")
    assert to_text(truncate, colors=False) == '-  0/1  xid 2  truncate  s.t cascade origin="other server"'
    message = Shown("m", 1, None, None, after={"prefix": "p", "content": "\udcff"})
    assert to_text(message, colors=False) == '-  0/1  xid -  message  prefix=p content="\\udcff"'
    delete = Shown("d", 1, 2, None, "s", "t", before={"id": "1"}, before_image="key")
    assert to_text(delete, colors=False) == "-  0/1  xid 2  delete  s.t id=1"


def test_foreign_text_cannot_set_colors() -> None:
    line = to_text(Shown("c", 1, 2, None, "s", "\x1b[1m", after={"\x1b": "\x1b\u202e"}), colors=True)
    assert line.count("\x1b") == 4
    assert "\u202e" not in line


def test_json_has_the_names_of_the_envelope() -> None:
    found = json.loads(to_json(UPDATE))
    assert (found["op"], found["lsn"], found["unchanged"]) == ("u", "1/2A", ["doc"])
    assert found["after"] == {"id": "1", "note": "new"}


@pytest.mark.parametrize(
    ("wanted", "passes"),
    [
        (Filter(), True),
        (Filter(ops=frozenset("u")), True),
        (Filter(ops=frozenset("cd")), False),
        (Filter(xids=frozenset([745])), True),
        (Filter(xids=frozenset([1])), False),
        (Filter(tables=[TablePattern.parse("a.b"), TablePattern.parse("public.*")]), True),
        (Filter(tables=[TablePattern.parse("a.b")]), False),
        (Filter(columns=frozenset(["note"])), True),
        (Filter(columns=frozenset(["id"])), False),
        (Filter(columns=frozenset(["doc"])), False),
        (Filter(columns=frozenset(["other"])), False),
    ],
)
def test_filters_choose_what_is_shown(wanted: Filter, *, passes: bool) -> None:
    assert (wanted.apply(UPDATE) is not None) is passes


def test_only_the_columns_that_are_asked_for_are_shown() -> None:
    found = Filter(columns=frozenset(["note", "doc"])).apply(UPDATE)
    assert found is not None
    assert (found.before, found.after, found.unchanged) == ({"note": "old"}, {"note": "new"}, ("doc",))
