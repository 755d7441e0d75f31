"""Runs the Spark job: a process of its own, started as any user would start it. Used by story.

https://spark.apache.org/docs/latest/submitting-applications.html
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyspark

from sandbox.errors import ServerError
from sandbox.spark import jars

JOB = Path(__file__).with_name("mirror.py")
SUBMIT = Path(sys.executable).with_name("spark-submit")

END_TIMEOUT_S = 10


class SparkJob:
    """The job and its files; run again, it goes on where it ended."""

    def __init__(self, directory: Path, bootstrap_servers: str, registry_url: str, topics: Sequence[str]) -> None:
        """Write the properties that Spark is started with."""
        directory.mkdir()
        self.directory = directory
        self.log = directory / "spark.log"
        properties_file = directory / "spark.properties"
        properties_file.write_text(properties(directory, jars(pyspark.__version__)))
        # spark-submit looks for PySpark with this Python, which need not be the first on the PATH
        self.command = ["env", f"PYSPARK_PYTHON={sys.executable}", str(SUBMIT)]
        self.command += ["--properties-file", str(properties_file), str(JOB)]
        self.command += ["--bootstrap-servers", bootstrap_servers, "--registry", registry_url]
        self.command += ["--directory", str(directory), *topics]

    def run(self, say: Callable[[str], None]) -> None:
        """Run to the end and pass on what it prints; ServerError if it fails."""
        with self.log.open("w") as log:
            process = subprocess.Popen(
                self.command,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # a group of its own, that can be ended as a whole
            )
        with process:
            try:
                for line in process.stdout or ():
                    say(line.rstrip())
                process.wait()
            finally:
                _end(process)
        if process.returncode != 0:
            raise ServerError(f"the Spark job ended with exit code {process.returncode}")


def properties(directory: Path, libraries: Sequence[Path]) -> str:
    """Return what Spark is told: where to find Kafka and Avro, and that it runs on this machine alone."""
    settings = {
        "spark.master": "local[2]",
        "spark.jars": ",".join(map(str, libraries)),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "spark" / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",  # as many as there are cores: the data are small
        "spark.ui.enabled": "false",
        # compiling queries and bytecode thoroughly would take longer than running them once
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    return "".join(f"{name} {value}\n" for name, value in settings.items())


def _environment() -> dict[str, str]:
    """Return the user's environment without what would lead to another Spark."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}


def _end(process: subprocess.Popen[str]) -> None:
    """End Spark and its JVM, if they still run."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
