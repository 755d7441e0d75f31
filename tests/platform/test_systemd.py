"""Tests the systemd unit with systemd's own checks, and its behaviour on a host that runs systemd."""

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pgsluice import errors
from pgsluice.config.process import Shutdown
from sandbox.containers import Engine
from sandbox.daemon import Daemon
from sandbox.host import Host, copy
from sandbox.host import missing as host_missing
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from sandbox.program import HTTP_OK
from tests.support.container import IMAGE, ROOT
from tests.support.weather import Pipeline, configured, prepare, wait_until

DEPLOY = ROOT / "docs" / "deploy.md"
UNIT = ROOT / "deploy" / "systemd" / "pgsluice@.service"
SHOP = "pgsluice@shop.service"
SECRET = "etc/pgsluice/shop/secrets/postgres__password"  # noqa: S105 - the path of the password's file
EXPOSURE_MAX = 20
"""The highest allowed exposure level in tenths. 20 means a level of 2.0, on systemd's scale from 0 to 10."""

RETRIED = {69, 70, 75}
"""Exit codes after which a restart can help: a server was unavailable, a bug occurred, or a drain took too long."""

NO_CREDENTIALS = "243"
"""The exit status that systemd reports if it cannot provide the credentials of a process."""

with_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on the PATH: install systemd"
)


@cache
def settings() -> dict[str, list[str]]:
    """Return the values of each key of the unit."""
    found: dict[str, list[str]] = defaultdict(list)
    for key, value in re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE):
        found[key].append(value)
    return found


# -- what systemd reports ------------------------------------------------------------------------


@with_analyze
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    systemd = tmp_path / "usr/lib/systemd"
    shutil.copytree("/usr/lib/systemd/system", systemd / "system", symlinks=True, ignore_dangling_symlinks=True)
    program = tmp_path / settings()["ExecStart"][0].split()[0].lstrip("/")
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    shutil.copy(UNIT, systemd / "system")
    found = analyze("verify", f"--root={tmp_path}", UNIT.name)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


@with_analyze
def test_the_exposure_is_low() -> None:
    found = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(UNIT))
    assert found.returncode == 0, found.stdout
    assert re.search(r"exposure level for pgsluice@\w+.service: [01]\.\d ", found.stdout), found.stdout


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "--no-pager", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# -- the settings of the unit --------------------------------------------------------------------


def test_the_unit_is_not_restarted_if_an_operator_has_to_act() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.StopError)]
    codes = {kind.exit_code for kind in kinds} | {errors.EXIT_BUG}
    assert {int(code) for code in settings()["RestartPreventExitStatus"][0].split()} == codes - RETRIED
    assert settings()["Restart"] == ["on-failure"]


def test_a_stop_has_enough_time() -> None:
    assert int(settings()["TimeoutStopSec"][0].removesuffix("s")) > 2 * Shutdown().drain_timeout.seconds


# -- the processes of the unit -------------------------------------------------------------------


class Unit(Daemon):
    """A daemon that runs as a unit on a host under systemd."""

    def __init__(self, host: Host, database: Database, kafka: Kafka) -> None:
        chosen = configured({"postgres": {"user": "guest"}, "buffer": {"memory_max": "2MiB"}})
        name = f"unit{uuid4().hex[:8]}"
        super().__init__(name, database.conninfo(), kafka.bootstrap_servers, chosen, at_once=False)
        self.host = host

    def install(self, engine: Engine) -> None:
        """Install all files at the paths in docs/deploy.md. The host must not have started yet."""
        files, written = self.host.files, self.directory / "written"
        engine.copy_from(IMAGE, "/opt/pgsluice", files / "opt")
        copy(UNIT, files / "etc/systemd/system" / UNIT.name, 0o644)
        for text, name, mode in (
            (self.configuration(), "etc/pgsluice/shop/config.toml", 0o644),
            ("right", SECRET, 0o400),
        ):
            written.write_text(text)
            copy(written, files / name, mode)
        (files / SECRET).parent.chmod(0o700)

    def start(self, *_: str, wait: bool = True) -> None:
        """Run ``systemctl start``, and wait until the unit owns the slot."""
        self.host.run("systemctl", "start", SHOP)
        if wait:
            wait_until(lambda: self.readiness("active") == HTTP_OK, "the unit to follow the slot")

    def state(self, name: str) -> str:
        """Return a property of the unit, according to systemd."""
        return self.host.property_of(SHOP, name)

    @property
    def alive(self) -> bool:
        """Whether the unit is active, according to systemd."""
        return self.state("ActiveState") == "active"

    def log_text(self) -> str:
        """Return the entries of the unit in the journal."""
        return self.host.run("journalctl", "--unit", SHOP, "--output", "cat", "--no-pager").stdout

    def _configuration(self) -> dict[str, Any]:
        found = super()._configuration()
        del found["buffer"]["spill_dir"]  # the unit sets it
        return found


