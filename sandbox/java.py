"""The Java that runs Kafka, and small Java programs against a set of jars. Used by kafka and by tests.

https://openjdk.org/jeps/330 (single-file source programs)
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from sandbox.errors import ServerError
from sandbox.prerequisites import java


def class_path(libraries: Path) -> str:
    """Return the class path of all jars in a directory."""
    return f"{libraries}/*"


def run_program(source: Path, libraries: Path, arguments: Sequence[str] = (), stdin: str = "") -> str:
    """Compile and run one source file with ``libraries`` on its class path; return what it prints."""
    command = [java(), "-cp", class_path(libraries), str(source), *arguments]
    ended = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise ServerError(f"{source.name} failed:\n{ended.stderr}")
    return ended.stdout
