"""The lag of a pipeline in different situations. The test controls the clock."""

import pytest

from pgsluice.pipeline.lag import FRESH_S, OBSERVATIONS_MAX, Lag


def test_nothing_is_known_at_first() -> None:
    lag = Lag(100.0)
    assert (lag.seconds(100.0), lag.bytes) == (0.0, None)
    assert (lag.seconds(160.0), lag.bytes) == (60.0, None)


def caught_up(at: float, lsn: int = 1000) -> Lag:
    """Return the lag of a pipeline that had delivered everything at the time ``at``."""
    lag = Lag(0.0)
    lag.note_server(at, lsn)
    lag.note_delivered(lsn, lsn)
    return lag


def test_an_idle_server_that_answers_causes_no_lag() -> None:
    lag = caught_up(10.0)
    for now in range(12, 1000, 2):
        lag.note_server(now, 1000)
        assert (lag.seconds(now + 1.0), lag.bytes) == (0.0, 0)


def test_a_server_that_does_not_answer_may_have_changes() -> None:
    lag = caught_up(10.0)
    assert lag.seconds(10.0 + FRESH_S) == 0.0
    assert lag.seconds(11.0 + FRESH_S) == 1.0 + FRESH_S
    assert lag.seconds(1000.0) == 990.0
    assert lag.bytes == 0
    lag.note_server(1001.0, 1000)
    assert lag.seconds(1002.0) == 0.0


def test_the_lag_counts_from_the_first_sight_of_an_undelivered_position() -> None:
    lag = caught_up(10.0)
    for now in range(20, 100, 10):
        lag.note_server(now, 1000 + now)
    assert (lag.seconds(100.0), lag.bytes) == (80.0, 90)
    lag.note_delivered(1050, 1000)
    assert (lag.seconds(100.0), lag.bytes) == (40.0, 90)
    lag.note_delivered(1090, 1090)
    assert (lag.seconds(100.0), lag.bytes) == (0.0, 0)


def test_a_server_that_falls_silent_while_we_are_behind() -> None:
    lag = caught_up(10.0)
    lag.note_server(20.0, 1100)
    assert (lag.seconds(500.0), lag.bytes) == (480.0, 100)


def test_an_unchanged_position_of_the_server_is_news() -> None:
    lag = caught_up(10.0)
    lag.note_server(20.0, 1100)
    lag.note_server(500.0, 1100)
    lag.note_delivered(1100, 1100)
    assert lag.seconds(501.0) == 0.0


def test_the_lag_is_the_age_of_an_undelivered_commit() -> None:
    lag = caught_up(5000.0)
    lag.note_server(5001.0, 9000)
    lag.note_delivered(2000, 2000)
    lag.note_undelivered_commit(1400.0)
    assert lag.seconds(5001.0) == 3601.0


def test_the_age_of_a_commit_stays_known_when_the_session_ends() -> None:
    """Keep the lag between two sessions, and until the second session has received something."""
    lag = caught_up(5000.0)
    lag.note_server(5001.0, 9000)
    lag.note_delivered(2000, 2000)
    lag.note_undelivered_commit(1400.0)
    lag.note_server(5030.0, 9500)
    lag.note_delivered(2100, 2100)
    assert lag.seconds(5030.0) == 3630.0
    lag.note_delivered(9500, 9500)
    assert lag.seconds(5030.0) == 0.0


def test_a_commit_may_be_older_than_all_known_positions() -> None:
    """Use the commit's time if it is all that is known. The first batch can come before the server's position."""
    lag = Lag(100.0)
    lag.note_undelivered_commit(40.0)
    assert lag.seconds(101.0) == 61.0
    lag.note_server(102.0, 5000)
    lag.note_delivered(5000, 5000)
    assert lag.seconds(103.0) == 0.0


def test_commits_from_the_future_cause_no_lag() -> None:
    lag = caught_up(10.0)
    lag.note_server(11.0, 1100)
    lag.note_undelivered_commit(50.0)
    assert lag.seconds(12.0) == 1.0


def test_while_another_process_delivers_old_positions_are_ignored() -> None:
    lag = caught_up(10.0)
    lag.note_server(20.0, 1100)
    lag.note_undelivered_commit(15.0)
    lag.note_other_owner(1000.0)
    lag.note_server(1001.0, 9000)
    assert lag.seconds(1002.0) == 1.0
    lag.note_delivered(9000, 9000)
    assert lag.seconds(1003.0) == 0.0


def test_another_server_may_have_less_wal() -> None:
    """Accept a lower position of the server, because a promoted standby may lack WAL of the former primary."""
    lag = caught_up(10.0)
    lag.note_server(20.0, 1500)
    lag.note_server(30.0, 2500)
    lag.note_server(40.0, 1600)
    lag.note_delivered(1600, 1600)
    assert (lag.seconds(41.0), lag.bytes) == (0.0, 0)


def test_observations_older_than_the_last_one_are_ignored() -> None:
    lag = caught_up(10.0)
    lag.note_server(30.0, 1200)
    lag.note_server(20.0, 5000)
    assert lag.bytes == 200


def test_a_long_outage_takes_no_memory_and_its_beginning_stays_known() -> None:
    lag = caught_up(0.5)
    for now in range(1, 20 * OBSERVATIONS_MAX):
        lag.note_server(float(now), 1000 + now)
    assert len(lag._ahead) <= OBSERVATIONS_MAX
    end = 20.0 * OBSERVATIONS_MAX
    assert lag.seconds(end) == end - 1.0
    lag.note_delivered(1000 + 10 * OBSERVATIONS_MAX, 1000)
    assert lag.seconds(end) == pytest.approx(end / 2, rel=0.2)
    lag.note_delivered(1000 + 20 * OBSERVATIONS_MAX, 1000)
    assert lag.seconds(end) == 0.0
