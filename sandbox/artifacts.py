"""What ``pom.xml`` pins, fetched once through Maven into the cache. Used by postgres, kafka and spark.

An entry of the cache appears under its name only when it is complete, and is never changed afterwards.
"""

import fcntl
import hashlib
import os
import platform
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

from sandbox.account import SHARED_DIRECTORY, Account, can_enter

POM = Path(__file__).with_name("pom.xml")
_POM_NAMES = {"m": "http://maven.apache.org/POM/4.0.0"}

CACHE_VARIABLE = "PGSLUICE_SANDBOX_CACHE"

POSTGRES_PLATFORMS = {"x86_64": "linux-amd64", "aarch64": "linux-arm64v8"}
"""What the PostgreSQL binaries call the machines that ``uname`` knows."""


class FetchError(Exception):
    """Maven could not get what the POM names; the message is Maven's."""


def targets() -> list[str]:
    """Return the names of all that can be fetched: the profiles of the POM."""
    profiles = ET.parse(POM).iterfind("m:profiles/m:profile/m:id", _POM_NAMES)  # noqa: S314 - our own file
    return [profile.text or "" for profile in profiles]


def fetch(target: str) -> Path:
    """Return the directory with the jars of ``target``, fetched if need be."""
    return make_entry(cache_root(), target, lambda directory: _copy_dependencies(target, directory))


def make_entry(root: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """Return the cache entry ``name``; if it is not there, ``fill`` makes it. One process fills at a time."""
    generation = root / _pom_key()
    entry = generation / name
    if entry.exists():
        return entry
    generation.mkdir(mode=0o755, parents=True, exist_ok=True)
    with _locked(root / "lock"):
        if not entry.exists():
            unfinished = Path(tempfile.mkdtemp(prefix=f"{name}.unfinished-", dir=generation))
            try:
                fill(unfinished)
                unfinished.rename(entry)
            except BaseException:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
    return entry


@cache
def cache_root() -> Path:
    """Return the directory of the cache: ``PGSLUICE_SANDBOX_CACHE``, else below the home directory."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return _private_directory(Path(chosen).resolve())
    try:
        return _private_directory(Path.home() / ".cache" / "pgsluice-sandbox")
    except OSError:  # accounts without a home
        return _fallback_root()


@cache
def server_root(account: Account) -> Path:
    """Return a cache that ``account`` can read too: root's home is closed to others."""
    return cache_root() if can_enter(account, cache_root()) else _fallback_root()


def _fallback_root() -> Path:
    return _private_directory(SHARED_DIRECTORY / f"pgsluice-sandbox-{os.geteuid()}")


def _private_directory(path: Path) -> Path:
    """Make ``path`` if need be; PermissionError if others could have put something there."""
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{path} must be owned by uid {os.geteuid()}, and writable by nobody else")
    return path


@cache
def _pom_key() -> str:
    return hashlib.sha256(POM.read_bytes()).hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _copy_dependencies(target: str, directory: Path) -> None:
    command = ["mvn", "-B", "-q", "-f", str(POM), "-P", target, "dependency:copy-dependencies"]
    command += [
        f"-DoutputDirectory={directory}",
        f"-Dpostgres.platform={POSTGRES_PLATFORMS[platform.machine()]}",
    ]
    if not os.access(pwd.getpwuid(os.geteuid()).pw_dir, os.W_OK):  # where Maven keeps its own copies
        command.append(f"-Dmaven.repo.local={cache_root() / 'm2'}")
    maven = subprocess.run(command, capture_output=True, text=True, check=False)
    if maven.returncode != 0:
        raise FetchError(f"fetching {target} failed:\n{maven.stdout}{maven.stderr}")
    directory.chmod(0o755)
