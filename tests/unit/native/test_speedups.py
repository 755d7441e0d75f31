"""The choice between the twins, and the log line about it. A process chooses once, so each test starts a process."""

import os
import subprocess
import sys

import pytest

from pgsluice.errors import ConfigError
from pgsluice.native import speedups


def python(code: str, choice: str) -> str:
    """Run ``code`` in a process with this choice. Return its output."""
    environment = {**os.environ, speedups.VARIABLE: choice}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


SHOW = """
from pgsluice.native import speedups
from pgsluice.pipeline import encoders
print(speedups.NAME, encoders.Rows.__module__, speedups.describe(), sep="|")
"""
WITHOUT = "import sys; sys.modules['pgsluice.native.rows'] = None\n"
"""Code that makes the process behave as if the compiled modules had not been built."""

needs_compiled = pytest.mark.skipif(not speedups.COMPILED, reason="the compiled modules were not built here")


@needs_compiled
@pytest.mark.parametrize("choice", ["", "auto", "require"])
def test_the_built_modules_run(choice: str) -> None:
    assert python(SHOW, choice) == "compiled|pgsluice.native.rows|compiled"


def test_the_choice_off_uses_python() -> None:
    assert python(SHOW, "off") == "python|pgsluice.rows|pure Python (PGSLUICE_SPEEDUPS=off)"


def test_without_built_modules_python_runs_and_the_log_says_so() -> None:
    name, module, said = python(WITHOUT + SHOW, "auto").split("|")
    assert (name, module) == ("python", "pgsluice.rows")
    assert said.startswith("pure Python (not built, or not built for this Python: ")


CHECK = """
from pgsluice.native import speedups
from pgsluice.errors import ConfigError
try:
    print(speedups.check())
except ConfigError as error:
    print(error)
"""


def test_require_refuses_to_start_without_built_modules() -> None:
    said = python(WITHOUT + CHECK, "require")
    assert said.startswith("PGSLUICE_SPEEDUPS=require, but the compiled modules cannot be used: not built")
    assert "Install a wheel" in said


@pytest.mark.parametrize("choice", ["", "auto", "off"])
def test_only_the_choice_require_refuses_to_start(choice: str) -> None:
    assert python(WITHOUT + CHECK, choice) == "None"


def test_an_unknown_choice_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(speedups.VARIABLE, "yes")
    with pytest.raises(ConfigError, match="PGSLUICE_SPEEDUPS is 'yes': write one of auto, require, off"):
        speedups.check()
