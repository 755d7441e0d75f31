"""Checks all prerequisites on this machine before anything is fetched or started.

This module and its imports run on every Python since 3.7, so that the module can report a Python that is too old.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import pwd
import re
import shutil
import subprocess
import sys

from sandbox.errors import MissingPrerequisites

PYTHON_MINIMUM = (3, 11)

JAVA_MINIMUM = 17
"""The version that Kafka 4 and Spark 4 need."""

POSTGRES_PLATFORMS = {"x86_64": "linux-amd64", "aarch64": "linux-arm64v8"}
"""Maps a machine's name according to ``uname`` to its name in the artifacts of PostgreSQL."""

SERVER_ACCOUNTS = ("postgres", "nobody")
"""The accounts for PostgreSQL if root starts it. The first account that exists is used."""

PYTHON_MODULES = {
    "psycopg": "pip install 'psycopg[binary]'",
    "confluent_kafka": "pip install confluent-kafka",
    "lzma": "build Python with liblzma (Debian: liblzma-dev)",
}


@functools.lru_cache(maxsize=None)  # noqa: UP033 - functools.cache does not exist in the oldest Python on which this must run
def require(*, fetching: bool) -> None:
    """Raise MissingPrerequisites with a list of all missing prerequisites, if there are any.

    If nothing but Maven is missing, this is an error only if ``fetching`` is true.
    """
    found = [*_platform_problems(), *_python_problems(), *_java_problems(), *_account_problems()]
    only_for_fetching = _maven_problems()
    if found or (fetching and only_for_fetching):
        listed = "\n".join(f"* {problem}" for problem in found + only_for_fetching)
        raise MissingPrerequisites(f"The sandbox cannot run here:\n{listed}")


def java() -> str:
    """Return the command for Java: the path in ``JAVA_HOME``, or by default the program on PATH."""
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else "java"  # noqa: PTH118 - the name of a command, not a path


def _platform_problems() -> list[str]:
    if sys.platform == "linux" and platform.machine() in POSTGRES_PLATFORMS:
        return []
    machines = " or ".join(POSTGRES_PLATFORMS)
    return [f"{sys.platform} on {platform.machine()}: use Linux on {machines}"]


def _python_problems() -> list[str]:
    found = []
    recent = sys.version_info >= PYTHON_MINIMUM
    if not recent:
        minimum = ".".join(map(str, PYTHON_MINIMUM))
        found.append(f"Python {platform.python_version()}: install {minimum} or newer")
    for name, remedy in PYTHON_MODULES.items():
        if importlib.util.find_spec(name) is None:
            found.append(f"Python module {name} is missing: {remedy}")
    if sys.platform == "linux" and recent and not _has_pidfd():
        found.append("the kernel has no pidfd_open: use Linux 5.3 or newer, or allow the call in the container")
    return found


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _java_problems() -> list[str]:
    remedy = f"install a JDK, version {JAVA_MINIMUM} or newer (Debian: openjdk-17-jdk-headless), or set JAVA_HOME"
    if shutil.which(java()) is None:
        return [f"Java is not on the PATH: {remedy}"]
    said = subprocess.run([java(), "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', said.stdout.decode(errors="replace"))
    if version is None:
        return [f"{java()} does not print its version: {remedy}"]
    if int(version[1]) < JAVA_MINIMUM:
        return [f"Java {version[1]} is too old: {remedy}"]
    return []


def _maven_problems() -> list[str]:
    return [] if shutil.which("mvn") else ["Maven is not on the PATH: install it (Debian: maven)"]


def _account_problems() -> list[str]:
    known = {entry.pw_name for entry in pwd.getpwall()}
    if os.geteuid() != 0 or not known.isdisjoint(SERVER_ACCOUNTS):
        return []
    accounts = " or ".join(SERVER_ACCOUNTS)
    return [f"PostgreSQL refuses to run as root: add an account {accounts}, or run this as another user"]
