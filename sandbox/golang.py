"""Builds programs from Go modules, and finds files in modules. ``tools`` uses this module.

Go fetches modules through the proxy that Go's own settings name, and checks the modules against Go's checksum database.
Go keeps modules and compiled packages in its own caches.

https://go.dev/ref/mod
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandbox.artifacts import output_of
from sandbox.errors import FetchError

BUILD_FLAGS = "-ldflags=-s -w"
"""These flags omit the debugging symbols, which makes a program a third smaller."""


def missing() -> str | None:
    """Return the reason why Go programs cannot be built here, or None if they can."""
    return None if shutil.which("go") else "Go is not on the PATH: install it (https://go.dev/dl)"


def install(package: str, version: str, directory: Path) -> None:
    """Build the program from ``package`` into ``directory``."""
    _go("install", BUILD_FLAGS, f"{package}@{version}", variables={"GOBIN": str(directory)})


def module_directory(module: str, version: str) -> Path:
    """Return the read-only directory with the sources of a module. Fetch the module if necessary."""
    return Path(json.loads(_go("mod", "download", "-json", f"{module}@{version}"))["Dir"])


def requirements(module: Path) -> list[dict[str, str]]:
    """Return the requirements of ``go.mod`` in the directory ``module``, each with Path and Version."""
    found: dict[str, Any] = json.loads(_go("mod", "edit", "-json", str(module / "go.mod")))
    return [{"Path": entry["Path"], "Version": entry["Version"]} for entry in found["Require"]]


def build(package: str, flags: str, directory: Path, program: Path) -> None:
    """Build ``program`` from ``package`` with the dependencies of the module in ``directory``."""
    _go("build", f"-ldflags=-s -w {flags}", "-o", str(program), package, directory=directory)


def tidy(directory: Path) -> None:
    """Complete the requirements of the module in ``directory``. Missing packages that only tests need are ignored."""
    _go("mod", "tidy", "-e", directory=directory)


def _go(*arguments: str, directory: Path | None = None, variables: Mapping[str, str] | None = None) -> str:
    if reason := missing():
        raise FetchError(reason)
    # Use the installed toolchain. Do not fetch another version, even if a module asks for it.
    environ = {**os.environ, "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", **(variables or {})}
    return output_of(["go", *arguments], directory=directory or Path("/"), variables=environ)
