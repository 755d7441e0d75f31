"""The unit for systemd: what systemd's own programs say of it, and what it starts, under the same restrictions.

No systemd runs here. So the command of the unit is started in a container of the image, which has the same paths, as an
ordinary user, with the unit's variables, credentials and system calls.
"""

import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pgsluice import errors
from pgsluice.config.model import Shutdown
from sandbox.containers import Engine
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.support.container import IMAGE, ROOT
from tests.support.weather import Pipeline, configured, prepare

UNIT = ROOT / "deploy" / "systemd" / "pgsluice.service"
EXPOSURE_MAX = 20
"""In tenths: 2.0 of 10."""

USER = 61184
"""The first of those that DynamicUser= takes from."""

CREDENTIALS = "/run/credentials/pgsluice.service"

RETRIED = {69, 70, 75}
"""Exit codes of stops that may pass: something unavailable, a bug, a drain that took too long."""

WITHOUT_EXECUTABLE_MEMORY = """
import ctypes, os, sys
assert ctypes.CDLL(None, use_errno=True).prctl(65, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())  # PR_SET_MDWE
os.execv(sys.argv[1], sys.argv[1:])
"""
"""What MemoryDenyWriteExecute= does."""

with_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on the PATH: install systemd"
)


@cache
def settings() -> dict[str, list[str]]:
    """Return the values of each key of the unit."""
    found: dict[str, list[str]] = defaultdict(list)
    for key, value in re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE):
        found[key].append(value)
    return found


# -- what systemd says ---------------------------------------------------------------------------


@with_systemd
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    systemd = tmp_path / "usr/lib/systemd"
    shutil.copytree("/usr/lib/systemd/system", systemd / "system", symlinks=True, ignore_dangling_symlinks=True)
    program = tmp_path / settings()["ExecStart"][0].split()[0].lstrip("/")
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    shutil.copy(UNIT, systemd / "system")
    found = analyze("verify", f"--root={tmp_path}", UNIT.name)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


@with_systemd
def test_little_is_exposed() -> None:
    found = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(UNIT))
    assert found.returncode == 0, found.stdout
    assert re.search(r"exposure level for pgsluice.service: [01]\.\d ", found.stdout), found.stdout


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "--no-pager", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# -- what it says of pgsluice --------------------------------------------------------------------


def test_stops_that_need_somebody_are_not_repeated() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.StopError)]
    codes = {kind.exit_code for kind in kinds} | {errors.EXIT_BUG}
    assert {int(code) for code in settings()["RestartPreventExitStatus"][0].split()} == codes - RETRIED
    assert settings()["Restart"] == ["on-failure"]


def test_a_stop_has_the_time_that_it_may_take() -> None:
    assert int(settings()["TimeoutStopSec"][0].removesuffix("s")) > 2 * Shutdown().drain_timeout.seconds


# -- what it starts ------------------------------------------------------------------------------


class Service(Daemon):
    """The command of the unit."""

    def __init__(self, engine: Engine, database: Database, kafka: Kafka, profile: Path) -> None:
        name, settings = f"unit{uuid4().hex[:8]}", configured({"buffer": {"memory_max": "2MiB"}})
        super().__init__(name, database.conninfo(), kafka.bootstrap_servers, settings, at_once=False)
        self._engine = engine
        self._profile = profile

    def start(self, *_: str, wait: bool = True) -> None:
        """Start it as the unit says."""
        self.config_file.write_text(self.configuration())
        self.config_file.chmod(0o644)
        for name, mode in (("state", 0o700), ("credentials", 0o500)):
            directory = self.directory / name
            directory.mkdir(exist_ok=True, mode=mode)
            os.chown(directory, USER, USER)
        secret = self.directory / "credentials" / settings()["LoadCredential"][0].partition(":")[0]
        secret.write_text("secret")
        secret.chmod(0o400)
        os.chown(secret, USER, USER)
        program, *arguments = settings()["ExecStart"][0].split()
        wrapped = ["-c", WITHOUT_EXECUTABLE_MEMORY, program, *arguments]
        options = [*self._options(), "--entrypoint", "/opt/pgsluice/bin/python3"]
        self.launch(["podman", "run", "--rm", *options, IMAGE, *wrapped], self._engine.variables)
        if wait:
            self.wait_until_ready("active")

    def _options(self) -> list[str]:
        mounts = {
            "config.toml": "/etc/pgsluice/config.toml:ro",
            "state": f"/var/lib/{settings()['StateDirectory'][0]}",
            "credentials": f"{CREDENTIALS}:ro",
        }
        environment = [one.replace("%d", CREDENTIALS) for one in settings()["Environment"]]
        return [
            *("--network", "host", "--read-only", "--cap-drop", "ALL", "--user", f"{USER}:{USER}"),
            *("--security-opt", "no-new-privileges", "--security-opt", f"seccomp={self._profile}"),
            *("--image-volume", "ignore", "--unsetenv", "PGSLUICE_HTTP__LISTEN", "--unsetenv", "PGSLUICE_CONFIG"),
            *(word for source, target in mounts.items() for word in ("-v", f"{self.directory / source}:{target}")),
            *(word for one in environment for word in ("--env", one)),
        ]

    def _configuration(self) -> dict[str, Any]:
        found = super()._configuration()
        del found["buffer"]["spill_dir"]  # the unit relies on the default
        return found


@pytest.fixture
def service(engine: Engine, database: Database, kafka: Kafka, tmp_path: Path) -> Iterator[Pipeline]:
    prepare(database)
    profile = tmp_path / "seccomp.json"
    profile.write_text(json.dumps(seccomp_profile()))
    with ExitStack() as stack:
        yield Pipeline(database, kafka, stack.enter_context(Service(engine, database, kafka, profile)))


@with_systemd
def test_the_command_delivers_as_an_ordinary_user(service: Pipeline) -> None:
    service.daemon.start()
    service.write()
    with service.database.connect() as connection:
        name = service.database.name
        connection.execute(f"ALTER DATABASE {name} SET debug_logical_replication_streaming = immediate")
    service.daemon.restart()
    service.write_at_once(5_000, width=1000)  # more than memory holds: it goes through the state directory
    service.assert_complete()
    assert list((service.daemon.directory / "state" / "spill").iterdir())
    assert service.daemon.stop() == 0


def seccomp_profile() -> dict[str, Any]:
    """Return the unit's SystemCallFilter= as containers take it."""
    allowed: set[str] = set()
    for line in settings()["SystemCallFilter"]:
        calls = {call for name in line.removeprefix("~").split() for call in members(name)}
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    allowed |= members("@default")  # systemd allows these whatever the filter says
    syscalls = [{"names": sorted(allowed), "action": "SCMP_ACT_ALLOW"}]
    architectures = ["SCMP_ARCH_X86_64"]
    return {"defaultAction": "SCMP_ACT_ERRNO", "architectures": architectures, "syscalls": syscalls}


@cache
def members(name: str) -> set[str]:
    """Return the system calls in a set of systemd's, those of the sets in it included."""
    if not name.startswith("@"):
        return {name}
    lines = (line.strip() for line in analyze("syscall-filter", name).stdout.splitlines()[1:])
    return {call for line in lines if line and not line.startswith("#") for call in members(line)}
