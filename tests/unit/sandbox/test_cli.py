"""Tests the command line without servers. tests/integration/test_sandbox.py tests the rest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox import __main__ as module
from sandbox import tools

REPOSITORY = Path(module.__file__).parents[1]


def run(tmp_path: Path, *arguments: str, path: str | None = None) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PGSLUICE_SANDBOX_CACHE": str(tmp_path / "cache")}
    environment.pop("JAVA_HOME", None)
    if path is not None:
        environment["PATH"] = path
    return subprocess.run(
        [sys.executable, "-m", "sandbox", *arguments],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_lists_the_commands(tmp_path: Path) -> None:
    help_text = run(tmp_path, "--help").stdout
    assert all(command in help_text for command in ("up", "down", "status", "psql", "fetch"))


@pytest.mark.parametrize("command", [["status"], ["psql", "SELECT 1"]])
def test_commands_that_need_servers_report_that_none_run(tmp_path: Path, command: list[str]) -> None:
    ended = run(tmp_path, *command)
    assert (ended.returncode, ended.stderr) == (1, "nothing is running\n")


def test_the_cache_may_have_a_long_path(tmp_path: Path) -> None:
    ended = run(tmp_path / ("long" * 30), "status")
    assert (ended.returncode, ended.stderr) == (1, "nothing is running\n")


def test_down_without_servers_is_not_an_error(tmp_path: Path) -> None:
    ended = run(tmp_path, "down")
    assert (ended.returncode, ended.stdout) == (0, "nothing was running\n")


@pytest.mark.parametrize("arguments", [["up", "--postgres", "9"], ["up", "--brokers", "2"], ["sideways"], []])
def test_unknown_arguments_are_a_usage_error(tmp_path: Path, arguments: list[str]) -> None:
    ended = run(tmp_path, *arguments)
    assert ended.returncode == 2
    assert "usage:" in ended.stderr


def test_a_failed_download_is_reported(tmp_path: Path) -> None:
    ended = run(tmp_path, "fetch", "kafak")
    assert ended.returncode == 1
    assert ended.stderr.startswith("there is no kafak, only postgres-10")


def test_an_unknown_tool_is_reported(tmp_path: Path) -> None:
    ended = run(tmp_path, "tools", "helm", "hlem")
    assert (ended.returncode, ended.stderr) == (1, f"there is no tool hlem, only {', '.join(tools.names())}\n")


def test_missing_java_and_maven_are_reported_first(tmp_path: Path) -> None:
    ended = run(tmp_path, "up", path=str(tmp_path))
    assert ended.returncode == 1
    assert [line[:7] for line in ended.stderr.splitlines()[1:]] == ["* Java ", "* Maven"]
