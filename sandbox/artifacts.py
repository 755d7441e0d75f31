"""Provides the artifacts that are pinned in ``pom.xml``. Maven downloads them into the cache once.

``installation``, ``kafka`` and ``spark`` use this module.

A cache entry appears under its name only when it is complete, and is never changed afterwards. All entries are in a
directory whose name is a digest of the POM.
"""

import fcntl
import hashlib
import os
import platform
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

from sandbox.account import SHARED_DIRECTORY, Account, can_enter
from sandbox.errors import FetchError
from sandbox.prerequisites import POSTGRES_PLATFORMS, require

POM = Path(__file__).with_name("pom.xml")
_POM_NAMES = {"m": "http://maven.apache.org/POM/4.0.0"}

CACHE_VARIABLE = "PGSLUICE_SANDBOX_CACHE"

OTHERS_MAY_READ = 0o755
OTHERS_MAY_WRITE = 0o022


def targets() -> list[str]:
    """Return the names of all targets that can be fetched: the profiles of the POM."""
    profiles = ET.parse(POM).iterfind("m:profiles/m:profile/m:id", _POM_NAMES)  # noqa: S314 - our own file
    return [profile.text or "" for profile in profiles]


def fetch(target: str) -> Path:
    """Return the directory with the jars of ``target``. Fetch them if necessary."""
    if target not in targets():
        raise FetchError(f"there is no {target}, only {', '.join(targets())}")
    options = ["-P", target, f"-Dpostgres.platform={POSTGRES_PLATFORMS.get(platform.machine(), '')}"]
    return make_entry(cache_root(), target, lambda entry: copy_dependencies(POM, entry, options))


def make_entry(root: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """Return the cache entry ``name``. If it does not exist, create it with ``fill``, in one process at a time."""
    generation = root / _pom_key()
    entry = generation / name
    if entry.exists():
        return entry
    _make_readable(generation)
    with _locked(generation / f"{name}.lock"):
        if not entry.exists():
            _make_complete(entry, fill)
    return entry


def find_entry(root: Path, name: str) -> Path | None:
    """Return the cache entry ``name``, or None if it does not exist."""
    entry = root / _pom_key() / name
    return entry if entry.exists() else None


def _make_complete(entry: Path, fill: Callable[[Path], None]) -> None:
    unfinished = entry.with_name(f"{entry.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # exists if an earlier process was killed
    _make_readable(unfinished)
    fill(unfinished)
    unfinished.rename(entry)


@cache
def cache_root() -> Path:
    """Return the directory of the cache: ``PGSLUICE_SANDBOX_CACHE``, or by default one in the home directory."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return _own_directory(Path(chosen).resolve())
    try:
        return _own_directory(Path.home() / ".cache" / "pgsluice-sandbox")
    except OSError:  # the account has no usable home directory
        return _shared_root()


@cache
def server_root(account: Account) -> Path:
    """Return a cache that ``account`` can read. Only root can read a cache in root's home directory."""
    return cache_root() if can_enter(account, cache_root()) else _shared_root()


def _shared_root() -> Path:
    return _own_directory(SHARED_DIRECTORY / f"pgsluice-sandbox-{os.geteuid()}")


def _own_directory(path: Path) -> Path:
    """Create ``path`` if necessary, and return it. Raise FetchError if others could have put files there."""
    _make_readable(path)
    status = path.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & OTHERS_MAY_WRITE:
        raise FetchError(f"{path} must belong to uid {os.geteuid()}, and nobody else may write to it")
    return path


def _make_readable(path: Path) -> None:
    """Create a directory that others may read, regardless of the umask."""
    if not path.exists():
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(OTHERS_MAY_READ)


@cache
def _pom_key() -> str:
    return hashlib.sha256(POM.read_bytes()).hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def copy_dependencies(pom: Path, directory: Path, options: Sequence[str] = ()) -> None:
    """Fetch the artifacts of ``pom`` into ``directory``, an unfinished entry. Raise FetchError if Maven fails."""
    require(fetching=True)
    command = ["mvn", "-B", "-q", "-f", str(pom), *options, "dependency:copy-dependencies"]
    command.append(f"-DoutputDirectory={directory}")
    # By default, Maven keeps its own copies of artifacts in the account's home directory.
    if not os.access(pwd.getpwuid(os.geteuid()).pw_dir, os.W_OK):
        command.append(f"-Dmaven.repo.local={cache_root() / 'm2'}")
    with _locked(cache_root() / "maven.lock"):  # two Maven processes at once can damage Maven's copies
        maven = subprocess.run(command, capture_output=True, text=True, check=False)
    if maven.returncode != 0:
        raise FetchError(f"fetching {directory.stem} failed:\n{maven.stdout}{maven.stderr}")


def output_of(
    command: Sequence[str], *, directory: Path | None = None, variables: Mapping[str, str] | None = None
) -> str:
    """Return the output of a command that fetches or builds something. Raise FetchError if the command fails.

    If ``variables`` are given, they are the whole environment of the command.
    """
    found = subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise FetchError(f"{' '.join(command)} failed:\n{found.stdout}{found.stderr}")
    return found.stdout
