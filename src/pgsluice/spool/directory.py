"""The directory under ``buffer.spill_dir`` in which a process keeps rows that wait for their commit.

Every process has its own directory and holds a lock on it. So if the process that owned the slot is frozen, and another
process on the same host takes over, the two never share files. A process removes the directories of processes that have
ended.
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
"""When a process ends, it waits at most this long for the removal of its directory. The next process removes what is
left."""

_SETTING = "buffer.spill_dir"
_PREFIX = ".pgsluice-spill-"
_NEW_PREFIX = ".pgsluice-new-"
_LOCK = "lock"


class SpillDirectory:
    """A directory of this process under ``parent``. As a context manager, the object creates and removes the directory.

    Only the user of the process can access it. All files in it are opened relative to its descriptor, and links are not
    followed. So people who may rename entries of ``parent`` cannot make pgsluice write, read or remove other files.
    """

    def __init__(self, parent: str, disk: Disk) -> None:
        self._parent = Path(parent)
        self._disk = disk
        self.path = self._parent
        self._held: _Held | None = None

    @property
    def descriptor(self) -> int | None:
        """The descriptor of the directory, or None outside the context."""
        return None if self._held is None else self._held.descriptor

    async def __aenter__(self) -> Self:
        """Create the directory. Raise ConfigError if that is not possible, and UnavailableError if the disk hangs."""
        try:
            self._held = await self._disk.run(self._make)
        except OSError as error:
            raise ConfigError(
                f"The directory for transactions that do not fit into memory cannot be used: {error}. Set "
                f"buffer.spill_dir to a directory on a local disk that pgsluice (uid {os.geteuid()}) may write to."
            ) from error
        self.path = self._held.path
        self._disk.later(self._remove_leftovers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._held is not None, "the context was entered"
        try:
            async with asyncio.timeout(max(EXIT_S - self._disk.busy_s, 0.0)):
                await self._disk.run(self._held.remove)
        except TimeoutError:
            log.warning("files could not be removed in time; the next process removes them", directory=str(self.path))

    # All methods below run in the disk's thread.

    def _make(self) -> "_Held":
        """Create the directory under a temporary name, lock it, and then rename it.

        Other processes remove directories that have a final name and whose lock is free. They must not find ours before
        we hold its lock. Renaming the directory keeps the lock, because the lock belongs to the lock file.
        """
        self._parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=_NEW_PREFIX, dir=self._parent))
        descriptor = os.open(made, _DIRECTORY)
        if not _is_ours(descriptor):
            os.close(descriptor)
            raise PermissionError(errno.EPERM, "The directory that was just made belongs to another user", str(made))
        os.close(os.open(_LOCK, os.O_CREAT | os.O_EXCL | _PLAIN, 0o600, dir_fd=descriptor))
        lock = _locked(descriptor)
        assert lock is not None, "nobody else knows the directory yet"
        path = made.with_name(_PREFIX + made.name.removeprefix(_NEW_PREFIX))
        made.rename(path)
        return _Held(path, descriptor, lock)

    def _remove_leftovers(self) -> None:
        for path in self._parent.glob(f"{_PREFIX}*"):
            # An OSError means either that the directory has no lock file, so it is not ours, or that another process is
            # removing it.
            with suppress(OSError):
                found = _taken(path)
                if found is not None:
                    log.info("removing the files of an earlier process", directory=str(path))
                    self._remove_leftover(found)

    def _remove_leftover(self, found: "_Held") -> None:
        """Remove a directory, with one job for each file, because one long job would look like a disk that hangs."""
        for name in found.files():
            self._disk.later(partial(os.unlink, name, dir_fd=found.descriptor))
        self._disk.later(found.remove)


_PLAIN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""With O_NONBLOCK, opening the file does not block if somebody has put a pipe or a device in its place."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _Held:
    """A directory of ours whose lock this process holds."""

    path: Path
    descriptor: int
    lock: int

    def files(self) -> list[str]:
        """Return the names of the files with rows.

        The only other file that we create in the directory is the lock file.
        """
        names = os.listdir(self.descriptor)  # noqa: PTH208 - by descriptor
        return [name for name in names if name.isdigit()]

    def remove(self) -> None:
        """Remove the directory with its files.

        If somebody has put another directory in its place, that directory is removed only if it is empty.
        """
        for name in [*self.files(), _LOCK]:
            with suppress(OSError):
                os.unlink(name, dir_fd=self.descriptor)
        with suppress(OSError):
            self.path.rmdir()
        os.close(self.descriptor)
        os.close(self.lock)


def _taken(path: Path) -> _Held | None:
    """Lock and return the directory at ``path``, which an earlier process has left behind.

    Return None if it is in use, or belongs to another user. Raise OSError if ``path`` is a link, or not a directory.
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
    """Lock a directory and return its lock file, or None if another process holds the lock, or the file is not ours."""
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
    "Give the directory to the user of pgsluice. Then either remove the write permission of all other users "
    "(chmod o-w), or set the sticky bit (chmod +t). If there are no other users, as in a container, nothing has to be "
    "done."
)


async def check(parent: str, disk: Disk) -> Finding:
    """Return whether ``parent`` can be used, and how much room there is."""
    try:
        return await disk.run(partial(_look_at, parent))
    except UnavailableError as error:
        return Finding(
            _SETTING, Verdict.FAIL, str(error), "Repair the disk, or choose another directory.", error.exit_code
        )


def _look_at(parent: str) -> Finding:
    found = next(path for path in (Path(parent), *Path(parent).absolute().parents) if path.exists())
    if not found.is_dir() or not os.access(found, os.W_OK | os.X_OK):
        remedy = f"Make {parent} a directory that pgsluice may write to, or choose another one."
        return Finding(_SETTING, Verdict.FAIL, f"{found} is not a directory that may be written to", remedy)
    if _is_open_to_others(found):
        detail = (
            f"other users can rename or remove files in {found}, which would stop pgsluice. They cannot read the files"
        )
        return Finding(_SETTING, Verdict.WARN, detail, _CLOSE)
    return Finding(_SETTING, Verdict.OK, f"{parent}, {shutil.disk_usage(found).free // 1024**2} MiB free")


def _is_open_to_others(directory: Path) -> bool:
    """Return whether other users can rename entries of ``directory``.

    A group that may write is trusted, because the volumes of containers usually allow this. If root runs the check, the
    owner of the directory is assumed to be the user of the daemon, as with ``deploy/systemd``.
    """
    found, user = directory.stat(), os.geteuid()
    if user != 0 and found.st_uid not in (0, user):
        return True
    return bool(found.st_mode & stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
