"""The mirror as an operator runs it: with a configuration file, a query that runs all the time, and audits.

``story`` uses this module. The query and the audits are separate processes, which are started as a user would start
them. The rows of the mirror are read without Spark.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyspark
from deltalake import DeltaTable

from sandbox.account import current_account
from sandbox.errors import ServerError
from sandbox.process import Server
from sandbox.spark import jars

PROGRAM = Path(sys.executable).with_name("pgsluice-spark")

POLL_S = 0.2
CATCH_UP_TIMEOUT_S = 180

WITH_OUTPUT_IN_FILE = ("/bin/sh", "-c", 'exec "$@" > "$0"')


class Mirror:
    """Delta tables in ``directory``, and the query that keeps them up to date. The query ends with the context."""

    def __init__(self, directory: Path, prefix: str, bootstrap_servers: str, registry: str, postgres: str) -> None:
        """Write the configuration file."""
        directory.mkdir()
        self._directory = directory
        self.lake = directory / "lake"
        self.config_file = directory / "mirror.toml"
        values = configuration(directory, prefix, bootstrap_servers, registry, postgres)
        self.config_file.write_text(values + spark_settings(directory, jars(pyspark.__version__)))
        self.shown = values
        self._query: Server | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._query is not None:
            self._query.dismiss()

    def command(self, name: str) -> list[str]:
        """Return the command line for a command of ``pgsluice-spark``."""
        return [str(PROGRAM), name, "-c", str(self.config_file)]

    def start(self) -> None:
        """Start the query."""
        self._query = self._process("mirror")

    def require_alive(self) -> None:
        """Raise ServerError if the query has ended."""
        if self._query is not None and not self._query.alive:
            raise ServerError("the query that keeps the mirror up to date has ended")

    def wait_until(self, cut: int) -> None:
        """Wait until the mirror has everything up to a cut."""
        end = time.monotonic() + CATCH_UP_TIMEOUT_S
        while self._cut() < cut:
            self.require_alive()
            if time.monotonic() > end:
                raise ServerError(f"the mirror is not up to date after {CATCH_UP_TIMEOUT_S} s")
            time.sleep(POLL_S)

    def audit(self, say: Callable[[str], None]) -> bool:
        """Compare the mirror with PostgreSQL, pass the report to ``say``, and return whether all tables are equal."""
        server = self._process("audit")
        try:
            exit_code = server.wait(CATCH_UP_TIMEOUT_S)
        finally:
            server.dismiss()
        say(self._output("audit").read_text())
        return exit_code == 0

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""
        found = DeltaTable(str(self.lake / f"public.{table}")).to_pyarrow_table().to_pylist()
        return [{name: value for name, value in row.items() if name != "_pgsluice"} for row in found]

    def _cut(self) -> int:
        control = self.lake / "_pgsluice_cuts"
        if not DeltaTable.is_deltatable(str(control)):
            return 0
        return max(DeltaTable(str(control)).to_pyarrow_table(columns=["cut"])["cut"].to_pylist(), default=0)

    def _process(self, name: str) -> Server:
        output = self._output(name)
        output.touch()
        command = [*WITH_OUTPUT_IN_FILE, str(output), *self.command(name)]
        log = self._directory / f"{name}.log"
        java = {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
        return Server(command, self._directory, log, current_account(), signal.SIGKILL, java)

    def _output(self, name: str) -> Path:
        return self._directory / f"{name}.out"


def configuration(directory: Path, prefix: str, bootstrap_servers: str, registry: str, postgres: str) -> str:
    """Return the configuration file without the settings of Spark."""
    return f"""\
[pipeline]
prefix = "{prefix}"
bootstrap_servers = "{bootstrap_servers}"

[registry]
url = "{registry}"

[target]
path = "{directory}/lake"
tables = ["public.*"]

[query]
checkpoint = "{directory}/checkpoint"
trigger = "1 second"

[postgres]
dsn = "{postgres}"
"""


def spark_settings(directory: Path, libraries: Sequence[Path]) -> str:
    """Return the settings of Spark: the paths of its jars, and local mode."""
    settings: Mapping[str, str] = {
        "spark.master": "local[2]",
        "spark.jars": ",".join(map(str, libraries)),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "spark" / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",  # one per core, because there is little data
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.ui.enabled": "false",
        # The demo is short, so full optimisation of the bytecode would take more time than it saves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    return "\n[spark]\n" + "".join(f'"{name}" = "{value}"\n' for name, value in settings.items())
