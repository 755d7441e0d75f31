from bench.__main__ import KINDS, SHORT, SHORT_KINDS, SUBJECTS, field
from bench.loads import LOADS

ENCODERS: dict[str, dict[str, str]] = {"compiled": {}, "Python": {}}


def names(key: str) -> list[str]:
    return [one.name for one in field(LOADS[key], KINDS, ENCODERS) if one.name != "pg_recvlogical"]


def test_all_contenders_run_the_main_loads() -> None:
    kinds = ("exactly once", "at least once", "discard")
    assert names("orders-20") == [
        "drain",
        "patient drain",
        *(f"{kind}, {encoder}" for kind in kinds for encoder in ENCODERS),
    ]


def test_a_series_runs_with_one_encoder() -> None:
    assert names("columns-50") == ["drain", "exactly once, compiled"]
    assert names("tables-100") == ["drain", "exactly once, compiled", "discard, compiled"]


def test_loading_tables_is_compared_with_streaming_their_rows() -> None:
    assert names("snapshot") == names("snapshot-tables") == ["drain", "exactly once, compiled", "loading, compiled"]


def test_not_every_contender_runs_the_largest_transaction() -> None:
    assert names("million") == ["drain", "exactly once, compiled", "exactly once, Python"]


def test_the_short_form_runs_a_part_of_all_subjects() -> None:
    assert set(SHORT) <= set(SUBJECTS)
    assert set(SHORT_KINDS) <= set(KINDS)
