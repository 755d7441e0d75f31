"""Plays two breakages of the game day. pgsluice recovers from one by itself. The other needs the runbook."""

from pathlib import Path

import pytest

from sandbox.prometheus import missing
from tests.gameday.breakages import BREAKAGES
from tests.gameday.run import Day, table
from tests.gameday.scene import game_day

CHOSEN = ("the walsender is killed", "the password is changed")


def test_breakages_are_detected_and_the_runbook_repairs_them(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(f"no Prometheus here: {reason}")
    chosen = [one for one in BREAKAGES if one.name in CHOSEN]
    with game_day(tmp_path) as (scene, prometheus):
        day = Day(scene, prometheus, print)
        day.play(chosen)
    assert [one.name for one in day.results] == [one.name for one in chosen]
    assert len(table(day.results).splitlines()) == len(chosen) + 2
