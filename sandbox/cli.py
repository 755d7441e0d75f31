"""The commands of ``python -m sandbox``."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from psycopg.conninfo import make_conninfo

from sandbox import apicurio, containers, prompt, session, tools
from sandbox.account import server_account
from sandbox.artifacts import fetch, targets
from sandbox.errors import SandboxError
from sandbox.installation import VERSIONS, prepare, target
from sandbox.kafka import class_archive
from sandbox.postgres import DEFAULT_VERSION

CLUSTER_SIZES = (1, 3)


def run(arguments: Sequence[str]) -> None:
    """Run the command. Raise SandboxError if it fails."""
    options = _parser().parse_args(arguments)
    options.command(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sandbox", description="Real PostgreSQL and Kafka on this machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, summary in (
        ("up", _up, "start PostgreSQL and Kafka, and print their addresses"),
        ("serve", _serve, "the same as up, but stay in the foreground until SIGTERM"),
    ):
        starting = commands.add_parser(name, help=summary)
        starting.set_defaults(command=command)
        starting.add_argument("--postgres", type=int, choices=VERSIONS, default=DEFAULT_VERSION, metavar="VERSION")
        starting.add_argument("--brokers", type=int, choices=CLUSTER_SIZES, default=1)
    commands.add_parser("down", help="stop PostgreSQL and Kafka").set_defaults(command=_down)
    commands.add_parser("status", help="print which servers run").set_defaults(command=_status)
    psql = commands.add_parser("psql", help="run SQL on the running PostgreSQL")
    psql.set_defaults(command=_psql)
    psql.add_argument("--dbname", default="postgres")
    psql.add_argument("statement", nargs="?", help="the SQL statement; without it, open a prompt")
    fetching = commands.add_parser("fetch", help="download what the other commands need, or only these targets")
    fetching.set_defaults(command=_fetch)
    fetching.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(targets())}; default: all")
    making = commands.add_parser(
        "tools", help="build the tools of tests/platform: Helm, a Kubernetes API server, images"
    )
    making.set_defaults(command=_tools)
    possible = f"one of {', '.join(tools.names())}; default: all that can be built here in a few minutes"
    making.add_argument("tools", nargs="*", metavar="TOOL", help=possible)
    return parser


def _up(options: argparse.Namespace) -> None:
    print(session.up(options.postgres, options.brokers))


def _serve(options: argparse.Namespace) -> None:
    session.serve(options.postgres, options.brokers)


def _down(_: argparse.Namespace) -> None:
    print("down" if session.down() else "nothing was running")


def _status(_: argparse.Namespace) -> None:
    print(_current())


def _psql(options: argparse.Namespace) -> None:
    prompt.run(make_conninfo(_current().postgres, dbname=options.dbname), options.statement)


def _fetch(options: argparse.Namespace) -> None:
    for name in options.targets or targets():
        print(_prepare(name))


def _tools(options: argparse.Namespace) -> None:
    unknown = sorted(set(options.tools) - set(tools.names()))
    if unknown:
        raise SandboxError(f"there is no tool {', '.join(unknown)}, only {', '.join(tools.names())}")
    if options.tools:
        for name in options.tools:
            print(tools.directory(name), flush=True)
        return
    for tool in tools.all_tools():
        if not tool.optional:
            _make(tool.name, tools.lacking(tool.name), partial(tools.directory, tool.name))
    _make("the programs for containers", containers.missing(), containers.prepare)


def _make(name: str, lacking: str | None, make: Callable[[], Path]) -> None:
    """Build a tool into the cache, or print why it cannot be built. Tests that need the tool also report the reason."""
    try:
        print(make() if lacking is None else f"{name} cannot be built here: {lacking}", flush=True)
    except SandboxError as error:
        print(f"{name} could not be built: {error}", flush=True)


def _prepare(name: str) -> Path:
    versions = {target(version): version for version in VERSIONS}
    if name == apicurio.TARGET:
        return apicurio.installation()
    if name == "kafka":
        class_archive()
    return prepare(versions[name], server_account()) if name in versions else fetch(name)


def _current() -> session.State:
    state = session.current()
    if state is None:
        raise SandboxError("nothing is running")
    return state
