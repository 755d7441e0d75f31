"""Tests mistakes of operators with containers, and failing disks.

For each of them, the daemon must log the reason and end with the right exit code, and no data may be lost.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from sandbox.containers import Engine
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from tests.support.container import UID, Container
from tests.support.weather import Pipeline, prepare, wait_until

CONFIG = "/etc/pgsluice/config.toml"
SPILL = "/var/lib/pgsluice/spill"


def container(pipeline: Pipeline) -> Container:
    assert isinstance(pipeline.daemon, Container)
    return pipeline.daemon


# -- the configuration ---------------------------------------------------------------------------


def test_a_missing_configuration_is_reported(pipeline: Pipeline) -> None:
    daemon = container(pipeline)
    daemon.mount = None
    code, reason = daemon.fail()
    assert code == 78
    assert f"{CONFIG}: cannot be read: No such file or directory. Start from `pgsluice config example`" in reason


@pytest.mark.long
def test_a_directory_in_place_of_the_configuration_is_reported(pipeline: Pipeline) -> None:
    """Docker creates a directory if the file that is to be mounted does not exist, for example because of a typo."""
    daemon = container(pipeline)
    daemon.mount = f"./confg.toml:{CONFIG}:ro"
    code, reason = daemon.fail()
    assert code == 78
    assert f"{CONFIG}: cannot be read: Is a directory. Docker creates a directory if the file" in reason
    assert (daemon.directory / "confg.toml").is_dir()


def test_a_configuration_that_only_root_can_read_is_reported(pipeline: Pipeline) -> None:
    daemon = container(pipeline)
    locked = daemon.directory / "locked.toml"
    locked.write_text(daemon.configuration())
    locked.chmod(0o600)
    os.chown(locked, 0, 0)
    daemon.mount = f"./locked.toml:{CONFIG}:ro"
    code, reason = daemon.fail()
    assert code == 78
    assert f"{CONFIG}: cannot be read: Permission denied. pgsluice runs as uid {UID}" in reason


# -- secrets -------------------------------------------------------------------------------------


@pytest.fixture
def guest(engine: Engine, guarded: Postgres, kafka: Kafka) -> Iterator[Pipeline]:
    """Provide a pipeline that needs the password ``right``."""
    with ExitStack() as stack:
        database: Database = stack.enter_context(guarded.database())
        prepare(database)
        daemon = stack.enter_context(Container(engine, f"guest{uuid4().hex[:8]}", database, kafka))
        daemon.settings = {"postgres": {"user": "guest"}, "kafka": {"topics": {"partitions": 1}}}
        yield Pipeline(database, kafka, daemon)


def test_a_password_can_be_in_the_directory_of_secrets(guest: Pipeline) -> None:
    daemon = container(guest)
    daemon.secrets = {"postgres__password": "right\n"}
    daemon.start()
    guest.write()
    guest.assert_complete()
    assert daemon.stop() == 0
    assert "right" not in daemon.log_text()
    assert "other users can read" not in daemon.log_text()


@pytest.mark.long
def test_a_password_can_be_in_a_file_of_its_own(guest: Pipeline) -> None:
    daemon = container(guest)
    daemon.settings["postgres"] |= {"password_file": "/run/secrets/database"}
    daemon.secrets = {"database": "right"}
    daemon.start()
    guest.write()
    guest.assert_complete()


@pytest.mark.long
def test_a_missing_password_is_reported(guest: Pipeline) -> None:
    daemon = container(guest)
    code, reason = daemon.fail()
    assert code == 77
    assert "no password supplied" in reason
    daemon.settings["postgres"] |= {"password_file": "/run/secrets/database"}
    code, reason = daemon.fail()
    assert code == 78
    assert "postgres.password_file: /run/secrets/database cannot be read: No such file or directory" in reason


@pytest.mark.long
def test_a_password_that_cannot_be_read_is_reported(guest: Pipeline) -> None:
    daemon = container(guest)
    daemon.secrets = {"postgres__password": "right"}
    daemon.write_configuration()
    os.chown(daemon.directory / "secrets" / "postgres__password", 0, 0)
    daemon.secrets = {}
    code, reason = daemon.fail()
    assert code == 78
    assert f"postgres__password: cannot be read: Permission denied. pgsluice runs as uid {UID}" in reason


def test_a_directory_in_place_of_a_secret_is_reported(guest: Pipeline) -> None:
    daemon = container(guest)
    daemon.options = ("-v", "./absent:/run/more/postgres__password:ro", "-e", "PGSLUICE_SECRETS_DIR=/run/more")
    code, reason = daemon.fail()
    assert code == 78
    assert "/run/more/postgres__password: cannot be read: Is a directory. Docker creates a directory" in reason


# -- the machine ---------------------------------------------------------------------------------


def test_a_read_only_volume_is_reported(pipeline: Pipeline) -> None:
    daemon = container(pipeline)
    daemon.options = ("-v", f"./spill:{SPILL}:ro")
    code, reason = daemon.fail()
    assert code == 78
    assert "Read-only file system" in reason
    assert "Set buffer.spill_dir" in reason


@pytest.mark.long
def test_a_volume_of_root_is_reported(pipeline: Pipeline) -> None:
    daemon = container(pipeline)
    daemon.options = ("-v", f"./spill:{SPILL}")
    code, reason = daemon.fail()
    assert code == 78
    assert f"Permission denied: '{SPILL}" in reason
    assert f"uid {UID}" in reason


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Provide a file system of 4 MiB that belongs to the daemon's user."""
    options = f"size=4m,mode=0700,uid={UID},gid={UID}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", tmp_path], check=True)
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_full_volume_stops_the_daemon_and_loses_nothing(pipeline: Pipeline, small_disk: Path) -> None:
    """The uncommitted data in memory and on disk is lost with the container, so PostgreSQL must send it again."""
    daemon = container(pipeline)
    daemon.settings["buffer"] = {"memory_max": "2MiB"}
    daemon.options = ("-v", f"{small_disk}:{SPILL}")
    with pipeline.database.connect() as connection:
        name = pipeline.database.name
        connection.execute(f"ALTER DATABASE {name} SET debug_logical_replication_streaming = immediate")
    daemon.start()
    pipeline.write()
    with pipeline.database.connect() as connection, connection.transaction():
        pipeline.write_in(connection, 10_000, width=1000)
        assert daemon.wait() == 69
    assert "No space left on device" in daemon.why_it_stopped()
    assert "Make room under buffer.spill_dir" in daemon.why_it_stopped()
    pipeline.write()
    daemon.options = ()
    daemon.start()
    pipeline.assert_complete()


def test_a_port_that_is_taken_is_reported(make_pipeline: Callable[[], Pipeline]) -> None:
    pipeline, other = make_pipeline(), make_pipeline()
    pipeline.daemon.start()
    second = container(other)
    second.options = ("--env", f"PGSLUICE_HTTP__LISTEN={container(pipeline).listen}")
    code, reason = second.fail()
    assert code == 78
    assert f"Cannot listen on {container(pipeline).listen}: Address already in use" in reason
    pipeline.write()
    pipeline.assert_complete()


# -- the health check ----------------------------------------------------------------------------


def test_the_health_check_detects_a_frozen_daemon(pipeline: Pipeline, engine: Engine) -> None:
    daemon = container(pipeline)
    daemon.start()
    assert is_healthy(engine, daemon)
    engine.podman("kill", "--signal", "STOP", daemon.container)
    assert not is_healthy(engine, daemon)
    engine.podman("kill", "--signal", "CONT", daemon.container)
    wait_until(lambda: is_healthy(engine, daemon), "the container to be healthy")
    assert daemon.stop() == 0


def is_healthy(engine: Engine, daemon: Container) -> bool:
    """Run the image's health check as its timer does. Return whether it succeeds."""
    return engine.succeeds("healthcheck", "run", daemon.container)
