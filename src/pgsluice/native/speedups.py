"""Chooses between the twins: the modules compiled from Cython, if they were built, or the modules in Python.

Code that needs a module with a twin imports the twin that ``COMPILED`` selects. The environment variable
``PGSLUICE_SPEEDUPS`` has three values. With ``auto``, the default, the compiled modules are used if they exist. With
``require``, pgsluice does not start without them. With ``off``, they are not used. Both twins give the same results,
byte for byte. They differ only in speed.
"""

import os
from importlib import import_module
from typing import Final

from pgsluice.errors import ConfigError

VARIABLE: Final = "PGSLUICE_SPEEDUPS"
_MODULES: Final = ("pgsluice.native.rows", "pgsluice.native.runs", "pgsluice.native.copy")

CHOICES: Final = ("auto", "require", "off")


def _choose(choice: str) -> tuple[bool, str]:
    """Return whether the compiled modules are used. If they are not, also return the reason."""
    if choice == "off":
        return False, f"{VARIABLE}=off"
    try:
        for module in _MODULES:
            import_module(module)
    except ImportError as error:
        return False, f"not built, or not built for this Python: {error}"
    return True, ""


COMPILED, WHY_NOT = _choose(os.environ.get(VARIABLE, ""))
NAME: Final = "compiled" if COMPILED else "python"
"""The implementation that runs, as a label of metrics."""


def check() -> None:
    """Raise ConfigError if the environment requires compiled modules that cannot be used."""
    choice = os.environ.get(VARIABLE) or CHOICES[0]
    if choice not in CHOICES:
        raise ConfigError(f"{VARIABLE} is {choice!r}: write one of {', '.join(CHOICES)}.")
    if choice == "require" and not COMPILED:
        raise ConfigError(
            f"{VARIABLE}=require, but the compiled modules cannot be used: {WHY_NOT}. pgsluice does not start. Install "
            "a wheel, or build with a C compiler and Python's headers. Without the variable, pgsluice runs in pure "
            "Python, which is slower."
        )


def describe() -> str:
    """Return the implementation that runs, and the reason if it is not the compiled one, as text for people."""
    return NAME if COMPILED else f"pure Python ({WHY_NOT})"
