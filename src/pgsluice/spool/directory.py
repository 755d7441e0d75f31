"""The directory in which a process keeps its rows, under ``buffer.spill_dir``.

Every process has one of its own, held by a lock, so that a frozen owner and its successor on the same host cannot meet.
What processes left behind that are gone, the next one removes.
"""

import asyncio
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from pgsluice.errors import ConfigError, UnavailableError
from pgsluice.finding import Finding, Verdict
from pgsluice.spool.disk import Disk

log = structlog.get_logger(__name__)

EXIT_S = 5.0
"""How long a process that ends waits for its directory to be removed. The next process removes what is left."""

_SETTING = "buffer.spill_dir"
_PREFIX = ".pgsluice-spill-"
_NEW_PREFIX = ".pgsluice-new-"
_LOCK = "lock"


class SpillDirectory:
    """A directory that belongs to this process, under ``parent``; entering makes it, leaving removes it.

    Only its user can look into it. Everything in it is reached by its descriptor and without following links, so those
    who may rename what is under ``parent`` cannot have other files written, read or removed.
    """

    def __init__(self, parent: str, disk: Disk) -> None:
        self._parent = Path(parent)
        self._disk = disk
        self.path = self._parent
        self._held: _Held | None = None

    @property
    def descriptor(self) -> int | None:
        """Of the directory, from entering to leaving."""
        return None if self._held is None else self._held.descriptor

    async def __aenter__(self) -> Self:
        """Make the directory: ConfigError when that is not possible, UnavailableError when the disk hangs."""
        try:
            self._held = await self._disk.run(self._make)
        except OSError as error:
            raise ConfigError(
                f"The directory for transactions that do not fit into memory cannot be used: {error}. Set "
                f"buffer.spill_dir to one that pgsluice (uid {os.geteuid()}) may write to, on a local disk."
            ) from error
        self.path = self._held.path
        self._disk.later(self._remove_leftovers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._held is not None, "it was entered"
        try:
            async with asyncio.timeout(max(EXIT_S - self._disk.busy_s, 0.0)):
                await self._disk.run(self._held.remove)
        except TimeoutError:
            log.warning("files could not be removed in time; the next process removes them", directory=str(self.path))

    # Everything below runs in the disk's thread.

    def _make(self) -> "_Held":
        """Make the directory with its lock, under another name first.

        Other processes remove directories under the final name whose lock is free, and ours must not be among them in
        the moment before we hold its lock. The lock stays with the file when the directory is renamed.
        """
        self._parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=_NEW_PREFIX, dir=self._parent))
        descriptor = os.open(made, _DIRECTORY)
        if not _is_ours(descriptor):
            os.close(descriptor)
            raise PermissionError(errno.EPERM, "What was just made there belongs to another user", str(made))
        os.close(os.open(_LOCK, os.O_CREAT | os.O_EXCL | _PLAIN, 0o600, dir_fd=descriptor))
        lock = _locked(descriptor)
        assert lock is not None, "nobody else knows the directory yet"
        path = made.with_name(_PREFIX + made.name.removeprefix(_NEW_PREFIX))
        made.rename(path)
        return _Held(path, descriptor, lock)

    def _remove_leftovers(self) -> None:
        for path in self._parent.glob(f"{_PREFIX}*"):
            # Without the lock file it is not one of ours, whatever its name. Another process may be removing it, too.
            with suppress(OSError):
                found = _taken(path)
                if found is not None:
                    log.info("removing what an earlier process left behind", directory=str(path))
                    self._remove_leftover(found)

    def _remove_leftover(self, found: "_Held") -> None:
        """Submit a job for each file: large files take their time, and what waits meanwhile must not look late."""
        for name in found.files():
            self._disk.later(partial(os.unlink, name, dir_fd=found.descriptor))
        self._disk.later(found.remove)


_PLAIN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""A pipe or a device in place of a file is opened, too, but not waited for."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _Held:
    """A directory of ours whose lock this process holds."""

    path: Path
    descriptor: int
    lock: int

    def files(self) -> list[str]:
        """Return the names of the files that hold rows; nothing else in the directory is ours."""
        names = os.listdir(self.descriptor)  # noqa: PTH208 - by descriptor
        return [name for name in names if name.isdigit()]

    def remove(self) -> None:
        """Remove it with its files. If somebody has put another in its place, that one stays, unless it is empty."""
        for name in [*self.files(), _LOCK]:
            with suppress(OSError):
                os.unlink(name, dir_fd=self.descriptor)
        with suppress(OSError):
            self.path.rmdir()
        os.close(self.descriptor)
        os.close(self.lock)


def _taken(path: Path) -> _Held | None:
    """Return a directory that a process of ours left behind; None when it is in use, or another user's.

    OSError when it is none, or a link.
    """
    descriptor = os.open(path, _DIRECTORY)
    lock = None
    try:
        if _is_ours(descriptor):
            lock = _locked(descriptor)
    finally:
        if lock is None:
            os.close(descriptor)
    return None if lock is None else _Held(path, descriptor, lock)


def _locked(directory: int) -> int | None:
    """Return the lock file of a directory, with a lock on it; None while another process holds it, or if not ours."""
    lock = os.open(_LOCK, _PLAIN, dir_fd=directory)
    is_held = False
    try:
        if stat.S_ISREG(os.fstat(lock).st_mode) and _is_ours(lock):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = True
    except BlockingIOError:
        pass
    finally:
        if not is_held:
            os.close(lock)
    return lock if is_held else None


def _is_ours(descriptor: int) -> bool:
    return os.fstat(descriptor).st_uid == os.geteuid()


_CLOSE = (
    "Give the directory to the user of pgsluice, and take the right to write from all others (chmod o-w), or set the "
    "sticky bit (chmod +t). Where no other user exists, as in a container, it may stay."
)


async def check(parent: str, disk: Disk) -> Finding:
    """Say whether ``parent`` can be used, and how much room there is."""
    try:
        return await disk.run(partial(_look_at, parent))
    except UnavailableError as error:
        return Finding(
            _SETTING, Verdict.FAIL, str(error), "Repair the disk, or choose another directory.", error.exit_code
        )


def _look_at(parent: str) -> Finding:
    found = next(path for path in (Path(parent), *Path(parent).absolute().parents) if path.exists())
    if not found.is_dir() or not os.access(found, os.W_OK | os.X_OK):
        remedy = "Make the directory, or choose another."
        return Finding(_SETTING, Verdict.FAIL, f"{found} is not a directory that may be written to", remedy)
    if _is_open_to_others(found):
        detail = f"other users can rename or remove what is in {found}, which would stop pgsluice. They cannot read it"
        return Finding(_SETTING, Verdict.WARN, detail, _CLOSE)
    return Finding(_SETTING, Verdict.OK, f"{parent}, {shutil.disk_usage(found).free // 1024**2} MiB free")


def _is_open_to_others(directory: Path) -> bool:
    """Return whether other users can rename what is in it. A group that may write is trusted: volumes come so."""
    found = directory.stat()
    if found.st_uid not in (0, os.geteuid()):
        return True
    return bool(found.st_mode & stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
