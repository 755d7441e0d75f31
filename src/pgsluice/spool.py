"""Where rows wait whose transaction has not committed yet: in memory up to a bound, then in files.

Each transaction has a buffer and, once memory is short, a file that is only appended to. The files are a
cache: PostgreSQL sends everything again to the next session, so nothing is synced, and all of it is removed
at the end; what is read back is checked to be what was written. Every process has a directory of its own
under ``buffer.spill_dir``, held by a lock, so that a frozen owner and its successor on the same host cannot
meet; what processes left behind that are gone, the next one removes.
"""

import asyncio
import fcntl
import os
import shutil
import struct
import tempfile
import zlib
from array import array
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import structlog

from pgsluice.errors import ConfigError, UnavailableError
from pgsluice.finding import Finding, Verdict

log = structlog.get_logger(__name__)

READ_BYTES = 256 * 1024
"""Files are read in blocks of this size, and each has a checksum."""

ROOM_BYTES = 1024 * 1024
"""Memory is freed between reads from the socket; what one read brings has to fit below the bound."""

_PREFIX = ".pgsluice-spill-"
_LOCK = "lock"

_PIECE = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class SpoolOptions:
    """``directory``: of this process. ``memory_max``, ``spill_max``: bytes of all transactions together."""

    directory: Path
    memory_max: int
    spill_max: int


