"""Keeps rows whose transaction has not committed yet: in memory up to a limit, and all further rows in files.

Each transaction has a buffer. When memory is short, a buffer is moved to the end of its transaction's file. The files
are a cache, because PostgreSQL sends everything again to the next session. So nothing is synced, and all files are
removed at the end of the session. Checksums make sure that the rows are read back as they were written.

All file access happens in the thread of a :class:`pgsluice.spool.disk.Disk`, so a disk that hangs does not block the
event loop.
"""

import asyncio
import os
import struct
import zlib
from array import array
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO

import structlog

from pgsluice.errors import UnavailableError
from pgsluice.spool.disk import Disk

log = structlog.get_logger(__name__)

READ_BYTES = 256 * 1024
"""Files are read in blocks of this size. Each block has a checksum."""

ROOM_BYTES = 1024 * 1024
"""The memory that is kept free for the rows of one read from the socket, because rows move to disk only between such
reads."""

SPILL_BYTES = 4 * 1024 * 1024
"""Size of one write. Even a slow network disk completes such a write within seconds, so if it takes longer than
``disk.DISK_LIMIT_S``, the disk hangs."""

_FILE_NUMBERS = count(1)
"""The numbers that name the files. No name may be used twice, because all sessions of a process share its directory,
and a write of the former session may still be in progress when the next session begins."""

_PIECE = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class SpoolOptions:
    """Options of a spool.

    ``directory``: the directory of this process. ``memory_max`` and ``spill_max``: how many bytes all transactions
    together may take in memory and on disk. ``descriptor``: the open directory. Files are opened through it, so
    renaming the directory has no effect.
    """

    directory: Path
    memory_max: int
    spill_max: int
    descriptor: int | None = None


class DiskSpool:
    """The waiting rows of one session. It implements :class:`pgsluice.pipeline.ends.Spool`."""

    def __init__(self, options: SpoolOptions, disk: Disk) -> None:
        self._options = options
        self.disk = disk
        self._open: set[SpooledRows] = set()
        self._moving: SpooledRows | None = None
        """The transaction whose buffer is being moved to its file. The whole buffer has to be moved, because a file
        must not end within an entry."""
        self._wanted: Callable[[], None] | None = None
        self.memory = 0
        """Bytes in memory."""
        self.spilled = 0
        """Bytes in files."""

    @property
    def busy_s(self) -> float:
        """How long the disk has been busy with one job; 0 if it has nothing to do."""
        return self.disk.busy_s

    def open(self) -> "SpooledRows":
        """Return an empty :class:`SpooledRows` for one more transaction."""
        options = self._options
        rows = SpooledRows(self, options.directory / str(next(_FILE_NUMBERS)), options.descriptor)
        self._open.add(rows)
        return rows

    async def relieve(self) -> bool:
        """Move a part of the rows into a file if memory is above its limit. Return whether more has to be moved.

        Raise UnavailableError if there is no room on disk, or if the disk hangs. After an exception, or a cancellation,
        the rows can only be discarded.
        """
        if self._moving is None:
            if self.memory <= self._memory_bound:
                return False
            # The largest transaction is moved first, so that there are few files, and writes are large.
            self._moving = max(self._open, key=lambda one: one.in_memory)
            self._check_room(self._moving.in_memory)
        await self._moving.spill()
        if not self._moving.in_memory:
            self._moving = None
        return self._moving is not None or self.memory > self._memory_bound

    @property
    def _memory_bound(self) -> int:
        return max(self._options.memory_max - ROOM_BYTES, 0)

    def _check_room(self, size: int) -> None:
        if self.spilled + size > self._options.spill_max:
            raise UnavailableError(
                f"Transactions that have not committed yet need more than buffer.spill_max ({self._options.spill_max} "
                f"bytes) in addition to buffer.memory_max; {len(self._open)} transactions are open. Raise "
                "buffer.spill_max if the disk has room, or commit in smaller transactions. Nothing is lost: the "
                "transactions will be sent again."
            )

    def want(self, read: Callable[[], None]) -> None:
        """Make :meth:`load` call ``read`` next."""
        self._wanted = read

    async def load(self) -> None:
        """Read the data that the present iteration over rows needs next. If it needs none, give other tasks a turn."""
        read, self._wanted = self._wanted, None
        if read is None:
            await asyncio.sleep(0)
        else:
            await self.disk.run(read)

    def forget(self, rows: "SpooledRows") -> None:
        """Stop counting ``rows``, which were discarded."""
        self._open.discard(rows)
        if self._moving is rows:
            self._moving = None

    def close(self) -> None:
        """Discard the rows of all transactions."""
        for rows in list(self._open):
            rows.discard()


