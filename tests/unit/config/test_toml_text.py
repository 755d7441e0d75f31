import pytest
from pydantic import SecretStr

from pgsluice.config.toml_text import toml_key, toml_value
from pgsluice.config.units import Size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (5, "5"),
        ('a "b"\n', '"a \\"b\\"\\n"'),
        ("\x7f\u00e4", '"\\u007f\u00e4"'),
        ("\x1b\x9b\u202e\u2028", '"\\u001b\\u009b\\u202e\\u2028"'),
        ("\U000e0041\U0001f600", '"\\U000e0041\U0001f600"'),
        ([], "[]"),
        (["a", 1], '["a", 1]'),
        ({}, "{}"),
        ({"a": 1, "b.c": {}}, '{ a = 1, "b.c" = {} }'),
        (SecretStr("hunter2"), '"***"'),
        (Size(1024), '"1KiB"'),
    ],
)
def test_values_are_written_as_toml(value: object, text: str) -> None:
    assert toml_value(value) == text


def test_keys_are_quoted_if_necessary() -> None:
    assert [toml_key(name) for name in ("a-b_1", "a.b", "")] == ["a-b_1", '"a.b"', '""']
