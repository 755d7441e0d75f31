import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from sandbox import artifacts, prerequisites
from sandbox.account import Account, current_account
from sandbox.errors import FetchError

NAMES = {"m": "http://maven.apache.org/POM/4.0.0"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide an empty cache. Restore the original one after the test."""
    root = tmp_path / "cache"
    monkeypatch.setenv(artifacts.CACHE_VARIABLE, str(root))
    forget()
    yield root
    forget()


def forget() -> None:
    artifacts.cache_root.cache_clear()
    artifacts.server_root.cache_clear()
    prerequisites.require.cache_clear()


def test_the_pom_pins_every_version() -> None:
    pom = ET.parse(artifacts.POM)  # noqa: S314 - our own file
    versions = [element.text or "" for element in pom.iterfind(".//m:dependency/m:version", NAMES)]
    assert len(versions) >= 19
    assert [version for version in versions if not re.fullmatch(r"[0-9][0-9.]*", version)] == []


def test_the_pom_names_no_host() -> None:
    text = artifacts.POM.read_text()
    without_names_of_namespaces = re.sub(r'(xmlns(:xsi)?|xsi:schemaLocation)="[^"]*"', "", text)
    assert "://" not in without_names_of_namespaces


def test_targets_are_the_profiles_of_the_pom() -> None:
    versions = [f"postgres-{version}" for version in range(10, 19)]
    assert artifacts.targets() == [*versions, "kafka", "apicurio", "spark-4.1.1", "spark-4.0.0"]


def test_an_unknown_target_is_refused_with_a_list_of_targets() -> None:
    with pytest.raises(FetchError, match=r"there is no kafak, only postgres-10, .*kafka"):
        artifacts.fetch("kafak")


def test_an_entry_is_found_once_it_is_complete(own_cache: Path) -> None:
    def fill(entry: Path) -> None:
        assert artifacts.find_entry(own_cache, "thing") is None
        (entry / "file").touch()

    made = artifacts.make_entry(own_cache, "thing", fill)
    assert artifacts.find_entry(own_cache, "thing") == made


def test_an_entry_is_filled_once_under_the_key_of_the_pom(own_cache: Path) -> None:
    fills: list[Path] = []

    def fill(entry: Path) -> None:
        fills.append(entry)
        (entry / "file").write_text("content")

    key = hashlib.sha256(artifacts.POM.read_bytes()).hexdigest()[:16]
    for _ in range(2):
        entry = artifacts.make_entry(artifacts.cache_root(), "thing", fill)
        assert entry == own_cache / key / "thing"
        assert (entry / "file").read_text() == "content"
    assert len(fills) == 1


def test_an_entry_that_fails_half_way_is_not_complete() -> None:
    def fail(entry: Path) -> None:
        (entry / "half").touch()
        raise FetchError("the network is gone")

    root = artifacts.cache_root()
    with pytest.raises(FetchError):
        artifacts.make_entry(root, "thing", fail)
    entry = artifacts.make_entry(root, "thing", lambda entry: (entry / "whole").touch())
    assert [path.name for path in entry.iterdir()] == ["whole"]


def test_two_processes_fill_an_entry_once(own_cache: Path) -> None:
    program = """if True:
        import os, sys
        from sandbox import artifacts
        def fill(entry):
            sys.stdin.readline()
            (entry / "by").write_text(str(os.getpid()))
        print("started", flush=True)
        print((artifacts.make_entry(artifacts.cache_root(), "thing", fill) / "by").read_text())
    """
    with ExitStack() as running:
        contenders = [running.enter_context(start_program(program)) for _ in range(2)]
        inputs, outputs = zip(*((process.stdin, process.stdout) for process in contenders), strict=True)
        for output in outputs:
            output.readline()
        for each in inputs:  # write to both, because either process may wait for the other
            each.write("go on\n")
            each.flush()
        assert len({output.read() for output in outputs}) == 1
    assert own_cache.exists()


def start_program(program: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(artifacts.__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("umask", [0o077, 0o002])
def test_others_can_read_the_cache_but_not_write_it_whatever_the_umask(umask: int) -> None:
    former = os.umask(umask)
    try:
        entry = artifacts.make_entry(artifacts.cache_root(), "thing", lambda _: None)
    finally:
        os.umask(former)
    for directory in (entry, entry.parent, entry.parents[1]):
        assert directory.stat().st_mode & 0o777 == 0o755


def test_a_cache_that_others_can_write_is_refused(own_cache: Path) -> None:
    own_cache.mkdir()
    own_cache.chmod(0o777)
    with pytest.raises(FetchError, match="nobody else may write"):
        artifacts.cache_root()


def test_without_a_variable_the_cache_is_below_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(artifacts.CACHE_VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert artifacts.cache_root() == tmp_path / ".cache" / "pgsluice-sandbox"


def test_without_a_home_the_cache_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delenv(artifacts.CACHE_VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setattr(artifacts, "SHARED_DIRECTORY", tmp_path)
    assert artifacts.cache_root() == tmp_path / f"pgsluice-sandbox-{os.geteuid()}"


def test_a_link_in_place_of_the_shared_cache_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"pgsluice-sandbox-{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").touch()
    monkeypatch.delenv(artifacts.CACHE_VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setattr(artifacts, "SHARED_DIRECTORY", tmp_path)
    with pytest.raises(FetchError, match="must belong"):
        artifacts.cache_root()


def test_servers_read_our_cache_if_they_can_enter_it(own_cache: Path) -> None:
    assert artifacts.server_root(current_account()) == own_cache


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as another user")
def test_servers_read_a_shared_cache_if_they_cannot_enter_ours(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache.mkdir()
    own_cache.chmod(0o700)
    monkeypatch.setattr(artifacts, "SHARED_DIRECTORY", tmp_path)
    assert artifacts.server_root(Account(65534, 65534)) == tmp_path / "pgsluice-sandbox-0"


def test_the_error_contains_the_output_of_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text("#!/bin/sh\necho no route to the repository; exit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{maven.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(FetchError, match=r"(?s)fetching kafka failed:.*no route to the repository"):
        artifacts.fetch("kafka")
