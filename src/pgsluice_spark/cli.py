"""``pgsluice-spark``, which runs mirrors, change logs, views and audits from the shell, with settings in a TOML file.

``--help`` has to work without PySpark. So :mod:`.commands`, which needs PySpark, is imported only to run a command.
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from pgsluice_spark.command_line import parser
from pgsluice_spark.errors import WITHOUT_PYSPARK

EXIT_UNAVAILABLE: Final = 69


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command, and return the exit code."""
    options = parser().parse_args(arguments)
    if find_spec("pyspark") is None:
        print(f"pgsluice-spark: {options.command} needs PySpark. {WITHOUT_PYSPARK}", file=sys.stderr)  # noqa: T201 - the error message
        return EXIT_UNAVAILABLE
    from pgsluice_spark.commands import run  # noqa: PLC0415 - it needs PySpark

    return run(options)
