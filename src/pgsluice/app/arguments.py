"""The grammar of the command line.

``tests/unit/app/test_cli.py`` covers this module.

https://docs.python.org/3/library/argparse.html
"""

import argparse
from collections.abc import Callable, Mapping
from typing import NoReturn

from pgsluice.printable import printable, without_url_secrets

Run = Callable[[argparse.Namespace], int]

_SNAPSHOT = "Load tables through a running pipeline, and manage its loads."

_SNAPSHOT_ACTIONS = {
    "start": "Load tables, or load them again.",
    "status": "Print which tables are loaded, and the progress of loads.",
    "pause": "Read no more rows until `resume`. Changes are still delivered.",
    "resume": "Continue loads that were paused.",
    "cancel": "End loads. Rows that were delivered stay.",
}

_PAUSES = (
    ("pause", "pause_pipeline", "Pause a running pipeline, so that it delivers nothing until `resume`."),
    ("resume", "resume_pipeline", "Let a paused pipeline continue."),
)

_DETACH = "send the command, and do not wait until it has been carried out"

_PATTERN = "pattern of schema and table, as in tables.include; may be repeated"

_EXIT_CODES = """\
exit codes:
  0 done   2 usage   65 data that contradict one another or cannot be delivered   69 unavailable
  70 bug   75 draining took too long   77 permission denied   78 configuration
"""


class Parser(argparse.ArgumentParser):
    """A parser that hides secrets. The standard library's parser repeats unknown arguments in its error messages."""

    def error(self, message: str) -> NoReturn:
        """End the process with ``message``, from which possible secrets are removed."""
        super().error(without_url_secrets(printable(message)))


def parser(commands: Mapping[str, Run]) -> Parser:
    """Return the parser. In the parsed options, ``command`` is the function from ``commands`` that has to run."""
    made = Parser(
        prog="pgsluice",
        description="Change data capture from PostgreSQL to Apache Kafka.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    added = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    with_settings = _settings_options()

    def add(name: str, meaning: str) -> Parser:
        one = added.add_parser(name, help=meaning, description=meaning, parents=[with_settings], allow_abbrev=False)
        one.set_defaults(command=commands[name])
        return one

    run = add("run", "Deliver changes until SIGTERM or Ctrl-C.")
    run.add_argument("--adopt-slot", action="store_true", help="start at the slot's own position, without a checkpoint")
    check = add("check", "Check settings, PostgreSQL and Kafka before anything runs.")
    check.add_argument("--offline", action="store_true", help="check only the settings")
    check.add_argument("--json", action="store_true", help="print a JSON list")
    setup = add("setup-sql", "Print the SQL that prepares PostgreSQL: role, rights, publication, replica identities.")
    setup.add_argument("tables", nargs="+", metavar="TABLE", help="schema.table, to be published")
    setup.add_argument("--offline", action="store_true", help="do not ask the server what it has already")
    slot = add("slot", "Manage the replication slot.")
    slot.add_argument("action", choices=["create", "status", "drop"])
    snapshot = added.add_parser("snapshot", help=_SNAPSHOT, description=_SNAPSHOT, allow_abbrev=False)
    _add_snapshot_actions(snapshot, commands["snapshot"], with_settings)
    for name, verb, meaning in _PAUSES:
        one = add(name, meaning)
        one.add_argument("--detach", action="store_true", help=_DETACH)
        one.set_defaults(verb=verb)
    _add_tail(add("tail", "Print changes as they commit, from PostgreSQL or from the topics."))
    registry = add("registry", "Serve schemas through the registry's read API, or export them to a registry server.")
    registry.add_argument(
        "action",
        nargs="?",
        choices=["serve", "export"],
        default="serve",
        help="serve: serve the schemas of topic prefixes, without a pipeline. export: copy them, with their ids, to a "
        "registry server",
    )
    registry.add_argument(
        "--prefix", action="append", help="topic prefix, may be repeated (default: the configured one)"
    )
    registry.add_argument("--url", help="URL of the server to export to (default: schema_registry.url)")
    status = add("status", "Print the status of a running daemon.")
    status.add_argument("--url", help="URL of the daemon (default: the address in http.listen)")
    status.add_argument(
        "--watch",
        nargs="?",
        const=1.0,
        type=_seconds,
        metavar="SECONDS",
        help="print the status again every second, or every SECONDS, until Ctrl-C",
    )
    health = add("health", "Ask a running daemon whether it is live. Exit with 0 if it is, otherwise with 69.")
    health.add_argument("--url", help="URL of the daemon (default: the address in http.listen)")
    health.add_argument("--ready", action="store_true", help="ask whether it is ready instead")
    health.add_argument("--role", choices=["active"], help="ask whether it is ready and owns the slot")
    config = add("config", "Print the settings in force, an example file, the settings' JSON schema, or a reference.")
    config.add_argument("what", choices=["show", "example", "schema", "reference"])
    schema = add("schema", "Print which Avro type each type of PostgreSQL becomes.")
    schema.add_argument("what", choices=["types"])
    add("version", "Print the version.")
    return made


def _add_tail(tail: Parser) -> None:
    tail.add_argument("--kafka", action="store_true", help="read the topics of the pipeline, and not PostgreSQL")
    tail.add_argument("--table", action="append", default=[], metavar="PATTERN", help=f"only these tables: {_PATTERN}")
    tail.add_argument(
        "--op",
        action="append",
        default=[],
        choices=["insert", "update", "delete", "truncate", "read", "message"],
        help="only these changes; may be repeated",
    )
    tail.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="NAME",
        help="only these columns, and only changes that affect them; may be repeated",
    )
    tail.add_argument(
        "--xid", action="append", default=[], type=_count, help="only changes of this transaction; may be repeated"
    )
    tail.add_argument("--json", action="store_true", help="print one JSON object per line")
    tail.add_argument("--limit", type=_count, metavar="N", help="end after N changes")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86_400:  # noqa: PLR2004 - nobody needs a shorter or a longer interval
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 86400")
    return seconds


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _add_snapshot_actions(snapshot: Parser, command: Run, with_settings: Parser) -> None:
    actions = snapshot.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
    for action, meaning in _SNAPSHOT_ACTIONS.items():
        added = actions.add_parser(
            action, help=meaning, description=meaning, parents=[with_settings], allow_abbrev=False
        )
        added.set_defaults(command=command, tables=[], where="", detach=False)
        if action in ("start", "cancel"):
            added.add_argument(
                "tables", nargs="+", metavar="TABLE", help="pattern of schema and table, as in tables.include"
            )
        if action == "start":
            added.add_argument("--where", metavar="SQL", help="a condition: load only the rows that meet it")
        if action != "status":
            added.add_argument("--detach", action="store_true", help=_DETACH)


def _settings_options() -> Parser:
    options = Parser(add_help=False)
    options.add_argument("-c", "--config", metavar="FILE", help="settings file (default: $PGSLUICE_CONFIG)")
    options.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one setting, like postgres.host=db; may be repeated, takes precedence over all other sources",
    )
    return options
