"""``python -m tests.spark.floor [pytest options]`` runs the tests of this directory with the oldest supported PySpark.

That PySpark is kept in the sandbox's cache, and comes before the installed PySpark in the import path.
"""

import os
import subprocess
import sys
from pathlib import Path

from sandbox.artifacts import cache_root, make_entry, output_of
from sandbox.spark import FLOOR

HERE = Path(__file__).parent


def install(directory: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(directory)]
    output_of([*pip, f"pyspark=={FLOOR}"])


def main(options: list[str]) -> int:
    directory = make_entry(cache_root(), f"pyspark-{FLOOR}", install)
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", str(HERE), *options], env=environment, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
