"""The command line: the commands of ``pgsluice``, and their exit codes.

This is the console script of the package. A command imports what it needs when it runs, so that small commands are
fast.
"""

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, cast

from pgsluice import __version__
from pgsluice.app import arguments
from pgsluice.errors import EXIT_BUG, PermissionDenied, PgsluiceError, UnavailableError, UsageError
from pgsluice.finding import Finding, Verdict
from pgsluice.lsn import format_lsn
from pgsluice.printable import printable, without_url_secrets

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from pgsluice.commands import Command
    from pgsluice.config import Settings, Sources
    from pgsluice.config.http import Http
    from pgsluice.kafka.commands import CommandClient

_EXIT_INTERRUPTED = 130
"""The exit code that shells report for a program that Ctrl-C has ended."""

_EXIT_BROKEN_PIPE = 141
"""The exit code that shells report for a program that wrote to a closed pipe."""

_CLEAR = "\x1b[H\x1b[J"
"""Moves a terminal's cursor to the top, and clears everything below it."""

_HTTP_OK = 200


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit code."""
    parser = arguments.parser(COMMANDS)
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        # An unknown argument may be a password, because a blank may have split the value of a --set.
        names = [one.partition("=")[0] for one in unknown if one.startswith("-")]
        parser.error(f"unrecognized arguments: {', '.join(names) or 'write --set KEY=VALUE as one argument'}")
    try:
        return cast("int", options.command(options))
    except PgsluiceError as error:
        if options.command in (_run, _registry):
            _log_end(error)
        else:
            _write_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except Exception:  # noqa: BLE001 - the last place that can report a bug
        _log_bug()
        return EXIT_BUG


def _write_error(error: PgsluiceError) -> None:
    first, *others = error.lines
    sys.stderr.write(without_url_secrets(_text([f"pgsluice: {first}", *others])))


def _log_end(error: PgsluiceError) -> None:
    """Log why a service ends. If the log is not JSON, write a plain sentence instead."""
    from pgsluice.app import log  # noqa: PLC0415 - only where something is logged

    logger = _logger()
    if not log.writes_json():
        _write_error(error)
        return
    first, *others = error.lines
    more = {"problems": [line.strip() for line in others]} if others else {}
    logger.critical("stopped", reason=first, **more, exit_code=error.exit_code)


def _log_bug() -> None:
    _logger().critical("unexpected exception, please report it", exc_info=True)


def _logger() -> "FilteringBoundLogger":
    """Return the logger of the command line.

    The logger works even if the settings cannot be used, because the error about the settings has to be logged as well.
    """
    import structlog  # noqa: PLC0415 - only where something is logged

    if not structlog.is_configured():
        _configure_log("info", "auto")
    return cast("FilteringBoundLogger", structlog.get_logger("pgsluice"))


def _configure_log(level: str, style: str) -> None:
    from pgsluice.app import log  # noqa: PLC0415 - only where something is logged

    log.configure(level, style)


# -- commands ------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    with _without_garbage_collection():
        from pgsluice.app import daemon  # noqa: PLC0415 - loads psycopg, confluent-kafka and aiohttp
    settings = _settings_to_start_with(options)
    daemon.run(settings, adopt_slot=options.adopt_slot)
    return 0


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Switch off garbage collection in this block, which makes imports a fifth faster.

    Imports create many objects that are never freed, so the collector would search them repeatedly and find nothing.
    """
    gc.disable()
    yield
    gc.enable()


def _registry(options: argparse.Namespace) -> int:
    # A registry can serve many pipelines. With --prefix, the settings need neither a pipeline's name nor its prefix.
    defaults = {"name": "registry", "kafka": {"topic_prefix": options.prefix[0]}} if options.prefix else {}
    if options.url and options.action == "serve":
        raise UsageError("--url is only for `registry export`: it names the server to export to")
    if options.url:
        options.set.append(f"schema_registry.url={options.url}")
    settings = _settings_to_start_with(options, defaults)
    from pgsluice.app import registry_commands  # noqa: PLC0415 - loads large libraries

    prefixes = options.prefix or [settings.kafka.topic_prefix]
    if options.action == "serve":
        registry_commands.serve_registry(settings, prefixes)
        return 0
    done = registry_commands.export_registry(settings, prefixes)
    lines = [
        f"{subject}: {exported} schemas exported, the server already had {known}"
        for subject, (exported, known) in done.items()
    ]
    return _say(*lines, f"{len(done)} subjects")


def _slot(options: argparse.Namespace) -> int:
    settings = _settings(options)
    from pgsluice.app import slots  # noqa: PLC0415 - loads large libraries

    name = settings.slot_name
    match options.action:
        case "create":
            consistent_point = slots.create_slot(settings)
            return _say(
                f"slot {name} created, its stream begins at {format_lsn(consistent_point)}",
                "start the pipeline once with `pgsluice run --adopt-slot`, because it has not created this slot itself",
            )
        case "drop":
            slots.drop_slot(settings)
            return _say(
                f"slot {name} dropped",
                "a pipeline that delivered changes from this slot starts again only with `pgsluice run --adopt-slot`",
            )
    state = slots.slot_status(settings)
    if state is None:
        raise UnavailableError(
            f"slot {name} does not exist: create it with `pgsluice slot create`, or let the first run create it"
        )
    return _say(*_outline(state))


