"""The status and the health that a pipeline without a session reports, and the state of its slot in the status."""

import time
from collections.abc import Callable

import pytest

from pgsluice.app import status as module
from pgsluice.app.http.health import Role
from pgsluice.app.status import Status
from pgsluice.pipeline.pipeline import State
from pgsluice.postgres.slot import SlotState
from pgsluice.postgres.slot_watch import SlotSample

Seen = Callable[..., Status]


def test_at_the_start_the_state_is_starting(seen: Seen) -> None:
    status = seen(None)
    document = status.document()
    assert document["pipeline"] == "shop"
    assert document["slot"] == "pgsluice_shop"
    assert document["state"] == "starting"
    assert document["snapshot"] is None
    assert document["paused"] is None
    assert status.live() is None
    assert status.ready(Role.ANY) == "starting: not streaming yet"


def test_a_standby_is_ready_but_not_active(seen: Seen) -> None:
    status = seen(None)
    status.pipeline.state = State.STANDBY
    assert status.is_paused() is None
    assert status.ready(Role.ANY) is None
    assert status.ready(Role.ACTIVE) == "standby: not streaming yet"


def test_a_silent_pipeline_is_not_live(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIVE_S", -1.0)
    assert "nothing has moved for" in (seen(None).live() or "")


def test_the_status_describes_the_slot(slot: SlotState, seen: Seen) -> None:
    assert seen(slot).document()["slot_status"] == {
        "active": False,
        "wal_status": "extended",
        "retained_bytes": 4000,
        "safe_bytes": 7000,
    }


def test_a_missing_slot_has_no_status(seen: Seen) -> None:
    assert seen(None).document()["slot_status"] is None


def test_an_old_sample_is_not_shown(slot: SlotState, seen: Seen) -> None:
    status = seen(slot, age_s=module.SAMPLE_SHOWN_S + 1)
    assert status.sample() is None
    assert status.document()["slot_status"] is None


class TestLag:
    def test_the_slot_gives_the_lag_before_the_first_session(self, slot: SlotState, seen: Seen) -> None:
        seconds, size = seen(slot, age_s=5).lag()
        assert seconds == pytest.approx(5, abs=1)
        assert size == 3000

    def test_a_slot_at_the_end_of_the_wal_has_no_lag(self, slot: SlotState, seen: Seen) -> None:
        assert seen(slot, wal_end=2000).lag() == (0.0, 0)

    def test_without_a_sample_the_bytes_are_unknown(self, seen: Seen) -> None:
        status = seen(None)
        status.slot.sample = None
        seconds, size = status.lag()
        assert seconds == pytest.approx(0, abs=1)
        assert size is None

    def test_a_standby_reports_no_lag(self, slot: SlotState, seen: Seen) -> None:
        status = seen(slot)
        status.pipeline.state = State.STANDBY
        assert status.lag() == (None, None)
        assert status.document()["lag_seconds"] is None


def test_a_new_sample_is_shown(slot: SlotState, seen: Seen) -> None:
    status = seen(None)
    status.slot.sample = sample = SlotSample(slot, 5000, time.monotonic(), 1_800_000_000.0)
    assert status.sample() is sample
