"""Runs small Java programs with a set of jars, on the Java that also runs Kafka. ``kafka`` and tests use this module.

https://openjdk.org/jeps/330 (single-file source programs)
"""

import hashlib
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sandbox.errors import ServerError
from sandbox.prerequisites import java


def class_path(libraries: Path) -> str:
    """Return the class path of all jars in a directory."""
    return f"{libraries}/*"


@cache
def build_id() -> str:
    """Return a digest that identifies the build of Java. Java cannot read the class archives of another build."""
    said = subprocess.run([java(), "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
    return hashlib.sha256(said.stdout).hexdigest()[:16]


def run_program(source: Path, libraries: Path, arguments: Sequence[str] = (), stdin: str = "") -> str:
    """Compile and run one source file with ``libraries`` on its class path. Return its output."""
    command = [java(), "-cp", class_path(libraries), str(source), *arguments]
    ended = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise ServerError(f"{source.name} failed:\n{ended.stderr}")
    return ended.stdout
