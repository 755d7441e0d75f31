"""The Java that runs Kafka, and small Java programs against a set of jars. Used by kafka and by tests.

https://openjdk.org/jeps/330 (single-file source programs)
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path


def java() -> str:
    """Return the Java to use: that of ``JAVA_HOME``, else the one on the PATH."""
    if home := os.environ.get("JAVA_HOME"):
        return f"{home}/bin/java"
    return shutil.which("java") or "java"


def class_path(libraries: Path) -> str:
    """Return the class path of all jars in a directory."""
    return f"{libraries}/*"


def run_program(source: Path, libraries: Path, arguments: Sequence[str] = (), stdin: str = "") -> str:
    """Compile and run one source file with ``libraries`` on its class path; return what it prints."""
    command = [java(), "-cp", class_path(libraries), str(source), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout
