from pathlib import Path

import pytest

from bench.results import DRAIN, LoadResult, Moment, Part, Results, Run, Spread

MOMENT = Moment("2026-01-01T00:00:00+00:00", (0.1, 0.2))


def run(seconds: float, *, opening_s: float | None = None) -> Run:
    opening = None if opening_s is None else Part(opening_s, 100, {"client": 0.5})
    return Run(Part(seconds, 1000, {"client": 1.5}), opening, 50.0)


def result(*, opened: bool = False) -> LoadResult:
    runs = {DRAIN: [run(1.0, opening_s=0.1)], "slow": [run(2.0, opening_s=0.2), run(4.0), run(5.0, opening_s=3.2)]}
    return LoadResult("Orders", 1000, 200.0, opened, "", MOMENT, runs)


def test_the_opening_is_subtracted_from_the_whole() -> None:
    rest = run(2.0, opening_s=0.2).afterwards
    assert rest.seconds == pytest.approx(1.8)
    assert (rest.rows, rest.cpu) == (900, {"client": 1.0})
    assert rest.cpu_us("client") == pytest.approx(1e6 / 900)
    assert rest.cpu_us("broker") is None


def test_without_an_opening_everything_comes_afterwards() -> None:
    assert run(2.0).afterwards == run(2.0).whole


def test_a_load_that_ends_with_its_opening_counts_as_a_whole() -> None:
    whole = Part(2.0, 1000, {"client": 1.0})
    assert Run(whole, Part(1.9, 950, {"client": 0.9}), None).afterwards == whole


def test_the_use_of_other_processes_is_never_negative() -> None:
    assert Part(1.0, 1000, {"others": -0.01}).cpu_us("others") == 0


def test_results_have_medians_and_ranges() -> None:
    assert result().rate("slow") == Spread(250.0, 200.0, 500.0)
    assert result().ratio("slow") == 0.25
    assert result().cpu_us("slow", "client") == 1500.0
    assert result().cpu_us("slow", "broker") is None


def test_figures_can_leave_out_the_opening() -> None:
    assert result().later_ratio("slow") == pytest.approx(0.5)
    assert result(opened=True).rate("slow").median == pytest.approx(500.0)


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert Results.read(path) is None
    written = Results({"cpu": "two"}, {"orders": result()}, left_out=["nothing"])
    written.write(path)
    assert Results.read(path) == written
