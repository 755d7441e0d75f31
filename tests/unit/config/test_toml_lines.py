import tomllib
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from pgsluice.config.problems import Path
from pgsluice.config.toml_lines import key_lines
from pgsluice.config.toml_text import toml_key, toml_value

DOCUMENT = '''\
# a comment = with { all [ kinds "of
version = 1   # another ] one
"quoted \\u0041.key" = 'literal # no comment'
dotted . "name" . 'raw' = true

[a.b]   # header
list = [ # comment [
  "x, ]", 'y',
  [1, 2], { k = "v", "l" = [3] },
]
date = 1979-05-27 07:32:00
long = """
] not = "an end" \\"""
""quoted"""""
raw = \'\'\'
[x]
\'\'\'
after = -1.5e3

[[c.rules]]
match = "x"
config = { "min.insync.replicas" = 2 }
[[c.rules]]
[c.rules.config]
retention = 1
[[c.rules.inner]]
deep = {}
'''


def test_the_line_of_every_kind_of_key_is_found() -> None:
    lines = key_lines(DOCUMENT)
    assert set(paths(tomllib.loads(DOCUMENT))) == set(lines)
    assert lines["version",] == 2
    assert lines["quoted A.key",] == 3
    assert lines["dotted", "name", "raw"] == 4
    assert lines["a", "b", "list", 0] == 8
    assert lines["a", "b", "list", 2, 1] == 9
    assert lines["a", "b", "list", 3, "l", 0] == 9
    assert lines["a", "b", "long"] == 12
    assert lines["a", "b", "raw"] == 15
    assert lines["a", "b", "after"] == 18
    assert lines["c", "rules", 0] == 20
    assert lines["c", "rules", 0, "config", "min.insync.replicas"] == 22
    assert lines["c", "rules", 1] == 23
    assert lines["c", "rules", 1, "config"] == 24
    assert lines["c", "rules", 1, "inner", 0, "deep"] == 27


def test_documents_without_keys_have_no_lines() -> None:
    assert key_lines("") == {}
    assert key_lines("# only a comment") == {}


def paths(value: object, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    entries = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for part, entry in entries:
        yield from paths(entry, (*path, part))


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_SCALARS = st.one_of(st.booleans(), st.integers(), _TEXTS)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_TEXTS, inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(_TEXTS, _VALUES, max_size=5))
def test_every_value_that_can_be_written_is_read_back_and_found(document: dict[str, object]) -> None:
    text = "".join(f"{toml_key(name)} = {toml_value(value)}\n" for name, value in document.items())
    assert tomllib.loads(text) == document
    lines = key_lines(text)
    assert set(lines) == set(paths(document))
    assert [lines[name,] for name in document] == list(range(1, len(document) + 1))