def _tail(options: argparse.Namespace) -> int:
    settings = _settings(options)
    _configure_log("warning", settings.log.format)  # events of level info would appear among the changes
    from pgsluice.app.tail import command  # noqa: PLC0415 - loads large libraries

    return command.tail(settings, options, _write)


def _snapshot(options: argparse.Namespace) -> int:
    settings = _settings(options)
    from pgsluice.app import snapshot_cli, wiring  # noqa: PLC0415 - loads large libraries

    with wiring.command_client(settings) as client:
        if options.action == "status":
            return _say(*snapshot_cli.status(client))
        command = snapshot_cli.new_command(options.action, tuple(options.tables), options.where)
        return _give(client, command, options)


def _pause_or_resume(options: argparse.Namespace) -> int:
    settings = _settings(options)
    from pgsluice.app import snapshot_cli, wiring  # noqa: PLC0415 - loads large libraries

    with wiring.command_client(settings) as client:
        return _give(client, snapshot_cli.new_command(options.verb, (), ""), options)


def _give(client: "CommandClient", command: "Command", options: argparse.Namespace) -> int:
    """Send a command to the pipeline. Wait until it has been carried out, unless the user gave --detach."""
    from pgsluice.app import snapshot_cli  # noqa: PLC0415 - loads large libraries

    client.send(command)
    if options.detach:
        return _say(f"command {command.id} was sent")
    return snapshot_cli.follow(client, command, _say)


def _check(options: argparse.Namespace) -> int:
    findings = [_public(finding) for finding in _findings(options)]
    failed = [finding.exit_code for finding in findings if finding.verdict is Verdict.FAIL]
    if options.json:
        _say_document(json.dumps([_as_json(finding) for finding in findings], indent=2))
    else:
        _say(*_table(findings))
    return failed[0] if failed else 0


def _setup_sql(options: argparse.Namespace) -> int:
    settings = _settings(options)
    from pgsluice.app import setup_sql  # noqa: PLC0415 - loads large libraries

    return _say(*setup_sql.statements(settings, options.tables, offline=options.offline))


def _as_json(finding: Finding) -> dict[str, object]:
    """Return a finding for ``--json``. Only a failure has an exit code."""
    found = asdict(finding)
    if finding.verdict is not Verdict.FAIL:
        del found["exit_code"]
    return found


def _public(finding: Finding) -> Finding:
    detail, remedy = without_url_secrets(finding.detail), without_url_secrets(finding.remedy)
    return replace(finding, detail=detail, remedy=remedy)


def _findings(options: argparse.Namespace) -> list[Finding]:
    from pgsluice.config import SettingsError  # noqa: PLC0415 - loads pydantic

    try:
        sources = _sources(options)
        settings = _applied(sources)
    except SettingsError as error:
        return [
            Finding("configuration", Verdict.FAIL, problem.sentence, f"see {problem.origin}")
            for problem in error.problems
        ]
    found = [Finding("configuration", Verdict.OK, "can be used"), *_cautions(settings, sources)]
    if options.offline:
        return found
    from pgsluice.app import checks  # noqa: PLC0415 - loads large libraries

    return [*found, *checks.check(settings)]


def _table(findings: Sequence[Finding]) -> list[str]:
    names = [printable(finding.name) for finding in findings]
    width = max(map(len, names))
    lines = []
    for name, finding in zip(names, findings, strict=True):
        lines.append(f"{finding.verdict:<4}  {name:<{width}}  {finding.detail}")
        if finding.remedy:
            lines.append(f"{'':<4}  {'':<{width}}  -> {finding.remedy}")
    return lines


def _config(options: argparse.Namespace) -> int:
    from pgsluice.config import reference  # noqa: PLC0415 - loads pydantic

    if options.what == "show":
        sources = _sources(options)
        return _say_document(reference.show(sources.settings(), sources))
    if options.what == "schema":
        return _say_document(json.dumps(reference.schema(), indent=2))
    return _say_document(reference.example() if options.what == "example" else reference.markdown())


def _schema(_options: argparse.Namespace) -> int:
    from pgsluice.avro import type_table  # noqa: PLC0415 - only where it is printed

    return _say_document(type_table.markdown())


def _version(_options: argparse.Namespace) -> int:
    from pgsluice.native import speedups  # noqa: PLC0415 - only where it is printed

    return _say(f"pgsluice {__version__}, {speedups.describe()}")


def _health(options: argparse.Namespace) -> int:
    path = "/livez"
    if options.ready or options.role:
        path = f"/readyz?role={options.role}" if options.role else "/readyz"
    code, body = _ask(options, path)
    _say(body.strip())
    return 0 if code == _HTTP_OK else UnavailableError.exit_code


