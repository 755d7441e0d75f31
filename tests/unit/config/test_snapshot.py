import pytest

from tests.support.settings import problems


def test_a_primary_needs_a_host() -> None:
    (((*path,), sentence),) = problems(snapshot={"primary": "dbname=shop"})
    assert path == ["snapshot", "primary"]
    assert "names no host" in sentence


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("mode", "always", "literal_error"),
        ("chunk_rows", "many", "int_type"),
        ("max_rows_per_second", 0, "greater_than_equal"),
    ],
)
def test_invalid_values_are_refused(key: str, value: object, kind: str) -> None:
    assert problems(snapshot={key: value}) == [(("snapshot", key), kind)]