class SpillDirectory:
    """A directory that belongs to this process, under ``parent``; entering makes it, leaving removes it."""

    def __init__(self, parent: str) -> None:
        self._parent = Path(parent)
        self.path = self._parent
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._parent.mkdir(parents=True, exist_ok=True)
            with (self._parent / _LOCK).open("ab") as one_at_a_time:
                fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
                self._remove_leftovers()
                self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._parent))
                self._lock = _locked(self.path / _LOCK)
        except OSError as error:
            raise ConfigError(
                f"The directory for transactions that do not fit into memory cannot be used: {error}. Set "
                "buffer.spill_dir to one that pgsluice may write to, on a local disk."
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()

    def _remove_leftovers(self) -> None:
        for found in self._parent.glob(f"{_PREFIX}*"):
            # Without the file it is not one of ours, whatever its name.
            lock = _locked(found / _LOCK) if (found / _LOCK).is_file() else None
            if lock is not None:
                log.info("removing what an earlier process left behind", directory=str(found))
                shutil.rmtree(found, ignore_errors=True)
                lock.close()


def check(parent: str) -> Finding:
    """Say whether ``parent`` can be used, and how much room there is."""
    name = "buffer.spill_dir"
    found = next(path for path in (Path(parent), *Path(parent).absolute().parents) if path.exists())
    if not found.is_dir() or not os.access(found, os.W_OK | os.X_OK):
        remedy = "Make the directory, or choose another."
        return Finding(name, Verdict.FAIL, f"{found} is not a directory that may be written to", remedy)
    return Finding(name, Verdict.OK, f"{parent}, {shutil.disk_usage(found).free // 1024**2} MiB free")


def _locked(path: Path) -> IO[bytes] | None:
    """Return the file with a lock on it, None while another process holds it."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


class Spool:
    """The rows of one session; :class:`pgsluice.transaction.Spool`."""

    def __init__(self, options: SpoolOptions) -> None:
        self._options = options
        self._open: set[SpooledRows] = set()
        self._opened = 0
        self.memory = 0
        """Bytes in memory."""
        self.spilled = 0
        """Bytes in files."""

    def open(self) -> "SpooledRows":
        """Return room for one more transaction."""
        self._opened += 1
        rows = SpooledRows(self, self._options.directory / str(self._opened))
        self._open.add(rows)
        return rows

    async def relieve(self) -> None:
        """Move rows into files until memory is below its bound again; UnavailableError when that cannot be."""
        if self.memory <= self._memory_bound:
            return
        spilling = asyncio.get_running_loop().run_in_executor(None, self._spill)
        try:
            await asyncio.shield(spilling)
        finally:
            await asyncio.wait((spilling,))  # a thread cannot be cancelled, and whoever comes next clears up

    @property
    def _memory_bound(self) -> int:
        return max(self._options.memory_max - ROOM_BYTES, 0)

    def _spill(self) -> None:
        """Spill the largest first: few files, and large writes."""
        for rows in sorted(self._open, key=lambda one: one.in_memory, reverse=True):
            if self.memory <= self._memory_bound:
                break
            self._check_room(rows.in_memory)
            rows.spill()

    def _check_room(self, size: int) -> None:
        if self.spilled + size > self._options.spill_max:
            raise UnavailableError(
                f"Transactions that have not committed yet need more than buffer.spill_max ({self._options.spill_max} "
                f"bytes) beside buffer.memory_max; {len(self._open)} of them are open. Raise buffer.spill_max if the "
                "disk has room, or commit in smaller transactions. Nothing is lost: all of it will be sent again."
            )

    def forget(self, rows: "SpooledRows") -> None:
        """Take ``rows`` out of the account."""
        self._open.discard(rows)

    def close(self) -> None:
        """Forget everything."""
        for rows in list(self._open):
            rows.discard()


class SpooledRows:
    """What waits of one transaction: its file, and behind that its buffer."""

    def __init__(self, spool: Spool, path: Path) -> None:
        self._spool = spool
        self._path = path
        self._buffer = bytearray()
        self._in_file = 0
        self._checksums = array("L")
        """CRC-32 of each block of the file; the last block may be short."""

    @property
    def in_memory(self) -> int:
        """Bytes in memory."""
        return len(self._buffer)

    def append(self, number: int, data: bytes) -> None:
        """Add a piece; ``number`` comes back with it."""
        self._buffer += _PIECE.pack(number, len(data))
        self._buffer += data
        self._spool.memory += _PIECE.size + len(data)

    def spill(self) -> None:
        """Move the buffer to the end of the file."""
        size = len(self._buffer)
        try:
            # A file that is there already is another transaction's, which could not be removed.
            with self._path.open("ab" if self._in_file else "xb", buffering=0) as file:
                _write_all(file, self._buffer)
        except OSError as error:
            raise _unusable(error) from error
        self._add_checksums(self._buffer)
        self._buffer = bytearray()
        self._in_file += size
        self._spool.memory -= size
        self._spool.spilled += size

    def _add_checksums(self, data: bytearray) -> None:
        """Go on where the file ended before ``data``."""
        begun = self._in_file % READ_BYTES
        with memoryview(data) as view:
            if begun:
                self._checksums[-1] = zlib.crc32(view[: READ_BYTES - begun], self._checksums[-1])
            for at in range(READ_BYTES - begun if begun else 0, len(view), READ_BYTES):
                self._checksums.append(zlib.crc32(view[at : at + READ_BYTES]))

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Return the pieces; UnavailableError before the first one that is not as it was written."""
        read = bytearray()
        for block in self._blocks() if self._in_file else ():
            read += block
            taken = yield from _pieces(read)
            del read[:taken]
        yield from _pieces(self._buffer)

    def _blocks(self) -> Iterator[bytes]:
        try:
            with self._path.open("rb", buffering=READ_BYTES) as file:
                for checksum in self._checksums:
                    block = file.read(READ_BYTES)
                    if zlib.crc32(block) != checksum:
                        raise _changed(self._path)
                    yield block
        except OSError as error:
            raise _unusable(error) from error

    def discard(self) -> None:
        """Forget everything."""
        if self._in_file:
            with suppress(OSError):
                self._path.unlink()
        self._spool.memory -= len(self._buffer)
        self._spool.spilled -= self._in_file
        self._buffer = bytearray()
        self._in_file = 0
        self._spool.forget(self)


def _pieces(buffer: bytearray) -> Generator[tuple[int, bytes], None, int]:
    """Yield what is complete; the bytes that it took."""
    at, end = 0, len(buffer)
    with memoryview(buffer) as view:
        while at + _PIECE.size <= end:
            number, size = _PIECE.unpack_from(view, at)
            behind = at + _PIECE.size + size
            if behind > end:
                break
            yield number, bytes(view[behind - size : behind])
            at = behind
    return at


def _write_all(file: IO[bytes], data: bytearray) -> None:
    """Write all of ``data``: a file without buffer may take less than it is given."""
    with memoryview(data) as view:
        written = 0
        while written < len(view):
            written += file.write(view[written:])


def _unusable(error: OSError) -> UnavailableError:
    return UnavailableError(
        f"Rows of a transaction that has not committed yet could not be kept on disk: {error}. Make room under "
        "buffer.spill_dir, or choose another directory. Nothing is lost: all of it will be sent again."
    )


def _changed(path: Path) -> UnavailableError:
    return UnavailableError(
        f"{path}, which holds rows of a transaction that has not committed yet, is not as it was written. Let nothing "
        "else work under buffer.spill_dir, and look after the disk. Nothing is lost: all of it will be sent again."
    )
