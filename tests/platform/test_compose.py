"""Tests ``deploy/compose.yaml`` with Docker Compose, as a user who tries pgsluice for the first time runs it.

The images of PostgreSQL and Kafka are stand-ins with the same names. The tests run the health checks as Docker's timers
would, because podman relies on systemd for this.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from sandbox import stand_ins, tools
from sandbox.containers import Engine, Isolated
from sandbox.deployment import compose
from tests.support.container import ROOT
from tests.support.weather import wait_until

FILE = ROOT / "deploy" / "compose.yaml"
PAUSE_S = 1.0
UP_S = 240.0

_MISSING = tools.missing("compose")
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=_MISSING or "")


class Project:
    """Runs ``docker compose -f deploy/compose.yaml``."""

    def __init__(self, isolated: Isolated) -> None:
        self._isolated = isolated

    def run(self, *arguments: str) -> str:
        """Run a command of Compose, and return its standard output."""
        found = subprocess.run(
            self._command(arguments), env=self._variables, capture_output=True, text=True, timeout=UP_S, check=False
        )
        assert found.returncode == 0, f"{arguments}: {found.stdout}{found.stderr}"
        return found.stdout

    def ask(self, port: int, path: str) -> str:
        """Return the answer to an HTTP request to a port that the project publishes."""
        inside = ["nsenter", "--net", "--target", str(self._isolated.pid)]
        asked = [*inside, "curl", "--silent", "--fail", f"http://127.0.0.1:{port}{path}"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return [str(compose()), "--progress", "quiet", "--file", str(FILE), *arguments]

    @property
    def _variables(self) -> dict[str, str]:
        return {**os.environ, **self._isolated.variables}


@pytest.fixture(scope="module")
def project(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Provide the project when all its services are healthy. Remove everything afterwards."""
    images = re.findall(r"image: (\S+)", FILE.read_text())
    stand_ins.build(engine, tmp_path_factory.mktemp("images"), images[0], images[1])
    with ExitStack() as stack:
        found = Project(stack.enter_context(engine.isolated()))
        stack.enter_context(checking_health(engine))
        stack.callback(found.run, "--profile", "*", "down", "--volumes", "--timeout", "10")
        found.run("up", "--detach", "--no-build", "--wait")
        yield found


@contextmanager
def checking_health(engine: Engine) -> Iterator[None]:
    """Run the health checks of all containers repeatedly."""
    stop = Event()

    def check() -> None:
        while not stop.wait(PAUSE_S):
            for container in engine.podman("ps", "--quiet").split():
                engine.succeeds("healthcheck", "run", container)

    thread = Thread(target=check)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_compose_accepts_the_file(engine: Engine) -> None:
    with engine.isolated() as isolated:
        services = json.loads(Project(isolated).run("--profile", "*", "config", "--format", "json"))["services"]
    assert services.keys() == {"postgres", "kafka", "pgsluice", "events"}
    assert Path(services["pgsluice"]["build"]["context"]) == ROOT


def test_an_insert_becomes_an_event(project: Project, engine: Engine) -> None:
    insert = "INSERT INTO customers (name) VALUES ('Ada'); INSERT INTO orders (customer, item) VALUES (1, 'lamp')"
    project.run("exec", "--no-TTY", "postgres", "psql", "-U", "postgres", "-h", "localhost", "shop", "-c", insert)
    # podman describes networks differently from Docker, so without --no-deps, Compose would create the servers again.
    # Without --detach, the output before podman attaches to the container would be missing.
    consumer = project.run("run", "--detach", "--no-deps", "events").strip()
    wait_until(lambda: engine.podman("logs", consumer).count("\n") >= 2, "two events")
    lines = engine.podman("logs", consumer).splitlines()
    assert sorted(line.split(" ", 1)[0] for line in lines) == ["shop.public.customers", "shop.public.orders"]
    assert any("'item': 'lamp'" in line for line in lines)


def test_the_documented_ports_answer(project: Project) -> None:
    assert json.loads(project.ask(8080, "/status"))["state"] == "streaming"
    assert "shop.transactions-value" in json.loads(project.ask(8080, "/subjects"))


def test_the_project_continues_after_a_restart(project: Project) -> None:
    project.run("restart", "pgsluice")
    wait_until(lambda: "streaming" in status(project), "the daemon to stream again")


def status(project: Project) -> str:
    try:
        return project.ask(8080, "/status")
    except subprocess.CalledProcessError:
        return ""
