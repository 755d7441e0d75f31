"""The spill directory of a process: how it is created, locked and removed, on a real file system."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from pgsluice.errors import ConfigError, UnavailableError
from pgsluice.finding import Verdict
from pgsluice.spool import directory as module
from pgsluice.spool import disk as disks
from pgsluice.spool.directory import SpillDirectory, check
from pgsluice.spool.disk import Disk
from tests.support.disks import hanging


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
async def spill(tmp_path: Path, disk: Disk) -> AsyncIterator[SpillDirectory]:
    async with SpillDirectory(str(tmp_path / "spill"), disk) as found:
        yield found


async def finished(disk: Disk) -> None:
    """Wait for the jobs that were submitted so far."""
    await disk.run(lambda: None)


def files_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


class TestDirectory:
    async def test_two_processes_never_share_a_directory(self, tmp_path: Path) -> None:
        async with (
            SpillDirectory(str(tmp_path), Disk()) as first,
            SpillDirectory(str(tmp_path), disk := Disk()) as second,
        ):
            await finished(disk)
            assert first.path != second.path
            assert first.path.exists()

    async def test_leftovers_are_removed_at_the_next_start(self, tmp_path: Path, disk: Disk) -> None:
        left = tmp_path / ".pgsluice-spill-left"
        left.mkdir()
        (left / "lock").touch()
        (left / "1").write_bytes(b"rows")
        async with SpillDirectory(str(tmp_path), disk):
            await finished(disk)
            await finished(disk)
            assert not left.exists()

    async def test_files_of_others_are_left_alone(self, tmp_path: Path, disk: Disk) -> None:
        for name in ("pgsluice-precious", ".pgsluice-spill-precious"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").touch()
        async with SpillDirectory(str(tmp_path), disk):
            await finished(disk)
        for name in ("pgsluice-precious", ".pgsluice-spill-precious"):
            assert files_in(tmp_path / name) == ["file"]

    async def test_nothing_remains_after_the_end(self, tmp_path: Path, disk: Disk) -> None:
        async with SpillDirectory(str(tmp_path), disk) as found:
            (found.path / "1").write_bytes(b"rows")
        assert files_in(tmp_path) == []

    async def test_the_directory_is_hidden_until_its_lock_is_held(
        self, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Hide the directory until its lock is held. Otherwise, another process would take it for a leftover."""
        lock, seen = module._locked, list[bool]()

        def looked_at(descriptor: int) -> int | None:
            seen.append(any(tmp_path.glob(f"{module._PREFIX}*")))
            return lock(descriptor)

        monkeypatch.setattr(module, "_locked", looked_at)
        async with SpillDirectory(str(tmp_path), disk):
            assert seen[0] is False

    async def test_a_disk_that_hangs_at_the_start_is_distinguished_from_a_wrong_directory(
        self, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(disks, "DISK_LIMIT_S", 0.02)
        monkeypatch.setattr(disks, "LAST_LOOK_S", 0.02)
        with hanging(disk), pytest.raises(UnavailableError, match="has not finished"):
            await SpillDirectory(str(tmp_path), disk).__aenter__()

    async def test_a_disk_that_hangs_at_the_end_is_left_behind(
        self, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "EXIT_S", 0.05)
        async with SpillDirectory(str(tmp_path), disk) as found:
            freeze = hanging(disk)
            freeze.__enter__()
        assert found.path.exists()
        freeze.__exit__(None, None, None)

    async def test_a_directory_that_cannot_be_created_is_a_configuration_error(
        self, tmp_path: Path, disk: Disk
    ) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match=r"Not a directory.*Set buffer\.spill_dir"):
            await SpillDirectory(str(tmp_path / "file" / "spill"), disk).__aenter__()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    async def test_a_read_only_directory_is_a_configuration_error(self, tmp_path: Path, disk: Disk) -> None:
        await asyncio.to_thread(tmp_path.chmod, 0o500)
        with pytest.raises(ConfigError, match="Permission denied"):
            await SpillDirectory(str(tmp_path / "spill"), disk).__aenter__()

    async def test_a_check_reports_the_directory(self, tmp_path: Path, disk: Disk) -> None:
        (tmp_path / "file").touch()
        assert (await check(str(tmp_path), disk)).verdict is Verdict.OK
        assert (await check(str(tmp_path / "file"), disk)).verdict is Verdict.FAIL
        assert (await check(str(tmp_path / "to" / "come"), disk)).verdict is Verdict.OK
        assert files_in(tmp_path) == ["file"]

    async def test_a_check_does_not_wait_for_a_disk_that_hangs(
        self, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(disks, "DISK_LIMIT_S", 0.02)
        monkeypatch.setattr(disks, "LAST_LOOK_S", 0.02)
        with hanging(disk):
            found = await check(str(tmp_path), disk)
        assert found.verdict is Verdict.FAIL
        assert "has not finished" in found.detail


def left_behind(path: Path) -> Path:
    """Make a directory like that of a process that has ended."""
    path.mkdir(mode=0o700)
    (path / "lock").touch()
    (path / "1").write_bytes(b"rows")
    return path


async def after_a_start(parent: Path, disk: Disk) -> None:
    """Start a process, and wait until it has removed leftovers."""
    async with SpillDirectory(str(parent), disk):
        await finished(disk)
        await finished(disk)


def opened_in(directory: Path) -> list[str]:
    """Return the files and directories below ``directory`` that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # other threads close descriptors
            found.append(str(descriptor.readlink()))
    return [path for path in found if path.startswith(f"{directory}/")]


class TestNeighbours:
    """Other users of the host, who may put files into the parent directory, or change it."""

    async def test_others_cannot_read_the_directory(self, tmp_path: Path, disk: Disk) -> None:
        before = os.umask(0)
        try:
            async with SpillDirectory(str(tmp_path / "spill"), disk) as found:
                modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "spill", found.path)]
                assert modes == [0o700, 0o700]
                assert {path.stat().st_mode & 0o777 for path in found.path.iterdir()} == {0o600}
        finally:
            os.umask(before)

    async def test_started_programs_do_not_inherit_the_directory(self, spill: SpillDirectory) -> None:
        assert spill._held is not None
        assert not any(os.get_inheritable(one) for one in (spill._held.descriptor, spill._held.lock))

    async def test_a_link_among_the_leftovers_is_not_followed(self, tmp_path: Path, disk: Disk) -> None:
        parent, elsewhere = tmp_path / "spill", left_behind(tmp_path / "elsewhere")
        parent.mkdir()
        (parent / ".pgsluice-spill-link").symlink_to(elsewhere)
        await after_a_start(parent, disk)
        assert sorted(files_in(elsewhere)) == ["1", "lock"]
        assert files_in(parent) == [".pgsluice-spill-link"]

    async def test_a_link_in_place_of_a_lock_is_not_followed(self, tmp_path: Path, disk: Disk) -> None:
        left = left_behind(tmp_path / ".pgsluice-spill-left")
        (left / "lock").rename(tmp_path / "precious")
        (left / "lock").symlink_to(tmp_path / "precious")
        await after_a_start(tmp_path, disk)
        assert sorted(files_in(left)) == ["1", "lock"]

    async def test_a_pipe_in_place_of_a_lock_is_not_waited_for(self, tmp_path: Path, disk: Disk) -> None:
        left = left_behind(tmp_path / ".pgsluice-spill-left")
        (left / "lock").unlink()
        os.mkfifo(left / "lock")
        async with asyncio.timeout(5):
            await after_a_start(tmp_path, disk)
        assert sorted(files_in(left)) == ["1", "lock"]

    async def test_only_files_of_ours_are_removed_from_a_leftover(self, tmp_path: Path, disk: Disk) -> None:
        left = left_behind(tmp_path / ".pgsluice-spill-left")
        (tmp_path / "precious").touch()
        (left / "2").symlink_to(tmp_path / "precious")
        (left / "notes").touch()
        await after_a_start(tmp_path, disk)
        assert files_in(left) == ["notes"]
        assert (tmp_path / "precious").exists()

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    @pytest.mark.parametrize("given", [".", "lock"])
    async def test_a_leftover_of_another_user_is_left_alone(self, tmp_path: Path, disk: Disk, given: str) -> None:
        left = left_behind(tmp_path / ".pgsluice-spill-left")
        os.chown(left / given, 12_345, -1)
        await after_a_start(tmp_path, disk)
        assert sorted(files_in(left)) == ["1", "lock"]

    async def test_descriptors_of_foreign_directories_are_closed(self, tmp_path: Path, disk: Disk) -> None:
        parent = tmp_path / "spill"
        parent.mkdir()
        await after_a_start(parent, disk)
        (left_behind(parent / ".pgsluice-spill-1") / "lock").unlink()
        left_behind(parent / ".pgsluice-spill-2")
        os.mkfifo(left_behind(parent / ".pgsluice-spill-3") / "2")
        await after_a_start(parent, disk)
        await after_a_start(parent, disk)
        assert opened_in(parent) == []

    async def test_a_directory_of_another_user_is_not_used(
        self, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        somebody = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: somebody)
        with pytest.raises(ConfigError, match=r"belongs to another user.*Set buffer\.spill_dir"):
            await SpillDirectory(str(tmp_path), disk).__aenter__()

    @pytest.mark.parametrize(
        ("mode", "verdict"),
        [
            (0o700, Verdict.OK),
            (0o2770, Verdict.OK),  # a volume with a group of its own
            (0o1777, Verdict.OK),  # /tmp
            (0o777, Verdict.WARN),
            (0o2777, Verdict.WARN),
        ],
    )
    async def test_a_check_says_who_else_may_write(
        self, tmp_path: Path, disk: Disk, mode: int, verdict: Verdict
    ) -> None:
        await asyncio.to_thread(tmp_path.chmod, mode)
        found = await check(str(tmp_path), disk)
        assert (found.verdict, "chmod +t" in found.remedy) == (verdict, verdict is Verdict.WARN)
        await after_a_start(tmp_path, disk)
        assert files_in(tmp_path) == []

    async def test_a_check_reports_a_directory_of_another_user(
        self, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        is_roots, somebody = os.geteuid() == 0, os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: somebody)
        assert (await check(str(tmp_path), disk)).verdict is (Verdict.OK if is_roots else Verdict.WARN)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    async def test_root_can_check_the_directory_of_a_daemon(self, tmp_path: Path, disk: Disk) -> None:
        await asyncio.to_thread(os.chown, tmp_path, 12_345, -1)
        assert (await check(str(tmp_path), disk)).verdict is Verdict.OK
        await asyncio.to_thread(tmp_path.chmod, 0o777)
        assert (await check(str(tmp_path), disk)).verdict is Verdict.WARN
