"""Where rows wait: in memory, then on disk. Directories and files are real."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pgsluice import spool as module
from pgsluice.errors import ConfigError, UnavailableError
from pgsluice.finding import Verdict
from pgsluice.spool import READ_BYTES, ROOM_BYTES, SpillDirectory, Spool, SpooledRows, SpoolOptions, check

MIB = 1024 * 1024


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with SpillDirectory(str(tmp_path / "spill")) as found:
        yield found.path


def filled(spool: Spool, *pieces: bytes) -> SpooledRows:
    rows = spool.open()
    for number, piece in enumerate(pieces):
        rows.append(number, piece)
    return rows


def files_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


class TestRows:
    async def test_they_come_back_in_order_from_disk_and_memory(self, directory: Path) -> None:
        spool = Spool(SpoolOptions(directory, 2 * MIB, 64 * MIB))
        pieces = [b"", b"x" * MIB, b"y" * MIB, b"z"]
        rows = filled(spool, *pieces[:3])
        await spool.relieve()
        rows.append(3, pieces[3])
        assert (rows.in_memory, spool.memory) == (9, 9)
        assert spool.spilled == 2 * MIB + 24
        assert list(rows) == list(enumerate(pieces))
        assert list(rows) == list(enumerate(pieces))

    async def test_they_may_lie_across_blocks_and_spills(self, directory: Path) -> None:
        spool = Spool(SpoolOptions(directory, 2 * MIB, 64 * MIB))
        rows = spool.open()
        sizes = [3 * READ_BYTES + 5, READ_BYTES - 21, 0, 1, READ_BYTES, 2 * READ_BYTES - 8, 7]
        pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
        for number, piece in enumerate(pieces):
            rows.append(number, piece)
            rows.spill()
        assert list(rows) == list(enumerate(pieces))

    async def test_memory_is_left_alone_below_its_bound(self, directory: Path) -> None:
        spool = Spool(SpoolOptions(directory, 4 * MIB, 64 * MIB))
        filled(spool, b"x" * MIB)
        await spool.relieve()
        assert spool.spilled == 0

    @pytest.mark.parametrize("memory_max", [MIB, MIB + 1, 3 * MIB])
    async def test_what_one_read_brings_fits_below_the_bound(self, memory_max: int, directory: Path) -> None:
        spool = Spool(SpoolOptions(directory, memory_max, 64 * MIB))
        for _ in range(8):
            filled(spool, b"x" * (MIB // 2 - 8))
            await spool.relieve()
            assert spool.memory + ROOM_BYTES <= memory_max

    async def test_the_largest_go_to_disk_first(self, directory: Path) -> None:
        spool = Spool(SpoolOptions(directory, 4 * MIB, 64 * MIB))
        small, large = filled(spool, b"x" * MIB), filled(spool, b"y" * 3 * MIB)
        await spool.relieve()
        assert (small.in_memory > 0, large.in_memory) == (True, 0)

    async def test_what_is_discarded_is_gone(self, directory: Path) -> None:
        spool = Spool(SpoolOptions(directory, 2 * MIB, 64 * MIB))
        rows, others = filled(spool, b"x" * 2 * MIB), filled(spool, b"y")
        await spool.relieve()
        rows.append(1, b"more")
        rows.discard()
        assert (list(rows), spool.spilled, spool.memory) == ([], 0, others.in_memory)
        spool.close()
        assert (list(others), spool.memory) == ([], 0)
        assert files_in(directory) == ["lock"]


class TestWhenThereIsNoRoom:
    async def test_the_bound_on_disk_is_kept(self, directory: Path) -> None:
        spool = Spool(SpoolOptions(directory, 2 * MIB, MIB))
        filled(spool, b"x" * 2 * MIB)
        with pytest.raises(UnavailableError, match=r"more than buffer\.spill_max \(1048576 bytes\).*Nothing is lost"):
            await spool.relieve()

    async def test_a_directory_that_went_away(self, directory: Path) -> None:
        spool = Spool(SpoolOptions(directory / "gone", 2 * MIB, 64 * MIB))
        filled(spool, b"x" * 2 * MIB)
        with pytest.raises(UnavailableError, match=r"No such file or directory.*Make room under buffer\.spill_dir"):
            await spool.relieve()

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
    async def test_a_disk_that_is_full(self, directory: Path) -> None:
        spool = Spool(SpoolOptions(directory, 2 * MIB, 64 * MIB))
        filled(spool, b"x" * 2 * MIB)
        rows = filled(spool, b"y" * 2 * MIB)
        rows.spill()
        (directory / "2").unlink()
        (directory / "2").symlink_to("/dev/full")
        rows.append(1, b"z" * 4 * MIB)
        with pytest.raises(UnavailableError, match="No space left on device"):
            await spool.relieve()

    async def test_a_file_that_went_away(self, directory: Path) -> None:
        spool = Spool(SpoolOptions(directory, 2 * MIB, 64 * MIB))
        rows = filled(spool, b"x" * 2 * MIB)
        await spool.relieve()
        (directory / "1").unlink()
        with pytest.raises(UnavailableError, match="could not be kept on disk"):
            list(rows)
        rows.discard()

    @pytest.mark.parametrize("at", [0, READ_BYTES, 5 * READ_BYTES // 2])
    @pytest.mark.parametrize("change", [lambda _: b"", lambda rest: b"\x01" + rest[1:]], ids=["cut off", "changed"])
    async def test_a_file_that_is_not_as_it_was_written(
        self, at: int, change: Callable[[bytes], bytes], directory: Path
    ) -> None:
        spool = Spool(SpoolOptions(directory, 2 * MIB, 64 * MIB))
        rows = filled(spool, *(bytes(992) for _ in range(5 * READ_BYTES // 2000 + 1)))
        rows.spill()
        before, rest = (directory / "1").read_bytes()[:at], (directory / "1").read_bytes()[at:]
        (directory / "1").write_bytes(before + change(rest))
        found = []
        with pytest.raises(UnavailableError, match=r"is not as it was written.*Nothing is lost"):
            found += [piece for _, piece in rows]
        assert set(found) <= {bytes(992)}

    async def test_a_file_that_could_not_be_removed_is_not_added_to(self, directory: Path) -> None:
        spool = Spool(SpoolOptions(directory, 2 * MIB, 64 * MIB))
        filled(spool, b"x" * 2 * MIB)
        (directory / "1").write_bytes(b"of an earlier session")
        with pytest.raises(UnavailableError, match="File exists"):
            await spool.relieve()

    async def test_spilling_is_finished_before_a_cancelled_session_clears_up(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spool = Spool(SpoolOptions(directory, 2 * MIB, 64 * MIB))
        filled(spool, b"x" * 2 * MIB)
        started, go_on = asyncio.Event(), asyncio.Event()
        loop, write = asyncio.get_running_loop(), module._write_all

        def slowly(*arguments: object) -> None:
            loop.call_soon_threadsafe(started.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
            write(*arguments)  # type: ignore[arg-type]  # passed on

        monkeypatch.setattr(module, "_write_all", slowly)
        task = asyncio.create_task(spool.relieve())
        await started.wait()
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert spool.memory == 0


class TestDirectory:
    def test_two_processes_never_share_one(self, tmp_path: Path) -> None:
        with SpillDirectory(str(tmp_path)) as first, SpillDirectory(str(tmp_path)) as second:
            assert first.path != second.path
            assert first.path.exists()

    def test_what_is_left_behind_is_removed_at_the_next_start(self, tmp_path: Path) -> None:
        left = tmp_path / ".pgsluice-spill-left"
        left.mkdir()
        (left / "lock").touch()
        (left / "1").write_bytes(b"rows")
        with SpillDirectory(str(tmp_path)):
            assert not left.exists()

    def test_what_others_keep_there_is_left_alone(self, tmp_path: Path) -> None:
        for name in ("pgsluice-precious", ".pgsluice-spill-precious"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").touch()
        with SpillDirectory(str(tmp_path)):
            pass
        assert len(list(tmp_path.rglob("file"))) == 2

    def test_nothing_remains_in_the_end(self, tmp_path: Path) -> None:
        with SpillDirectory(str(tmp_path)) as found:
            (found.path / "1").write_bytes(b"rows")
        assert files_in(tmp_path) == ["lock"]

    def test_one_that_cannot_be_made_is_a_matter_of_configuration(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with (
            pytest.raises(ConfigError, match=r"Not a directory.*Set buffer\.spill_dir"),
            SpillDirectory(str(tmp_path / "file" / "spill")),
        ):
            pass

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_so_is_one_that_is_read_only(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)
        with pytest.raises(ConfigError, match="Permission denied"), SpillDirectory(str(tmp_path / "spill")):
            pass

    def test_a_check_says_what_will_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert check(str(tmp_path)).verdict is Verdict.OK
        assert check(str(tmp_path / "file")).verdict is Verdict.FAIL
        assert check(str(tmp_path / "to" / "come")).verdict is Verdict.OK
        assert files_in(tmp_path) == ["file"]
