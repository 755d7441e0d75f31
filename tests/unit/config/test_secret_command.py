"""Commands that print a secret.

The recipes of docs/configuration.md are tested as well, with scripts instead of the tools of cloud providers.
"""

import re
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pgsluice.config.secret_command import end_all, run
from pgsluice.config.secret_file import PASSWORD_BYTES_MAX
from pgsluice.errors import ConfigError, PgsluiceError, SourceUnavailable

DOCS = Path(__file__).parents[3] / "docs" / "configuration.md"
RECIPES = re.findall(r"^password_command = \[[^\]]+\]", DOCS.read_text(), re.MULTILINE)

SECRET = "s3cret"  # noqa: S105 - only for tests


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def failure(command: list[str], kind: type[PgsluiceError], time_limit_s: float = 30.0) -> str:
    """Return the error of a command that gives no secret. Check that the error does not quote the command's output."""
    with pytest.raises(PgsluiceError) as caught:
        run(command, "postgres.password_command", SourceUnavailable, time_limit_s)
    assert type(caught.value) is kind
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert str(caught.value).startswith("postgres.password_command: ")
    return str(caught.value)


@pytest.mark.parametrize("output", [SECRET, f"{SECRET}\\n", f"{SECRET}\\r\\n", f"{SECRET}\\nexpires soon\\n"])
def test_the_first_line_is_the_secret(output: str, capfd: pytest.CaptureFixture[str]) -> None:
    command = script(f"import sys; sys.stderr.write('{SECRET}'); sys.stdout.write('{output}')")
    assert run(command, "a.key", SourceUnavailable) == SECRET
    assert capfd.readouterr() == ("", "")


def test_arguments_are_not_interpreted_by_a_shell() -> None:
    assert run(["echo", "$HOME; `id` *"], "a.key", SourceUnavailable) == "$HOME; `id` *"


def test_a_command_has_no_input() -> None:
    assert run(script("import sys; print(len(sys.stdin.read()))"), "a.key", SourceUnavailable) == "0"


def test_a_command_that_fails() -> None:
    text = f"import sys; print('{SECRET}'); print('{SECRET}', file=sys.stderr); sys.exit(3)"
    words = failure(script(text), SourceUnavailable)
    assert f"{sys.executable} failed with exit code 3" in words
    assert "Run it by hand" in words


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    assert "cannot be started: No such file or directory" in failure(["/nowhere/vault"], ConfigError)
    file = tmp_path / "not-executable"
    file.touch()
    assert "cannot be started: Permission denied" in failure([str(file)], ConfigError)


@pytest.mark.parametrize(
    "text",
    [
        f"print('{SECRET}', flush=True); import time; time.sleep(60)",
        f"import os, time; print('{SECRET}', flush=True); os.close(1); time.sleep(60)",
        f"import subprocess; print('{SECRET}', flush=True); subprocess.Popen(['sleep', '60'])",
    ],
    ids=["before it closes its output", "after it has closed its output", "in a child that keeps the pipe open"],
)
def test_a_command_that_takes_too_long_is_killed(text: str) -> None:
    assert "took longer than 0.5 s" in failure(script(text), SourceUnavailable, 0.5)


def test_commands_that_nobody_waits_for_are_ended(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    text = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(60)"
    with ThreadPoolExecutor(1) as beside:
        failed = beside.submit(failure, script(text), SourceUnavailable, 60.0)
        while not begun.exists():
            time.sleep(0.01)
        end_all()
        assert "failed with exit code -9" in failed.result()


def test_a_command_that_prints_too_much_is_stopped() -> None:
    assert f"printed more than {PASSWORD_BYTES_MAX} bytes" in failure(["yes", SECRET], ConfigError)


@pytest.mark.parametrize("output", ["", f"\\n{SECRET}", f"{SECRET}\\0"])
def test_a_command_that_prints_no_secret(output: str) -> None:
    command = script(f"import sys; sys.stdout.write('{output}')")
    assert "Let the command print the secret, and nothing before it" in failure(command, ConfigError)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_gives_the_secret(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each recipe with a script in place of the tool. The script checks its arguments."""
    tools = {
        "aws": "rds generate-db-auth-token --hostname * --port 5432 --region * --username pgsluice",
        "gcloud": "sql generate-login-token",
        "vault": "read -field=password database/static-creds/pgsluice",
    }
    for name, arguments in tools.items():
        tool = tmp_path / name
        tool.write_text(
            f'#!/bin/sh\necho noise >&2\ncase "$*" in {arguments.replace(" ", chr(92) + " ")}) echo {SECRET};; esac\n'
        )
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert run(tomllib.loads(recipe)["password_command"], "postgres.password_command", SourceUnavailable) == SECRET


def test_the_documentation_has_recipes() -> None:
    assert len(RECIPES) == 3