class SpooledRows:
    """The waiting rows of one transaction: first those in its file, then those in its buffer."""

    def __init__(self, spool: DiskSpool, path: Path, directory: int | None) -> None:
        self._spool = spool
        self._path = path
        self._directory = directory
        self._name = path if directory is None else path.name
        self._buffer = bytearray()
        self._has_file = False
        """Whether the file was created, or may still be created by a job that was cancelled."""
        self._in_file = 0
        self._checksums = array("L")
        """CRC-32 of each block of the file. The last block may be short."""

    @property
    def in_memory(self) -> int:
        """Bytes in memory."""
        return len(self._buffer)

    def append(self, number: int, data: bytes) -> None:
        """Add an entry. Iteration returns it with its ``number``."""
        self._buffer += _PIECE.pack(number, len(data))
        self._buffer += data
        self._spool.memory += _PIECE.size + len(data)

    async def spill(self) -> None:
        """Move the oldest ``SPILL_BYTES`` of the buffer to the end of the file."""
        data, is_new = self._take_oldest(), not self._has_file
        self._has_file = True
        checksums = await self._spool.disk.run(partial(self._write, data, is_new=is_new))
        self._checksums = checksums
        self._in_file += len(data)
        self._spool.memory -= len(data)
        self._spool.spilled += len(data)

    def _take_oldest(self) -> bytearray:
        buffer = self._buffer
        if len(buffer) <= SPILL_BYTES:
            self._buffer = bytearray()
            return buffer
        data = buffer[:SPILL_BYTES]
        del buffer[:SPILL_BYTES]  # this copies nothing, because a bytearray can drop its beginning
        return data

    def _write(self, data: bytearray, *, is_new: bool) -> "array[int]":
        """Append ``data`` to the file, in the disk's thread. Return the checksums of the whole file."""
        try:
            # A new file must not exist yet, because an existing file would belong to another transaction.
            with open(self._name, "xb" if is_new else "ab", buffering=0, opener=self._open) as file:
                _write_all(file, data)
        except OSError as error:
            raise _unusable(error) from error
        return _with_checksums(self._checksums, self._in_file, data)

    def __iter__(self) -> Iterator[tuple[int, bytes] | None]:
        """Yield the entries, and None whenever :meth:`DiskSpool.load` has to be awaited before the next entry."""
        read = bytearray()
        for number in range(len(self._checksums)):
            self._spool.want(partial(self._read, number, read))
            yield None
            taken = yield from _pieces(read)
            del read[:taken]
        assert not read, "a file ends with a complete entry"
        yield from _pieces(self._buffer)

    def _read(self, number: int, read: bytearray) -> None:
        """Append a block of the file to ``read``, in the disk's thread. Raise UnavailableError if its CRC is wrong."""
        try:
            with open(self._name, "rb", buffering=READ_BYTES, opener=self._open) as file:
                file.seek(number * READ_BYTES)
                block = file.read(READ_BYTES)
        except OSError as error:
            raise _unusable(error) from error
        if zlib.crc32(block) != self._checksums[number]:
            raise _changed(self._path)
        read += block

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o600, dir_fd=self._directory)

    def discard(self) -> None:
        """Delete all rows. The file is removed after the jobs that still work with it."""
        if self._has_file:
            self._spool.disk.later(partial(os.unlink, self._name, dir_fd=self._directory))
        self._spool.memory -= len(self._buffer)
        self._spool.spilled -= self._in_file
        self._buffer, self._checksums = bytearray(), array("L")
        self._in_file, self._has_file = 0, False
        self._spool.forget(self)


def _with_checksums(checksums: "array[int]", size: int, data: bytearray) -> "array[int]":
    """Return the checksums of a file of this ``size`` after ``data`` was appended to it."""
    found, begun = checksums[:], size % READ_BYTES
    with memoryview(data) as view:
        if begun:
            found[-1] = zlib.crc32(view[: READ_BYTES - begun], found[-1])
        for at in range(READ_BYTES - begun if begun else 0, len(view), READ_BYTES):
            found.append(zlib.crc32(view[at : at + READ_BYTES]))
    return found


def _pieces(buffer: bytearray) -> Generator[tuple[int, bytes], None, int]:
    """Yield the complete entries in ``buffer``, and return how many bytes they took."""
    at, end = 0, len(buffer)
    with memoryview(buffer) as view:
        while at + _PIECE.size <= end:
            number, size = _PIECE.unpack_from(view, at)
            following = at + _PIECE.size + size
            if following > end:
                break
            yield number, bytes(view[following - size : following])
            at = following
    return at


def _write_all(file: IO[bytes], data: bytearray) -> None:
    """Write all of ``data``. A single write to an unbuffered file may write only a part."""
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
        f"{path}, which holds rows of a transaction that has not committed yet, is not as it was written. Make sure "
        "that no other program uses that directory, and check the disk. Nothing is lost: all of it will be sent again."
    )
