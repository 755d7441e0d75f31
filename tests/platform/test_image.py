"""Tests the image as an operator runs it, with the command in the README, a real PostgreSQL and a real Kafka."""

import json
from collections.abc import Callable
from urllib.request import urlopen

from sandbox.containers import BASES, Engine
from sandbox.ports import ReservedPort
from tests.support.container import IMAGE, Container
from tests.support.weather import Pipeline, wait_until

OWN_LAYERS_MAX = 90_000_000
"""The maximum size in bytes of the layers on top of python:3.13-slim. This keeps the image below 200 MB."""

_NOT_COMPILED = """
import os, sys
import pgsluice.app.cli, pgsluice.app.daemon

found = [module.__spec__ for module in list(sys.modules.values()) if module.__spec__ and module.__spec__.has_location]
print(*(one.name for one in found if one.origin.endswith(".py") and not os.path.exists(one.cached)))
"""
"""A program that prints the imported modules that Python must compile at each start."""


def container(pipeline: Pipeline) -> Container:
    assert isinstance(pipeline.daemon, Container)
    return pipeline.daemon


def test_the_command_in_the_readme_delivers_and_stops(pipeline: Pipeline) -> None:
    """The container uses the image's default port, so no other test may use this port."""
    daemon = container(pipeline)
    port = wait_until(_reserved, "port 8080 to be free, because another test run may use it")
    daemon.start_as_documented()
    try:
        wait_until(lambda: _answers("http://127.0.0.1:8080/readyz?role=active"), "the container to be ready")
        pipeline.write()
        pipeline.wait_until_confirmed()
    finally:
        assert daemon.stop() == 0, daemon.log_text()
        port.release()
    daemon.start()
    pipeline.assert_complete()


def test_a_new_container_continues_after_kill_9(pipeline: Pipeline) -> None:
    pipeline.daemon.start()
    pipeline.write()
    assert pipeline.read(10)
    with pipeline.busy():
        pipeline.daemon.kill()
        pipeline.daemon.start()
    pipeline.assert_complete()
    assert pipeline.daemon.stop() == 0


def test_a_standby_container_takes_over(make_pipeline: Callable[[], Pipeline]) -> None:
    owner, standby = make_pipeline(), make_pipeline()
    owner.daemon.start()
    standby.daemon.start(wait=False)
    standby.daemon.wait_until_ready("any")
    owner.write()
    assert owner.daemon.stop() == 0
    standby.daemon.wait_until_ready("active")
    standby.expect(owner)
    standby.write()
    standby.assert_complete()


def test_the_container_has_no_rights(pipeline: Pipeline) -> None:
    daemon = container(pipeline)
    daemon.start()
    status = dict(line.split(":\t", 1) for line in daemon.exec("cat", "/proc/1/status").splitlines() if ":\t" in line)
    assert status["Name"] == "pgsluice"
    assert status["Uid"].split() == ["65532"] * 4
    assert int(status["CapEff"], 16) == 0
    assert int(status["CapBnd"], 16) == 0
    mounts = [line.split() for line in daemon.exec("cat", "/proc/mounts").splitlines()]
    (root,) = (options for _, place, _, options, *_ in mounts if place == "/")
    assert "ro" in root.split(",")
    assert daemon.exec("pgsluice", "health", "--url", daemon.url)


def test_the_container_prints_only_json_objects(pipeline: Pipeline, engine: Engine) -> None:
    daemon = container(pipeline)
    daemon.start()
    pipeline.write()
    pipeline.wait_until_confirmed()
    assert daemon.stop() == 0
    events = [json.loads(line)["event"] for line in daemon.log_text().splitlines()]
    assert [one for one in events if one in {"listening", "slot created", "streaming", "stopping"}] == [
        *("listening", "slot created", "streaming", "stopping"),
    ]
    assert engine.podman("logs", daemon.container) == "", "standard output is reserved for the output of commands"


def test_the_slot_is_removed_as_documented(pipeline: Pipeline) -> None:
    daemon = container(pipeline)
    daemon.start()
    assert daemon.stop() == 0
    daemon.start("slot", "drop", wait=False)
    assert daemon.wait() == 0, daemon.log_text()
    assert f"slot {pipeline.slot} dropped" in daemon.log_text()
    with pipeline.database.connect() as connection:
        sql = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
        assert connection.execute(sql, [pipeline.slot]).fetchone() == (0,)


def test_the_container_reports_all_mistakes_in_a_broken_file(pipeline: Pipeline) -> None:
    daemon = container(pipeline)
    daemon.settings["postgres"] = {"hots": "localhost"}
    daemon.settings["delivery"] = {"cut_bytes": "16MB"}
    daemon.start(wait=False)
    assert daemon.wait() == 78
    assert "/etc/pgsluice/config.toml:" in daemon.log_text()
    assert "postgres.hots" in daemon.log_text()
    assert "delivery.cut_bytes" in daemon.log_text()


def test_the_image_has_the_required_size_user_health_check_and_labels(engine: Engine) -> None:
    assert "compiled" in engine.podman("run", "--rm", IMAGE, "version")
    (image,) = json.loads(engine.podman("image", "inspect", IMAGE))
    (base,) = json.loads(engine.podman("image", "inspect", next(iter(BASES))))
    assert image["Size"] - base["Size"] < OWN_LAYERS_MAX
    assert image["Config"]["User"] == "65532:65532"
    assert image["Healthcheck"]["Test"] == ["CMD", "pgsluice", "health"]
    assert image["Labels"]["org.opencontainers.image.title"] == "pgsluice"
    programs = engine.podman("run", "--rm", "--entrypoint", "find", IMAGE, "/opt/pgsluice", "-name", "*spark*")
    assert not programs


def test_nothing_is_compiled_when_the_container_starts(engine: Engine) -> None:
    found = engine.podman("run", "--rm", "--entrypoint", "python3", IMAGE, "-c", _NOT_COMPILED)
    assert found.split() == []


def _reserved() -> ReservedPort | None:
    try:
        return ReservedPort(8080)
    except OSError:
        return None


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:  # noqa: S310 - the URL is the container's
            return bool(answer.status == 200)
    except OSError:
        return False
