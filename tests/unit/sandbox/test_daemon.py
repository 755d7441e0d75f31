import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from sandbox.daemon import Daemon
from sandbox.errors import ServerError
from tests.support.weather import wait_until

NOWHERE = "127.0.0.1:1"

CONFIGURATION_ERROR = 78


@pytest.fixture
def refused() -> Iterator[Daemon]:
    """Provide a daemon whose configuration has an unknown section, so it ends at once."""
    with Daemon("shop", "host=127.0.0.1 port=1", NOWHERE, {"nonsense": {"key": 1}}, wait_for=None) as daemon:
        yield daemon


def test_configuration_file_has_addresses_and_settings() -> None:
    settings: dict[str, dict[str, Any]] = {
        "kafka": {"topic_prefix": "other", "topics": {"partitions": 2, "config": {"retention.ms": "-1"}}},
        "snapshot": {"mode": None, "chunk_rows": 5},
        "tables": {"exclude": ['*.ü"\\'], "tombstones": True, "rules": [{"match": "a.b", "config": {}}]},
        "nonsense": {},
    }
    with Daemon("shop", "dbname=shop", NOWHERE, settings, wait_for=None) as daemon:
        found = tomllib.loads(daemon.config_file.read_text())
        assert daemon.wait() == CONFIGURATION_ERROR
    assert found == {
        "version": 1,
        "name": "shop",
        "postgres": {"dsn": "dbname=shop"},
        "kafka": {"bootstrap_servers": NOWHERE, **settings["kafka"]},
        "buffer": {"spill_dir": str(daemon.config_file.parent / "spill")},
        "http": {"listen": daemon.url.removeprefix("http://")},
        "snapshot": {"chunk_rows": 5},
        "tables": settings["tables"],
        "nonsense": {},
    }


def test_exit_code_and_log_of_a_daemon_that_ends(refused: Daemon) -> None:
    assert refused.wait() == CONFIGURATION_ERROR
    assert not refused.alive
    assert "nonsense" in refused.log_text()


def test_the_environment_has_the_added_variables(refused: Daemon) -> None:
    refused.wait()
    refused.variables = {"PGSLUICE_LOG__COLOUR": "red"}
    refused.start()
    refused.wait()
    assert "PGSLUICE_LOG__COLOUR" in refused.log_text()


def test_a_daemon_that_ended_by_itself_can_be_started_again(refused: Daemon) -> None:
    wait_until(lambda: not refused.alive, "the daemon to end")
    refused.start()
    assert refused.wait() == CONFIGURATION_ERROR
    assert refused.log_text().count("nonsense") == 2


def test_a_running_daemon_cannot_be_started_again() -> None:
    with Daemon("shop", "host=127.0.0.1 port=1", NOWHERE, {}, wait_for=None) as daemon:
        with pytest.raises(ServerError, match="pgsluice is already running"):
            daemon.start()
        assert daemon.alive
        assert daemon.config_file.exists()


def test_a_daemon_that_ends_during_the_wait_is_reported_with_its_log(refused: Daemon) -> None:
    with pytest.raises(ServerError, match="nonsense"):
        refused.wait_until_ready()


def test_all_starts_write_to_the_same_log(refused: Daemon) -> None:
    refused.wait()
    refused.start()
    refused.wait()
    assert refused.log_text().count("nonsense") == 2


def test_a_daemon_that_does_not_run_cannot_be_controlled(refused: Daemon) -> None:
    refused.wait()
    for action in (refused.stop, refused.kill, refused.wait, refused.restart, lambda: refused.pid):
        with pytest.raises(ServerError, match="not running"):
            action()
