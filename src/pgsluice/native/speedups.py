"""Which of two twins runs: the modules compiled from Cython where they were built, else those in Python.

Who uses a module that has a twin, chooses by ``COMPILED``. ``PGSLUICE_SPEEDUPS`` decides: ``auto`` (or nothing) takes
what is there, ``require`` refuses to start without the compiled ones, ``off`` leaves them alone. Both do the same, byte
for byte; only the time that it takes differs.
"""

import os
from importlib import import_module
from typing import Final

from pgsluice.errors import ConfigError

VARIABLE: Final = "PGSLUICE_SPEEDUPS"
_MODULES: Final = ("pgsluice.native.rows", "pgsluice.native.runs", "pgsluice.native.copy")

CHOICES: Final = ("auto", "require", "off")


def _choose(choice: str) -> tuple[bool, str]:
    """Return whether the compiled modules run, and why not."""
    if choice == "off":
        return False, f"{VARIABLE}=off"
    try:
        for module in _MODULES:
            import_module(module)
    except ImportError as error:
        return False, f"they were not built, or do not fit this Python: {error}"
    return True, ""


COMPILED, WHY_NOT = _choose(os.environ.get(VARIABLE, ""))
NAME: Final = "compiled" if COMPILED else "python"
"""For labels."""


def check() -> None:
    """Raise ConfigError when the environment asks for what is not there."""
    choice = os.environ.get(VARIABLE) or CHOICES[0]
    if choice not in CHOICES:
        raise ConfigError(f"{VARIABLE} is {choice!r}: write one of {', '.join(CHOICES)}.")
    if choice == "require" and not COMPILED:
        raise ConfigError(
            f"{VARIABLE}=require, but the compiled modules cannot be used: {WHY_NOT}. Install a wheel, or build with "
            "a C compiler and Python's headers at hand; without the variable pgsluice runs in pure Python, slower."
        )


def describe() -> str:
    """Return what runs, in words."""
    return NAME if COMPILED else f"pure Python ({WHY_NOT})"
