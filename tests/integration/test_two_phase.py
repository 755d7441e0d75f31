"""Tests switching ``postgres.two_phase`` on after the slot was created, and off later. The slot remains two-phase."""

from contextlib import closing

from tests.support.weather import Pipeline, Start, wait_until

VERSION = 17


def prepare(pipeline: Pipeline, name: str) -> None:
    with closing(pipeline.database.connect()) as connection:
        connection.execute("BEGIN")
        pipeline.write_in(connection, 1)
        connection.execute(f"PREPARE TRANSACTION '{pipeline.slot} {name}'")


def end(pipeline: Pipeline, how: str, name: str) -> None:
    with closing(pipeline.database.connect()) as connection:
        connection.execute(f"{how} PREPARED '{pipeline.slot} {name}'")


def restart(pipeline: Pipeline, *, two_phase: bool) -> None:
    pipeline.daemon.settings["postgres"] = {"two_phase": two_phase}
    pipeline.daemon.restart()


def wait_until_prepared(pipeline: Pipeline, *names: str) -> None:
    gids = [f"{pipeline.slot} {name}" for name in names]
    wait_until(lambda: [one["gid"] for one in pipeline.daemon.status()["prepared"]] == gids, f"{names} to be prepared")


def test_two_phase_can_be_switched_on_and_off_while_transactions_are_prepared(start: Start) -> None:
    pipeline = start(version=VERSION)
    for name in ("before", "before, in vain"):
        prepare(pipeline, name)
    pipeline.write(1)
    pipeline.wait_until_confirmed()  # the confirmed position is beyond both PREPARE commands
    restart(pipeline, two_phase=True)
    end(pipeline, "ROLLBACK", "before, in vain")
    for name in ("on", "on, in vain"):
        prepare(pipeline, name)
    wait_until_prepared(pipeline, "on", "on, in vain")
    end(pipeline, "COMMIT", "before")
    restart(pipeline, two_phase=False)
    assert '"slot_is_two_phase": true' in pipeline.daemon.log_text()
    prepare(pipeline, "off")
    wait_until_prepared(pipeline, "on", "on, in vain", "off")
    pipeline.daemon.kill()
    end(pipeline, "COMMIT", "on")
    pipeline.daemon.start()
    end(pipeline, "ROLLBACK", "on, in vain")
    end(pipeline, "COMMIT", "off")
    pipeline.write(1)
    assert pipeline.read(5) == [3, 1, 4, 6, 7]
    pipeline.wait_until_confirmed()
