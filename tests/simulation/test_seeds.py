"""Runs five hundred simulated worlds (see ``world``), each with its own seed. `make simulate` runs any number."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from pgsluice.pgoutput import messages
from tests.simulation import walsender
from tests.simulation.world import TROUBLES, run
from tests.support.pgoutput_encoder import encode

WORLDS = 500
BATCH = 100

COMMAND = re.compile("command verb=(?P<verb>[a-z_]+) .* outcome=(?P<outcome>[a-z]+) ")
"""Matches the log line about a command that a pipeline has read."""

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("first", range(0, WORLDS, BATCH))
def test_no_world_goes_wrong(first: int) -> None:
    """Run each world. ``python -m tests.simulation --seed N`` shows what happened in world N."""
    found = {seed: run(seed) for seed in range(first, first + BATCH)}
    assert {seed: violation for seed, violation in found.items() if violation} == {}


def test_every_message_and_fault_occurs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that every kind of message and fault occurs. Otherwise, the test above would prove little."""
    sent: Counter[str] = Counter()
    told: Counter[str] = Counter()

    def counting(message: messages.Message) -> bytes:
        sent[type(message).__name__] += 1
        return encode(message)

    monkeypatch.setattr(walsender, "encode", counting)
    for seed in range(BATCH):
        run(seed, lambda line: told.update([line.split("  ")[-1]]))
    kinds = {kind.__name__ for kind in get_args(messages.Message)} - {"Type"}
    assert {kind for kind in kinds if sent[kind] < BATCH / 10} == set()
    troubles = {f"-- {trouble.__name__}" for trouble in TROUBLES}
    assert {trouble for trouble in troubles if told[trouble] < BATCH / 10} == set()


def test_tables_are_loaded_in_every_way() -> None:
    told: Counter[str] = Counter()

    def note(line: str) -> None:
        what, _, rows = line.rsplit("  ", maxsplit=1)[-1].partition(" table=")
        told.update([what, f"{what} again"] if "rows_before=" in rows and "rows_before=0" not in rows else [what])

    for seed in range(BATCH // 4):
        run(seed, note, loads=True)
    ways = ("loading", "loading again", "loaded", "a table cannot be read now")
    assert {way for way in ways if told[way] < BATCH / 20} == set()


def test_commands_are_carried_out_in_every_way() -> None:
    told: Counter[str] = Counter()

    def note(line: str) -> None:
        if found := COMMAND.search(line):
            told[f"{found['verb']} {found['outcome']}"] += 1

    for seed in range(BATCH // 4):
        run(seed, note, loads=True, commands=True)
    ways = {f"{verb} {outcome}" for verb in ("start", "cancel") for outcome in ("accepted", "done", "refused")}
    ways = (ways | {"pause done", "resume done", "pause_pipeline done", "resume_pipeline done"}) - {
        "start done",
        "cancel accepted",
    }
    assert {way for way in ways if told[way] < BATCH / 20} == set()


@pytest.mark.parametrize("seed", range(5))
def test_a_world_can_be_repeated_exactly(seed: int) -> None:
    """Run a world again in this process, and in another process, in which sets are iterated in another order."""
    told: list[str] = []
    run(seed, told.append)
    again: list[str] = []
    run(seed, again.append)
    assert told == again
    command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed)]
    elsewhere = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert elsewhere == [*told, "all is well"]
