import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import errors, prerequisites
from sandbox.errors import MissingPrerequisites

OLDEST_GRAMMAR = (3, 7)


@pytest.fixture(autouse=True)
def forget_answers() -> Iterator[None]:
    prerequisites.require.cache_clear()
    yield
    prerequisites.require.cache_clear()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a directory that is the only entry of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def write_program(path: Path, *says: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + "".join(f"echo '{line}' >&2\n" for line in says))
    path.chmod(0o755)


@pytest.mark.parametrize("module", [prerequisites, errors])
def test_the_checks_run_on_an_old_python(module: object) -> None:
    source = Path(str(getattr(module, "__file__", ""))).read_text()
    ast.parse(source, feature_version=OLDEST_GRAMMAR)


@pytest.mark.parametrize("version", ["17.0.15", "25"])
def test_a_machine_with_everything_passes(programs: Path, version: str) -> None:
    write_program(programs / "java", f'openjdk version "{version}" 2025-04-15', "OpenJDK Runtime Environment")
    write_program(programs / "mvn")
    prerequisites.require(fetching=True)


def test_all_missing_programs_are_listed_at_once(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(programs / "java", 'java version "1.8.0_402"')
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(prerequisites, "SERVER_ACCOUNTS", ("nobody-has-this-name",))
    monkeypatch.setattr(prerequisites, "PYTHON_MODULES", {"no_such_module": "pip install it"})
    with pytest.raises(MissingPrerequisites) as raised:
        prerequisites.require(fetching=False)
    problems = str(raised.value).splitlines()[1:]
    starts = ["* darwin on ", "* Python ", "* Python module no_such_module", "* Java 8 ", "* PostgreSQL ", "* Maven "]
    assert len(problems) == len(starts)
    assert all(problem.startswith(start) for problem, start in zip(problems, starts, strict=True))


def test_without_maven_only_fetching_is_refused(programs: Path) -> None:
    write_program(programs / "java", 'openjdk version "17.0.15" 2025-04-15')
    prerequisites.require(fetching=False)
    with pytest.raises(MissingPrerequisites, match="Maven"):
        prerequisites.require(fetching=True)


def test_a_missing_java_is_reported(programs: Path) -> None:
    assert not list(programs.iterdir())
    with pytest.raises(MissingPrerequisites, match="Java is not on the PATH: install a JDK, version 17"):
        prerequisites.require(fetching=False)


def test_a_java_without_a_known_version_is_reported(programs: Path) -> None:
    write_program(programs / "java", "Error: could not find libjava.so")
    with pytest.raises(MissingPrerequisites, match="does not print its version"):
        prerequisites.require(fetching=False)


def test_java_home_comes_before_the_path(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(programs / "java", 'openjdk version "11.0.2"')
    write_program(programs / "jdk" / "bin" / "java", 'openjdk version "21"')
    monkeypatch.setenv("JAVA_HOME", str(programs / "jdk"))
    assert prerequisites.java() == str(programs / "jdk" / "bin" / "java")
    prerequisites.require(fetching=False)


@pytest.mark.parametrize("error", [AttributeError, PermissionError])
def test_a_system_without_pidfd_is_reported(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def refuse(_: int) -> int:
        raise error

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(MissingPrerequisites, match="pidfd_open"):
        prerequisites.require(fetching=False)
