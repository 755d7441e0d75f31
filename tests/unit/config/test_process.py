import pytest

from tests.support.settings import problems, settings


def test_a_shutdown_ends_within_half_a_minute_by_default() -> None:
    assert settings().shutdown.drain_timeout.milliseconds < 30_000


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("buffer", "memory_max", "1KiB"),
        ("buffer", "spill_dir", ""),
        ("log", "level", "trace"),
        ("shutdown", "drain_timeout", "1ms"),
    ],
)
def test_invalid_values_are_refused(table: str, key: str, value: str) -> None:
    ((path, _),) = problems(**{table: {key: value}})
    assert path == (table, key)
