"""Waiting rows in memory and on disk. Directories and files are real."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from pgsluice.errors import UnavailableError
from pgsluice.spool import disk as disks
from pgsluice.spool import disk_spool as module
from pgsluice.spool.directory import SpillDirectory
from pgsluice.spool.disk import Disk
from pgsluice.spool.disk_spool import READ_BYTES, ROOM_BYTES, SPILL_BYTES, DiskSpool, SpooledRows, SpoolOptions
from tests.support.disks import hanging

MIB = 1024 * 1024


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
async def spill(tmp_path: Path, disk: Disk) -> AsyncIterator[SpillDirectory]:
    async with SpillDirectory(str(tmp_path / "spill"), disk) as found:
        yield found


@pytest.fixture
def directory(spill: SpillDirectory) -> Path:
    return spill.path


@pytest.fixture
def make(spill: SpillDirectory, disk: Disk) -> Callable[[int, int], DiskSpool]:
    """Provide a function that makes a spool with these limits in memory and on disk."""
    return lambda memory_max, spill_max: DiskSpool(
        SpoolOptions(spill.path, memory_max, spill_max, spill.descriptor), disk
    )


Make = Callable[[int, int], DiskSpool]


def filled(spool: DiskSpool, *pieces: bytes) -> SpooledRows:
    rows = spool.open()
    for number, piece in enumerate(pieces):
        rows.append(number, piece)
    return rows


async def relieved(spool: DiskSpool) -> None:
    while await spool.relieve():
        pass


async def pieces_of(spool: DiskSpool, rows: SpooledRows) -> list[tuple[int, bytes]]:
    found = []
    for piece in rows:
        if piece is None:
            await spool.load()
        else:
            found.append(piece)
    return found


async def finished(disk: Disk) -> None:
    """Wait for the jobs that were submitted so far."""
    await disk.run(lambda: None)


def files_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def file_in(directory: Path) -> Path:
    (found,) = (path for path in directory.iterdir() if path.name != "lock")
    return found


class TestRows:
    async def test_rows_are_read_in_order_from_disk_and_memory(self, make: Make) -> None:
        spool = make(2 * MIB, 64 * MIB)
        pieces = [b"", b"x" * MIB, b"y" * MIB, b"z"]
        rows = filled(spool, *pieces[:3])
        await relieved(spool)
        rows.append(3, pieces[3])
        assert (rows.in_memory, spool.memory) == (9, 9)
        assert spool.spilled == 2 * MIB + 24
        assert await pieces_of(spool, rows) == list(enumerate(pieces))
        assert await pieces_of(spool, rows) == list(enumerate(pieces))

    async def test_rows_may_span_blocks_and_spills(self, make: Make) -> None:
        spool = make(2 * MIB, 64 * MIB)
        rows = spool.open()
        sizes = [3 * READ_BYTES + 5, READ_BYTES - 21, 0, 1, READ_BYTES, 2 * READ_BYTES - 8, 7]
        pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
        for number, piece in enumerate(pieces):
            rows.append(number, piece)
            await rows.spill()
        assert await pieces_of(spool, rows) == list(enumerate(pieces))

    async def test_a_large_transaction_is_spilled_in_parts(self, make: Make) -> None:
        """Write a large transaction in parts, because each part is a sign of life.

        After the last part, the file has only whole rows.
        """
        spool = make(2 * SPILL_BYTES, 64 * MIB)
        pieces = [bytes([number]) * MIB for number in range(2 * SPILL_BYTES // MIB + 3)]
        rows = filled(spool, *pieces)
        parts = 1
        while await spool.relieve():
            parts += 1
        assert (parts, rows.in_memory, spool.memory) == (3, 0, 0)
        assert await pieces_of(spool, rows) == list(enumerate(pieces))

    async def test_a_partly_spilled_transaction_can_be_discarded(self, make: Make, disk: Disk, directory: Path) -> None:
        spool = make(2 * SPILL_BYTES, 64 * MIB)
        rows = filled(spool, bytes(3 * SPILL_BYTES))
        assert await spool.relieve()
        rows.discard()
        assert not await spool.relieve()
        assert (spool.memory, spool.spilled) == (0, 0)
        await finished(disk)
        assert files_in(directory) == ["lock"]

    async def test_memory_is_left_alone_below_its_bound(self, make: Make) -> None:
        spool = make(4 * MIB, 64 * MIB)
        filled(spool, b"x" * MIB)
        await relieved(spool)
        assert spool.spilled == 0

    @pytest.mark.parametrize("memory_max", [MIB, MIB + 1, 3 * MIB])
    async def test_the_rows_of_one_read_fit_below_the_limit(self, memory_max: int, make: Make) -> None:
        spool = make(memory_max, 64 * MIB)
        for _ in range(8):
            filled(spool, b"x" * (MIB // 2 - 8))
            await relieved(spool)
            assert spool.memory + ROOM_BYTES <= memory_max

    async def test_the_largest_transactions_go_to_disk_first(self, make: Make) -> None:
        spool = make(4 * MIB, 64 * MIB)
        small, large = filled(spool, b"x" * MIB), filled(spool, b"y" * 3 * MIB)
        await relieved(spool)
        assert (small.in_memory > 0, large.in_memory) == (True, 0)

    async def test_discarded_rows_are_removed(self, make: Make, disk: Disk, directory: Path) -> None:
        spool = make(2 * MIB, 64 * MIB)
        rows, others = filled(spool, b"x" * 2 * MIB), filled(spool, b"y")
        await relieved(spool)
        rows.append(1, b"more")
        rows.discard()
        assert (await pieces_of(spool, rows), spool.spilled, spool.memory) == ([], 0, others.in_memory)
        spool.close()
        assert (await pieces_of(spool, others), spool.memory) == ([], 0)
        await finished(disk)
        assert files_in(directory) == ["lock"]

    async def test_two_sessions_of_a_process_never_use_the_same_file(self, make: Make, directory: Path) -> None:
        for _ in range(2):
            filled(spool := make(2 * MIB, 64 * MIB), b"x" * 2 * MIB)
            await relieved(spool)
        assert len(files_in(directory)) == 3

    async def test_other_tasks_run_if_nothing_has_to_be_loaded(self, make: Make, disk: Disk) -> None:
        turns: list[int] = []
        asyncio.get_running_loop().call_soon(turns.append, 1)
        with hanging(disk):
            await make(2 * MIB, 64 * MIB).load()
        assert turns == [1]


class TestWhenThereIsNoRoom:
    async def test_the_bound_on_disk_is_kept(self, make: Make) -> None:
        spool = make(2 * MIB, MIB)
        filled(spool, b"x" * 2 * MIB)
        with pytest.raises(UnavailableError, match=r"more than buffer\.spill_max \(1048576 bytes\).*Nothing is lost"):
            await relieved(spool)

    async def test_a_directory_that_disappears_is_reported(self, directory: Path, disk: Disk) -> None:
        spool = DiskSpool(SpoolOptions(directory / "gone", 2 * MIB, 64 * MIB), disk)
        filled(spool, b"x" * 2 * MIB)
        with pytest.raises(UnavailableError, match=r"No such file or directory.*Make room under buffer\.spill_dir"):
            await relieved(spool)

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
    async def test_a_full_disk_is_reported(self, make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "O_NOFOLLOW", 0)  # because the test uses a symbolic link to a device
        spool = make(2 * MIB, 64 * MIB)
        rows = filled(spool, b"y" * 2 * MIB)
        await relieved(spool)
        file = file_in(directory)
        file.unlink()
        file.symlink_to("/dev/full")
        rows.append(1, b"z" * 4 * MIB)
        with pytest.raises(UnavailableError, match="No space left on device"):
            await relieved(spool)

    async def test_a_file_that_disappears_is_reported(self, make: Make, directory: Path) -> None:
        spool = make(2 * MIB, 64 * MIB)
        rows = filled(spool, b"x" * 2 * MIB)
        await relieved(spool)
        file_in(directory).unlink()
        with pytest.raises(UnavailableError, match="could not be kept on disk"):
            await pieces_of(spool, rows)
        rows.discard()

    @pytest.mark.parametrize("at", [0, READ_BYTES, 5 * READ_BYTES // 2])
    @pytest.mark.parametrize("change", [lambda _: b"", lambda rest: b"\x01" + rest[1:]], ids=["cut off", "changed"])
    async def test_a_changed_file_is_reported(
        self, at: int, change: Callable[[bytes], bytes], make: Make, directory: Path
    ) -> None:
        spool = make(2 * MIB, 64 * MIB)
        rows = filled(spool, *(bytes(992) for _ in range(5 * READ_BYTES // 2000 + 1)))
        await rows.spill()
        file = file_in(directory)
        before, rest = file.read_bytes()[:at], file.read_bytes()[at:]
        file.write_bytes(before + change(rest))
        found = []
        with pytest.raises(UnavailableError, match=r"is not as it was written.*Nothing is lost"):  # noqa: PT012 - the loop raises it
            for piece in rows:
                if piece is None:
                    await spool.load()
                else:
                    found.append(piece[1])
        assert set(found) <= {bytes(992)}

    async def test_an_existing_file_is_not_appended_to(
        self, make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_FILE_NUMBERS", iter((1,)))
        spool = make(2 * MIB, 64 * MIB)
        filled(spool, b"x" * 2 * MIB)
        (directory / "1").write_bytes(b"of somebody else")
        with pytest.raises(UnavailableError, match="File exists"):
            await relieved(spool)


class TestWhenTheDiskHangs:
    async def test_writing_and_reading_end_after_a_while(
        self, make: Make, disk: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spool = make(2 * MIB, 64 * MIB)
        rows = filled(spool, b"x" * 2 * MIB)
        await relieved(spool)
        filled(spool, b"y" * 2 * MIB)
        monkeypatch.setattr(disks, "DISK_LIMIT_S", 0.02)
        monkeypatch.setattr(disks, "LAST_LOOK_S", 0.02)
        with hanging(disk):
            with pytest.raises(UnavailableError, match=r"has not finished .* Nothing is lost"):
                await spool.relieve()
            with pytest.raises(UnavailableError, match="has not finished"):
                await pieces_of(spool, rows)
            assert spool.busy_s > 0.02

    async def test_removing_does_not_wait(self, make: Make, disk: Disk, directory: Path) -> None:
        spool = make(2 * MIB, 64 * MIB)
        rows = filled(spool, b"x" * 2 * MIB)
        filled(spool, b"y" * 2 * MIB)
        await relieved(spool)
        with hanging(disk):
            rows.discard()
            spool.close()
            assert len(files_in(directory)) == 3
        await finished(disk)
        assert files_in(directory) == ["lock"]

    async def test_a_write_that_ends_after_its_session_leaves_nothing(
        self, make: Make, disk: Disk, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started, go_on, write = threading.Event(), threading.Event(), module._write_all

        def slowly(*arguments: object) -> None:
            started.set()
            go_on.wait()
            write(*arguments)  # type: ignore[arg-type]  # passed on

        monkeypatch.setattr(module, "_write_all", slowly)
        spool = make(2 * MIB, 64 * MIB)
        filled(spool, b"x" * 2 * MIB)
        task = asyncio.create_task(spool.relieve())
        await asyncio.to_thread(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        spool.close()
        go_on.set()
        await finished(disk)
        assert files_in(directory) == ["lock"]


class TestNeighbours:
    """Other users may write to the parent directory."""

    async def test_nobody_else_can_read_a_file(self, make: Make, directory: Path) -> None:
        before = os.umask(0)
        try:
            spool = make(0, 64 * MIB)
            filled(spool, b"x")
            await relieved(spool)
            assert file_in(directory).stat().st_mode & 0o777 == 0o600
        finally:
            os.umask(before)

    async def test_rows_are_written_to_the_directory_even_if_it_was_moved(self, tmp_path: Path, disk: Disk) -> None:
        """Write to the moved directory, and not to another directory that somebody has put in its place."""
        moved, spill = tmp_path / "moved", SpillDirectory(str(tmp_path), disk)
        async with spill as found:
            spool = DiskSpool(SpoolOptions(found.path, 0, 64 * MIB, found.descriptor), disk)
            rows = filled(spool, b"one")
            await relieved(spool)
            await asyncio.to_thread(found.path.rename, moved)
            found.path.mkdir()
            for name in ("lock", "1"):
                (found.path / name).touch()
            rows.append(1, b"two")
            await relieved(spool)
            other = filled(spool, b"three")
            await relieved(spool)
            assert await pieces_of(spool, rows) == [(0, b"one"), (1, b"two")]
            assert len(files_in(moved)) == 3
            other.discard()
            await finished(disk)
            assert len(files_in(moved)) == 2
        assert files_in(moved) == []
        assert sorted(files_in(found.path)) == ["1", "lock"]

    async def test_a_file_is_not_written_through_a_link(self, make: Make, directory: Path, tmp_path: Path) -> None:
        spool = make(0, 64 * MIB)
        rows = filled(spool, b"one")
        await relieved(spool)
        path = file_in(directory)
        path.rename(tmp_path / "precious")
        path.symlink_to(tmp_path / "precious")
        size = (tmp_path / "precious").stat().st_size
        rows.append(1, b"two")
        with pytest.raises(UnavailableError, match="Too many levels of symbolic links"):
            await relieved(spool)
        assert (tmp_path / "precious").stat().st_size == size
