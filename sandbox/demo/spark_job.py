"""Runs the Spark job: a process of its own, started as any user would start it. Used by story.

https://spark.apache.org/docs/latest/submitting-applications.html
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyspark

from sandbox.account import current_account
from sandbox.errors import ServerError
from sandbox.process import Server
from sandbox.spark import jars

JOB = Path(__file__).with_name("mirror.py")
SUBMIT = Path(sys.executable).with_name("spark-submit")

POLL_S = 0.2

WITH_OUTPUT_IN_FILE = ("/bin/sh", "-c", 'exec "$@" > "$0"')


class SparkJob:
    """The job and its files; run again, it goes on where it ended."""

    def __init__(
        self, directory: Path, bootstrap_servers: str, registry_url: str, cuts: str, topics: Sequence[str]
    ) -> None:
        """Write the properties that Spark is started with."""
        directory.mkdir()
        self.directory = directory
        self._output = directory / "output"
        properties_file = directory / "spark.properties"
        properties_file.write_text(properties(directory, jars(pyspark.__version__)))
        self.command = ["env", *_variables(), str(SUBMIT), "--properties-file", str(properties_file), str(JOB)]
        self.command += ["--bootstrap-servers", bootstrap_servers, "--registry", registry_url]
        self.command += ["--directory", str(directory), "--cuts", cuts, *topics]

    def run(self, say: Callable[[str], None]) -> None:
        """Run to the end and pass on what it prints; ServerError if it fails."""
        self._output.touch()
        command = [*WITH_OUTPUT_IN_FILE, str(self._output), *self.command]
        log = self.directory / "spark.log"
        server = Server(command, self.directory, log, current_account(), signal.SIGKILL)
        try:
            self._follow(server, say)
            exit_code = server.wait(timeout_s=0)
        finally:
            server.dismiss()
        if exit_code != 0:
            raise ServerError(f"the Spark job ended with exit code {exit_code}")

    def _follow(self, server: Server, say: Callable[[str], None]) -> None:
        with self._output.open() as output:
            while server.alive:
                say(output.read())
                time.sleep(POLL_S)
            say(output.read())


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


def _variables() -> list[str]:
    """Return the environment of spark-submit: which Python, whose PySpark it takes, and which Java if that was said."""
    java_home = os.environ.get("JAVA_HOME")
    return [f"PYSPARK_PYTHON={sys.executable}", *([f"JAVA_HOME={java_home}"] if java_home else [])]