@contextmanager
def installed(engine: Engine, guarded: Postgres, kafka: Kafka, directory: Path) -> Iterator[Pipeline]:
    """Provide a pipeline whose unit, with its password file, is installed on a host. All transactions are streamed."""
    if (reason := host_missing()) is not None:
        pytest.skip(f"no host under systemd: {reason}")
    with ExitStack() as stack:
        database: Database = stack.enter_context(guarded.database())
        prepare(database)
        with database.connect() as connection:
            connection.execute(f"ALTER DATABASE {database.name} SET debug_logical_replication_streaming = immediate")
        unit = stack.enter_context(Unit(Host(directory), database, kafka))
        unit.install(engine)
        stack.enter_context(unit.host)
        yield Pipeline(database, kafka, unit)


@pytest.fixture(scope="module")
def pipeline(
    engine: Engine, guarded: Postgres, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    """Provide a pipeline that runs as a unit on a host."""
    with installed(engine, guarded, kafka, tmp_path_factory.mktemp("host")) as found:
        yield found


@pytest.fixture
def unit(pipeline: Pipeline) -> Iterator[Unit]:
    """Provide the started unit, and stop it after the test."""
    assert isinstance(pipeline.daemon, Unit)
    pipeline.daemon.start()
    yield pipeline.daemon
    pipeline.daemon.host.run("systemctl", "stop", SHOP)


def test_the_unit_delivers_without_any_rights(pipeline: Pipeline, unit: Unit) -> None:
    pipeline.write()
    pipeline.write_at_once(5_000, width=1000)  # exceeds the memory limit, so rows go through the state directory
    pipeline.assert_complete()
    process = Path("/proc") / unit.state("MainPID") / "status"
    status = dict(line.split(":\t", 1) for line in unit.host.run("cat", str(process)).stdout.splitlines())
    assert "0" not in status["Uid"].split()
    assert (int(status["CapBnd"], 16), status["NoNewPrivs"], status["Seccomp"]) == (0, "1", "2")
    assert "other users can read" not in unit.log_text()
    assert unit.host.run("ls", "/var/lib/pgsluice/shop/spill").returncode == 0


@pytest.mark.long
def test_the_unit_restarts_after_kill_9(pipeline: Pipeline, unit: Unit) -> None:
    with pipeline.busy():
        unit.host.run("systemctl", "kill", "--signal", "KILL", SHOP)
        wait_until(lambda: int(unit.state("NRestarts")) > 0, "systemd to restart the unit")
        wait_until(lambda: unit.readiness("active") == HTTP_OK, "the unit to follow the slot")
    pipeline.assert_complete()


@pytest.mark.long
def test_the_unit_stops_in_an_orderly_way(pipeline: Pipeline, unit: Unit) -> None:
    pipeline.write()
    assert unit.host.run("systemctl", "stop", SHOP).returncode == 0
    assert (unit.state("Result"), unit.state("ExecMainStatus")) == ("success", "0")
    unit.start()
    pipeline.assert_complete()


def test_the_unit_does_not_retry_after_a_wrong_password(pipeline: Pipeline, unit: Unit) -> None:
    unit.host.run("systemctl", "stop", SHOP)
    with secret(unit, "wrong"):
        unit.start(wait=False)
        wait_until(lambda: unit.state("ActiveState") == "failed", "the unit to fail")
        assert unit.state("ExecMainStatus") == "77"
    unit.start()
    pipeline.assert_complete()


def test_the_unit_does_not_start_without_a_password_file(unit: Unit) -> None:
    unit.host.run("systemctl", "stop", SHOP)
    with secret(unit, None):
        unit.start(wait=False)
        assert unit.state("ExecMainStatus") == NO_CREDENTIALS


def test_root_can_run_commands_while_the_unit_is_stopped(unit: Unit) -> None:
    """Only root can read the password file, and systemd has removed the copy that it made for the unit."""
    unit.host.run("systemctl", "stop", SHOP)
    found = unit.host.run("sh", "-c", f"{variables()}pgsluice slot status")
    assert found.returncode == 0, found.stderr
    assert "restart_lsn" in found.stdout
    checked = unit.host.run("sh", "-c", f"{variables()}pgsluice check")
    assert re.search(r"^OK +buffer\.spill_dir +/var/lib/pgsluice/shop/spill, ", checked.stdout, re.MULTILINE)
    unit.start()


@pytest.mark.long
def test_nothing_remains_of_a_removed_pipeline(engine: Engine, guarded: Postgres, kafka: Kafka, tmp_path: Path) -> None:
    """The unit has failed when it is removed, and ``systemctl edit`` has added settings to it."""
    with installed(engine, guarded, kafka, tmp_path) as pipeline:
        unit = pipeline.daemon
        assert isinstance(unit, Unit)
        unit.start()
        edited = "/etc/systemd/system/pgsluice@shop.service.d"
        unit.host.run("sh", "-c", f"mkdir {edited} && echo '[Service]' > {edited}/override.conf")
        unit.host.run("systemctl", "daemon-reload")
        unit.host.run("systemctl", "enable", SHOP)
        unit.host.run("systemctl", "stop", SHOP)
        with secret(unit, "wrong"):
            unit.start(wait=False)
            wait_until(lambda: unit.state("ActiveState") == "failed", "the unit to fail")
        for commands in removal():
            found = unit.host.run("sh", "-c", f"{variables()}set -e\n{commands}")
            assert found.returncode == 0, found.stderr
        with pipeline.database.connect() as connection:
            slots = "SELECT FROM pg_replication_slots WHERE database = current_database()"
            assert connection.execute(slots).fetchall() == []
        assert unit.host.run("find", "/etc", "/opt", "/var/lib", "-name", "*pgsluice*").stdout == ""
        assert unit.host.run("systemctl", "list-units", "--all", "--no-legend", "pgsluice*").stdout == ""


def variables() -> str:
    """Return the lines of docs/deploy.md that set the variables for commands."""
    (found,) = re.findall(r"^export PATH=/opt/pgsluice.*\n(?:export .*\n)+", DEPLOY.read_text(), re.MULTILINE)
    return str(found)


def removal() -> list[str]:
    """Return the blocks of docs/deploy.md that remove a pipeline, and then pgsluice itself."""
    text = DEPLOY.read_text().partition("To remove a pipeline under systemd")[2]
    found = re.findall(r"^```sh\n(.+?)^```", text, re.MULTILINE | re.DOTALL)
    assert [block.split()[1] for block in found] == ["disable", "reset-failed", "-rf"]
    return found


@contextmanager
def secret(unit: Unit, text: str | None) -> Iterator[None]:
    """Change or remove the password file on the host, until the block ends."""
    change = "rm" if text is None else f"printf %s {text} >"
    unit.host.run("sh", "-c", f"cp --preserve /{SECRET} /etc/pgsluice/shop/kept && {change} /{SECRET}")
    try:
        yield
    finally:
        unit.host.run("mv", "/etc/pgsluice/shop/kept", f"/{SECRET}")
