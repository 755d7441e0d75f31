"""The commands and options of ``pgsluice-spark``. Used by :mod:`.cli` and :mod:`.commands`.

This module works without PySpark.

``tests/unit/pgsluice_spark/test_cli.py`` covers this module.
"""

import argparse
from collections.abc import Mapping
from typing import Final

from pgsluice_spark.report import lsn_number

HELP: Final[Mapping[str, str]] = {
    "mirror": "keep the tables of the target equal to PostgreSQL's",
    "changelog": "keep all changes of the tables",
    "audit": "compare the mirror with PostgreSQL, value by value",
    "view": "print the cut that the target has reached, and the state of each table",
    "lag": "print how far the target is behind the topics",
    "doctor": "look for problems that would keep a mirror from running, and print remedies",
    "submit": "run one of these commands on a cluster, by spark-submit",
    "jars": "print the packages for the installed PySpark, for spark.jars.packages",
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="pgsluice-spark", description="Copies PostgreSQL's tables into a lake with Spark."
    )
    commands = found.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in HELP.items():
        command = commands.add_parser(name, help=text, description=text)
        if name == "jars":
            continue
        command.add_argument("-c", "--config", required=True, metavar="FILE", help="the TOML file")
        if name in ("audit", "doctor", "lag", "view"):
            command.add_argument("--json", action="store_true", help="print JSON")
        if name == "submit":
            _add_placement(command)
        if name == "view":
            command.add_argument(
                "--at", type=_moment, metavar="CUT|LSN", help="read the last state up to this cut or LSN"
            )
        if name == "audit":
            command.add_argument("--differences", type=int, default=20, help="differing rows to list per table (20)")
            command.add_argument("--wait", type=float, default=120, metavar="SECONDS", help="limit of each wait (120)")
    return found


def _add_placement(command: argparse.ArgumentParser) -> None:
    command.add_argument("--master", help="local[*], yarn, k8s://https://..., spark://... (spark.master of the file)")
    command.add_argument("--deploy-mode", choices=("client", "cluster"), help="where the driver runs (client)")
    command.add_argument("--write", metavar="DIRECTORY", help="write the files to submit, and print the command")
    command.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="a command, such as: mirror")


def _moment(text: str) -> int | str:
    """Return the cut or the LSN that ``text`` names."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        lsn_number(text)
    except ValueError:
        message = f"{text!r} is neither a cut, such as 214, nor an LSN, such as 0/16B3748"
        raise argparse.ArgumentTypeError(message) from None
    return text