def _status(options: argparse.Namespace) -> int:
    if options.watch is None:
        return _say(*_status_lines(options))
    clear = _CLEAR if sys.stdout.isatty() else ""
    while True:
        try:
            lines = _status_lines(options)
        except (UnavailableError, PermissionDenied) as error:
            lines = [str(error)]  # the daemon may be restarting, or read a new token in a moment
        _write(clear + _text(lines))
        time.sleep(options.watch)


def _status_lines(options: argparse.Namespace) -> list[str]:
    code, body = _ask(options, "/status")
    try:
        status = json.loads(body) if code == _HTTP_OK else None
    except ValueError:
        status = None
    if not isinstance(status, Mapping):
        raise UnavailableError(
            f"the program at this address is not pgsluice: it answered HTTP {code} to the request for its status"
        )
    return _outline(status)


def _outline(value: object, indent: str = "") -> list[str]:
    """Return JSON as indented lines of names and values."""
    if isinstance(value, Mapping):
        width = max((len(name) for name in value), default=0)
        return [line for name, entry in value.items() for line in _outlined(name, entry, indent, width)]
    entries = value if isinstance(value, list) else [value]
    return [line for entry in entries for line in _outlined("-", entry, indent, 1)]


def _outlined(name: str, value: object, indent: str, width: int) -> list[str]:
    if isinstance(value, Mapping | list) and value:
        return [f"{indent}{name}", *_outline(value, f"{indent}  ")]
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    return [f"{indent}{name:<{width}}  {'-' if value is None or text in {'', '[]', '{}'} else text}"]


# -- what commands share -------------------------------------------------------------------------


def _text(lines: Iterable[str]) -> str:
    """Return the text to write. Control characters in a line are escaped, including line breaks."""
    return "".join(f"{printable(line)}\n" for line in lines)


def _say_document(text: str) -> int:
    """Print a text of several lines, in which names are escaped already. Return the exit code of success."""
    return _say(*text.rstrip("\n").split("\n"))


def _say(*lines: str) -> int:
    """Print a command's answer, line by line. Return the exit code of success."""
    _write(_text(lines))
    return 0


def _write(text: str) -> None:
    """Print whole lines, in which all untrusted text is escaped already."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # When Python ends, it writes the rest of its buffer. With /dev/null in place of the pipe, this succeeds.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_EXIT_BROKEN_PIPE)


def _sources(options: argparse.Namespace, defaults: Mapping[str, object] | None = None) -> "Sources":
    from pgsluice.config import Sources  # noqa: PLC0415 - loads pydantic

    return Sources.read(options.config, os.environ, options.set, defaults)


def _settings(options: argparse.Namespace, defaults: Mapping[str, object] | None = None) -> "Settings":
    return _applied(_sources(options, defaults))


def _settings_to_start_with(options: argparse.Namespace, defaults: Mapping[str, object] | None = None) -> "Settings":
    """Return the settings of a process that runs until it is stopped. Log a warning for each setting with a risk."""
    import structlog  # noqa: PLC0415 - only where something is logged

    sources = _sources(options, defaults)
    settings = _applied(sources)
    for finding in _cautions(settings, sources):
        structlog.get_logger("pgsluice").warning(finding.detail, about=finding.name, remedy=finding.remedy)
    return settings


def _applied(sources: "Sources") -> "Settings":
    settings = sources.settings()
    _configure_log(settings.log.level, settings.log.format)
    return settings


def _cautions(settings: "Settings", sources: "Sources") -> list[Finding]:
    """Return warnings about settings that work, but leave a risk."""
    from pgsluice.config import exposure, transport  # noqa: PLC0415 - loads pydantic

    return [*transport.findings(settings), *exposure.findings(settings, sources)]


def _ask(options: argparse.Namespace, path: str) -> tuple[int, str]:
    """Send a request to a running daemon. Return the status code and the answer."""
    from pgsluice.app.http import client  # noqa: PLC0415 - loads ssl

    http = _sources(options).http()
    if options.url:
        return client.ask(options.url, path, token_file=http.token_file)
    return client.ask(_url(http), path, token_file=http.token_file, cert_file=http.tls_cert_file)


def _url(http: "Http") -> str:
    """Return the URL of a daemon on this machine that has these settings."""
    listen = http.listen
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen.host, listen.host)  # noqa: S104 - compared, not bound
    return f"{'http' if http.tls_cert_file is None else 'https'}://{replace(listen, host=host)}"


COMMANDS: dict[str, arguments.Run] = {
    "run": _run,
    "check": _check,
    "setup-sql": _setup_sql,
    "slot": _slot,
    "tail": _tail,
    "snapshot": _snapshot,
    "pause": _pause_or_resume,
    "resume": _pause_or_resume,
    "registry": _registry,
    "status": _status,
    "health": _health,
    "config": _config,
    "schema": _schema,
    "version": _version,
}
