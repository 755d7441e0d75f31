"""Some thousand worlds, each from its seed; `make simulate` runs as many as asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.world import run

WORLDS = 3000
BATCH = 100

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("first", range(0, WORLDS, BATCH))
def test_nothing_goes_wrong(first: int) -> None:
    """To see what happened in one: ``python -m tests.simulation --seed N``."""
    found = {seed: run(seed) for seed in range(first, first + BATCH)}
    assert {seed: violation for seed, violation in found.items() if violation} == {}


@pytest.mark.parametrize("seed", range(5))
def test_a_world_happens_again_exactly(seed: int) -> None:
    """In another process as well, where sets have another order."""
    told: list[str] = []
    run(seed, told.append)
    again: list[str] = []
    run(seed, again.append)
    assert told == again
    command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed)]
    elsewhere = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert elsewhere == [*told, "all is well"]
