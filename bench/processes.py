"""Reads CPU time and peak memory of processes from /proc. Runs child processes, which answer in lines of JSON.

https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).parents[1]
END_TIMEOUT_S = 10


def cpu_ticks(stat: str) -> int:
    """Return utime + stime from the text of ``/proc/PID/stat``. The sum includes the threads that have ended."""
    fields = stat.rpartition(")")[2].split()  # the name of the program, in parentheses, may contain any character
    return int(fields[11]) + int(fields[12])


def peak_kib(status: str) -> int:
    """Return the largest resident set from the text of ``/proc/PID/status``."""
    (peak,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak)


def busy_ticks(stat: str) -> tuple[int, int]:
    """Return the busy time of all processors and the time stolen by the hypervisor, from the text of ``/proc/stat``."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(word) for word in stat.split()[1:9])
    return user + nice + system + irq + softirq, steal


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    return cpu_ticks(Path(f"/proc/{pid}/stat").read_text()) / TICKS_PER_S


def peak_mib(pid: int) -> float:
    """Return the peak memory of a process."""
    return peak_kib(Path(f"/proc/{pid}/status").read_text()) / 1024


class Meter:
    """Measures CPU seconds: of some processes, of all other processes together, and those that the hypervisor stole."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        """Start measuring. ``pids`` has the pid of each role."""
        self._pids = dict(pids)
        self._before = self._now()

    def read(self) -> dict[str, float]:
        """Return the CPU seconds used since the start, by role, and those of ``others`` and ``stolen``.

        Raise FileNotFoundError if one of the processes no longer exists.
        """
        now = self._now()
        used = {role: value - self._before[role] for role, value in now.items()}
        busy = used.pop("busy")
        stolen = used.pop("stolen")
        return {**used, "others": busy - sum(used.values()), "stolen": stolen}

    def _now(self) -> dict[str, float]:
        busy, stolen = busy_ticks(Path("/proc/stat").read_text())
        roles = {role: cpu_seconds(pid) for role, pid in self._pids.items()}
        return {**roles, "busy": busy / TICKS_PER_S, "stolen": stolen / TICKS_PER_S}


class Child:
    """A module of the bench that runs in a separate process until the context ends."""

    def __init__(self, module: str, arguments: Mapping[str, Any]) -> None:
        """Start ``module``, which receives the ``arguments`` as JSON."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        """The pid of the child."""
        return self._process.pid

    def read(self) -> dict[str, Any]:
        """Return the child's next answer. Raise RuntimeError if the child has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with exit code {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def tell(self, word: str = "") -> None:
        """Send a line to the child."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()


def child_main(run: Callable[[dict[str, Any]], None]) -> None:
    """Call ``run`` with the arguments that the bench has passed as JSON. Runs in the child."""
    run(json.loads(sys.argv[1]))


def say(**values: object) -> None:
    """Send an answer to the bench. Runs in the child."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def wait_for_word() -> None:
    """Wait until the bench sends a line or has ended. Runs in the child."""
    sys.stdin.readline()
