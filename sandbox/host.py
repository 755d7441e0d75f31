"""A host under systemd: a Debian system in its own namespaces on this machine, in which systemd is the first process.

The host shares only the network with the machine. Its root file system is an overlay, it has only a few devices, and
the kernel's settings are read-only.

https://systemd.io/CONTAINER_INTERFACE/
"""

import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self
from uuid import uuid4

from sandbox.containers import SYSTEMD, base
from sandbox.errors import ServerError

START_S = 120.0
STOP_S = 10.0
POLL_S = 0.2

_MOUNTS = Path("/proc/self/mounts")

_BOOT = """
set -e
mount -t overlay overlay -o lowerdir="$LOWER",upperdir="$UPPER",workdir="$WORK" "$ROOT"
cd "$ROOT"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mkdir -p old
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
pivot_root . old
umount -l /old
mount --make-rshared /
exec env -i container=sandbox PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/lib/systemd/systemd
"""
"""The script that prepares the file systems and starts systemd. The mounts are shared because units receive their
credentials by shared mounts. The usual devices exist because PrivateDevices= copies them."""


def missing() -> str | None:
    """Return the reason why a host cannot run here, or None if it can."""
    if os.geteuid() != 0:
        return "only root can make a host"
    return None if _cgroups() else "there is no cgroup2 file system"


class Host:
    """A host that keeps its files in ``directory``. The host ends with the context."""

    def __init__(self, directory: Path) -> None:
        self.files = directory / "upper"
        """The directory of files to add to the root file system. It must be filled before the host starts."""
        self.files.mkdir()
        self._directory = directory
        self._group = Path(_cgroups() or "") / f"pgsluice-host-{uuid4().hex[:8]}"
        self._context = ExitStack()
        self._pid = 0

    def __enter__(self) -> Self:
        with ExitStack() as context:
            places = {"LOWER": base(SYSTEMD), "UPPER": self.files}
            for name in ("WORK", "ROOT"):
                places[name] = self._directory / name.lower()
                places[name].mkdir()
            self._group.mkdir()
            context.callback(_remove_groups, self._group)
            unshare = "exec unshare --mount --pid --uts --ipc --cgroup --fork --kill-child --propagation private"
            script = f'echo $$ > "{self._group}/cgroup.procs"; {unshare} sh -c "$0"'
            environment = {**os.environ, **{name: str(place) for name, place in places.items()}}
            log = context.enter_context((self._directory / "log").open("w"))
            process = subprocess.Popen(
                ["sh", "-c", script, _BOOT], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            context.callback(process.wait)
            context.callback(process.kill)
            self._wait_until_up(process)
            self._context = context.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._context.close()

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the host."""
        inside = ["nsenter", "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--target", str(self._pid)]
        return subprocess.run([*inside, *command], capture_output=True, text=True, check=False)

    def property_of(self, unit: str, name: str) -> str:
        """Return a property of a unit, as reported by systemd."""
        return self.run("systemctl", "show", "--value", "--property", name, unit).stdout.strip()

    def _wait_until_up(self, process: "subprocess.Popen[bytes]") -> None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + START_S
        while not self._is_up(children):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServerError(f"systemd does not start: {(self._directory / 'log').read_text()}")
            time.sleep(POLL_S)

    def _is_up(self, children: Path) -> bool:
        with suppress(OSError, LookupError):
            self._pid = int(children.read_text().split()[0])
        return bool(self._pid) and self.run("systemctl", "is-system-running").stdout.strip() in {"running", "degraded"}


def _cgroups() -> str | None:
    """Return the mount point of cgroups version 2."""
    mounts = (line.split() for line in _MOUNTS.read_text().splitlines())
    return next((place for _, place, kind, *_ in mounts if kind == "cgroup2"), None)


def _remove_groups(group: Path) -> None:
    """Remove a cgroup and its subgroups, and wait until their processes have ended."""
    deadline = time.monotonic() + STOP_S
    while group.exists() and time.monotonic() < deadline:
        for directory, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):
                Path(directory).rmdir()
        time.sleep(POLL_S)
    assert not group.exists(), f"processes are left in {group}"


def copy(source: Path, target: Path, mode: int) -> None:
    """Copy a file, and create the directories of ``target``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)
