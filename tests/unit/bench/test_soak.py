import os
from pathlib import Path

from bench.soak import Sample, growth, sample

STEADY = [Sample(100_000, 20, 50, 19)] * 30


def test_constant_figures_have_not_grown() -> None:
    assert growth(STEADY) == []


def test_growing_figures_are_named() -> None:
    grown = [Sample(200_000, 40, 100, 60)] * 15
    assert growth(STEADY + grown) == [
        "resident_kib has grown from 100000 to 200000",
        "threads has grown from 20 to 40",
        "descriptors has grown from 50 to 100",
        "tasks has grown from 19 to 60",
    ]


def test_one_peak_is_not_growth() -> None:
    assert growth([*STEADY, Sample(900_000, 90, 900, 900)]) == []


def test_a_process_can_be_sampled(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    assert sample(os.getpid(), tasks) is None
    tasks.write_text("7")
    found = sample(os.getpid(), tasks)
    assert found is not None
    assert (found.tasks, found.resident_kib > 0, found.threads > 0, found.descriptors > 0) == (7, True, True, True)
