import json
import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import structlog

from pgsluice import __version__
from pgsluice.app import cli, log
from pgsluice.config import ListenAddress
from pgsluice.config.http import Http
from pgsluice.errors import UnavailableError
from pgsluice.finding import Finding, Verdict
from pgsluice.native import speedups
from tests.support.log import restored_logging  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("restored_logging")

SETTINGS = """\
version = 1
name = "shop"
[postgres]
host = "127.0.0.1"
port = 1
dbname = "shop"
user = "nobody"
[kafka]
bootstrap_servers = "127.0.0.1:1"
topic_prefix = "shop"
"""


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("PGSLUICE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "pgsluice.toml"
    path.write_text(SETTINGS)
    return str(path)


def pgsluice(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401 - of run()
    command = [sys.executable, "-m", "pgsluice", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)


# -- the process ---------------------------------------------------------------------------------


def test_the_module_is_the_command() -> None:
    result = pgsluice("version")
    assert (result.returncode, result.stdout, result.stderr) == (
        0,
        f"pgsluice {__version__}, {speedups.describe()}\n",
        "",
    )


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == f"pgsluice {__version__}, {speedups.describe()}\n"


def test_the_table_of_types_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", "types"]) == 0
    assert "| uuid | string, uuid |" in capsys.readouterr().out


def test_small_commands_load_nothing_heavy() -> None:
    code = (
        "import sys; from pgsluice.app.cli import main; main(['version']);"
        "sys.exit(sorted({'pydantic', 'psycopg', 'confluent_kafka', 'aiohttp', 'structlog'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr == "[]\n"


def test_usage_errors_exit_with_2() -> None:
    assert pgsluice().returncode == 2
    result = pgsluice("run", "--adopt")
    assert result.returncode == 2
    assert "unrecognized arguments: --adopt" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "--set", "postgres.password", "hunter2"),
        ("check", "--password=hunter2"),
        ("run", "postgres://u:hunter2@db"),
        ("postgres://u:hunter2@db",),
        ("status", "--url", "http://u:hunter2@[db"),
    ],
)
def test_refused_values_are_not_repeated(arguments: tuple[str, ...]) -> None:
    result = pgsluice(*arguments)
    assert result.returncode == 2
    assert "hunter2" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tail", "--limit", "0"), "'0' is not a positive whole number"),
        (("tail", "--xid", "x"), "'x' is not a positive whole number"),
        (("tail", "--op", "upsert"), "invalid choice: 'upsert'"),
        (("status", "--watch", "0"), "'0' is not a number of seconds from 0.1 to 86400"),
        (("status", "--watch", "soon"), "'soon' is not a number of seconds from 0.1 to 86400"),
        (("setup-sql",), "the following arguments are required: TABLE"),
    ],
)
def test_invalid_arguments_are_refused(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_table_that_is_not_a_pattern_is_refused_by_tail(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tail", "-c", file, "--table", "orders"]) == 2
    assert "--table 'orders' must be a pattern of schema and table" in capsys.readouterr().err


def test_help_names_commands_and_exit_codes() -> None:
    result = pgsluice("--help")
    assert result.returncode == 0
    for word in ("run", "check", "slot", "registry", "status", "health", "config", "version", "78 configuration"):
        assert word in result.stdout


def test_a_closed_output_pipe_is_not_an_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        result = subprocess.run(
            [sys.executable, "-m", "pgsluice", "config", "example"],
            stdout=closed, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (result.returncode, result.stderr) == (141, "")


def test_an_error_is_one_sentence_and_an_exit_code(file: str) -> None:
    result = pgsluice("slot", "status", "-c", file)
    assert result.returncode == 69
    assert result.stdout == ""
    assert result.stderr.startswith("pgsluice: PostgreSQL cannot be reached")


# -- settings ------------------------------------------------------------------------------------


def test_settings_come_from_file_environment_and_flags(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSLUICE_CONFIG", file)
    monkeypatch.setenv("PGSLUICE_POSTGRES__PASSWORD", "hunter2")
    assert cli.main(["config", "show", "--set", "log.level=debug", "--set", "name=other"]) == 0
    shown = capsys.readouterr().out
    assert 'name = "other"  # --set name\n' in shown
    assert f'user = "nobody"  # {file}:7\n' in shown
    assert 'password = "***"  # PGSLUICE_POSTGRES__PASSWORD\n' in shown


@pytest.mark.parametrize("command", ["run", "registry"])
def test_a_service_logs_why_it_ends(command: str) -> None:
    result = pgsluice(command, "--set", "log.level=loud", "--set", "x.y=1", "--set", 'name=a"b')
    assert result.returncode == 78
    (event,) = map(json.loads, result.stderr.splitlines())
    assert (event["event"], event["level"], event["exit_code"]) == ("stopped", "critical", 78)
    assert event["reason"] == "the configuration has 5 errors:"
    assert "--set x.y: is not a setting" in event["problems"]


def test_a_service_in_console_format_ends_with_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_options: object) -> int:
        log.configure(style="console")
        raise UnavailableError("The disk is full.")

    monkeypatch.setitem(cli.COMMANDS, "run", refused)
    assert cli.main(["run"]) == 69
    assert capsys.readouterr().err == "pgsluice: The disk is full.\n"


def test_wrong_settings_exit_with_78(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "show", "-c", file, "--set", "log.level=loud", "--set", "x.y=1"]) == 78
    assert capsys.readouterr().err == (
        "pgsluice: the configuration has 2 errors:\n"
        "  --set log.level: log.level: must be 'debug', 'info', 'warning' or 'error'\n"
        "  --set x.y: is not a setting\n"
    )


def test_settings_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["required"] == ["version", "name", "kafka"]
    assert cli.main(["config", "example"]) == 0
    assert "[tables]" in capsys.readouterr().out
    assert cli.main(["config", "reference"]) == 0
    assert "| `name` |" in capsys.readouterr().out


# -- check ---------------------------------------------------------------------------------------


def test_check_offline_looks_at_the_settings_only(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--offline", "-c", file]) == 0
    assert capsys.readouterr().out == "OK    configuration  can be used\n"


def test_check_warns_of_connections_that_are_not_encrypted(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--offline", "-c", file, "--set", "kafka.bootstrap_servers=kafka:9092"]) == 0
    _, warning, remedy = capsys.readouterr().out.splitlines()
    assert warning.startswith("WARN  kafka transport  security.protocol is PLAINTEXT: ")
    assert '-> Set "security.protocol" = "SSL"' in remedy


def test_check_and_a_start_warn_of_passwords_that_others_can_read(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path(file).open("a") as settings:
        settings.write('[schema_registry]\ntoken = "hunter2"\n')
    Path(file).chmod(0o644)
    assert cli.main(["check", "--offline", "-c", file]) == 0
    assert f"WARN  secret files   other users can read or change {file}, " in capsys.readouterr().out
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"http.listen=127.0.0.1:{taken.getsockname()[1]}"
        assert cli.main(["run", "-c", file, "--set", listen]) == 78
    assert "other users can read or change" in json.loads(capsys.readouterr().err.splitlines()[0])["event"]


def test_check_lists_every_problem_of_the_settings(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["check", "--offline", "-c", file, "--set", "x.y=1", "--set", "delivery.heartbeat=10"]
    assert cli.main(command) == 78
    assert capsys.readouterr().out == (
        "FAIL  configuration  delivery.heartbeat: '10' needs one of the units ms, s, min, h, d: perhaps '10ms'?\n"
        "                     -> see --set delivery.heartbeat\n"
        "FAIL  configuration  is not a setting\n"
        "                     -> see --set x.y\n"
    )
    assert cli.main([*command, "--json"]) == 78
    findings = json.loads(capsys.readouterr().out)
    assert findings[1] == {
        "name": "configuration", "verdict": "FAIL", "detail": "is not a setting", "remedy": "see --set x.y",
        "exit_code": 78,
    }  # fmt: skip


def test_only_a_failure_has_an_exit_code_in_json() -> None:
    assert "exit_code" not in cli._as_json(Finding("a", Verdict.OK, "fine"))
    assert cli._as_json(Finding("a", Verdict.FAIL, "broken", exit_code=69))["exit_code"] == 69


def test_findings_are_a_table() -> None:
    findings = [
        Finding("a", Verdict.OK, "fine"),
        Finding("wal_level", Verdict.WARN, "odd", "mend it"),
    ]
    assert cli._table(findings) == [
        "OK    a          fine",
        "WARN  wal_level  odd",
        "                 -> mend it",
    ]


# -- commands that need the daemon ---------------------------------------------------------------


@pytest.mark.parametrize("action", ["create", "status", "drop"])
def test_slot_commands_without_a_server_report_the_refused_connection(
    file: str, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["slot", action, "-c", file]) == 69
    assert "Connection refused" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run"], ["registry"], ["registry", "--prefix", "a", "--prefix", "b"]])
def test_addresses_that_are_in_use_are_reported(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"http.listen=127.0.0.1:{taken.getsockname()[1]}"
        needed = ["--set", "kafka.bootstrap_servers=127.0.0.1:1", "--set", listen]
        if "--prefix" not in command:
            needed += ["--set", "name=shop", "--set", "kafka.topic_prefix=shop"]
        assert cli.main([*command, *needed]) == 78
    assert "Address already in use" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "registry"])
def test_a_start_warns_of_connections_that_are_not_verified(
    command: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"http.listen=127.0.0.1:{taken.getsockname()[1]}"
        open_host = ["--set", "postgres.host=db.example.com", "--set", "postgres.sslmode=require"]
        assert cli.main([command, "-c", file, "--set", listen, *open_host]) == 78
    warning = json.loads(capsys.readouterr().err.splitlines()[0])
    assert warning["level"] == "warning"
    assert warning["event"].startswith("sslmode is require: the connection to db.example.com is encrypted, but ")
    assert 'postgres.sslmode = "verify-full"' in warning["remedy"]


def test_registry_export_needs_a_valid_address(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["registry", "--url", "http://127.0.0.1:1", "-c", file]) == 2
    assert "is only for `registry export`" in capsys.readouterr().err
    assert cli.main(["registry", "export", "-c", file]) == 78
    assert "schema_registry.url is not set" in capsys.readouterr().err
    assert cli.main(["registry", "export", "--url", "registry:8081", "-c", file]) == 78
    assert "must be addresses like" in capsys.readouterr().err


# -- health and status ---------------------------------------------------------------------------

EVIL = "a\x1b[2J\u202eb\nOK    wal_level"
ESCAPED = r"a\x1b[2J\u202eb\nOK    wal_level"

ANSWERS = {
    "/evil/status": (200, json.dumps({"prepared": [{"gid": EVIL}], EVIL: 1})),
    "/evil/livez": (503, f"{EVIL}\n"),
    "/livez": (200, "ok\n"),
    "/odd/status": (200, "no JSON"),
    "/list/status": (200, "[]"),
    "/readyz": (200, "ok\n"),
    "/readyz?role=active": (503, "standby\n"),
    "/status": (200, json.dumps({"state": "streaming", "confirmed_lsn": "0/1", "slot": {}, "cut": 0, "last_error": None,
                                 "ready": True, "tables": [{"name": "a.b", "rows": 5}, {"name": "c"}, "x"]})),
}  # fmt: skip


class Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        code, text = ANSWERS.get(self.path, (404, "not found\n"))
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_health_exits_with_the_answer_of_the_daemon(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["health", "--url", url]) == 0
    assert cli.main(["health", "--url", f"{url}/", "--ready"]) == 0
    assert capsys.readouterr().out == "ok\nok\n"
    assert cli.main(["health", "--url", url, "--role", "active"]) == 69
    assert capsys.readouterr().out == "standby\n"


def test_the_daemon_is_asked_at_the_address_in_the_settings(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = url.rpartition(":")[2]
    assert cli.main(["health", "--set", f"http.listen=0.0.0.0:{port}"]) == 0
    assert capsys.readouterr().out == "ok\n"


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("0.0.0.0:1", "http://127.0.0.1:1"),
        ("[::]:2", "http://[::1]:2"),
        ("[fe80::1]:3", "http://[fe80::1]:3"),
        ("db:4", "http://db:4"),
    ],
)
def test_a_daemon_that_listens_everywhere_is_asked_at_the_loopback_address(listen: str, url: str) -> None:
    assert cli._url(Http(listen=ListenAddress.parse(listen))) == url


def test_status_is_an_outline(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--url", url]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "state          streaming",
        "confirmed_lsn  0/1",
        "slot           -",
        "cut            0",
        "last_error     -",
        "ready          true",
        "tables",
        "  -",
        "    name  a.b",
        "    rows  5",
        "  -",
        "    name  c",
        "  -  x",
    ]
    assert cli.main(["status", "--url", f"{url}/elsewhere"]) == 69
    assert (
        "the program at this address is not pgsluice: it answered HTTP 404 to the request for its status"
        in capsys.readouterr().err
    )
    assert cli.main(["status", "--url", f"{url}/odd"]) == 69
    assert "it answered HTTP 200" in capsys.readouterr().err
    assert cli.main(["status", "--url", f"{url}/list"]) == 69


def test_a_daemon_that_does_not_answer_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert cli.main(["health", "--url", f"http://127.0.0.1:{port}"]) == 69
    assert f"no daemon answers at http://127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://u:hunter2@127.0.0.1:1", "https://u:hunter2@127.0.0.1", "http://u:hunter2@a:b"])
def test_passwords_in_urls_are_not_repeated(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["health", "--url", url]) != 0
    said = capsys.readouterr().err
    assert "hunter2" not in said
    assert "://***@" in said


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "127.0.0.1:8080", "http://", "http://a:b", "http://a..b:80"])
def test_urls_that_cannot_be_used_are_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["health", "--url", url]) == 2
    assert f"--url {url}: must look like http://127.0.0.1:8080" in capsys.readouterr().err


# -- untrusted text and unexpected errors --------------------------------------------------------


def test_answers_are_printed_without_control_characters(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--url", f"{url}/evil"]) == 0
    assert capsys.readouterr().out == f"prepared\n  -\n    gid  {ESCAPED}\n{ESCAPED}  1\n"
    assert cli.main(["health", "--url", f"{url}/evil"]) == 69
    assert capsys.readouterr().out == f"{ESCAPED}\n"


def test_findings_are_printed_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    cli._say(*cli._table([Finding(EVIL, Verdict.WARN, EVIL, EVIL), Finding("b", Verdict.OK, "")]))
    indent = " " * (len("WARN") + len(ESCAPED) + 4)
    assert capsys.readouterr().out == (
        f"WARN  {ESCAPED}  {ESCAPED}\n{indent}-> {ESCAPED}\nOK    {'b':<{len(ESCAPED)}}  \n"
    )


def test_errors_are_printed_without_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_options: object) -> int:
        raise UnavailableError(f"PostgreSQL says {EVIL}")

    monkeypatch.setitem(cli.COMMANDS, "version", refused)
    assert cli.main(["version"]) == 69
    assert capsys.readouterr().err == f"pgsluice: PostgreSQL says {ESCAPED}\n"
    with pytest.raises(SystemExit):
        cli.main(["version", f"--{EVIL}"])
    assert ESCAPED in capsys.readouterr().err


def test_errors_repeat_no_password_in_a_url(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_options: object) -> int:
        raise UnavailableError('could not translate host name "postgresql://u:hunter2@db/shop"')

    monkeypatch.setitem(cli.COMMANDS, "version", refused)
    assert cli.main(["version"]) == 69
    assert capsys.readouterr().err == 'pgsluice: could not translate host name "postgresql://***@db/shop"\n'
    finding = cli._public(Finding("a", Verdict.FAIL, "at http://u:hunter2@db", "not http://u:hunter2@db"))
    assert (finding.detail, finding.remedy) == ("at http://***@db", "not http://***@db")


def test_settings_are_printed_without_control_characters(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "a\x1b\nb.toml"
    file.write_text(f"{SETTINGS}[postgres.parameters]\nservice = {json.dumps(EVIL)}\n")
    assert cli.main(["config", "show", "-c", str(file)]) == 0
    shown = capsys.readouterr().out
    assert r'parameters.service = "a\u001b[2J\u202eb\nOK    wal_level"  # ' in shown
    assert "\x1b" not in shown
    assert tomllib.loads(shown)["postgres"]["parameters"]["service"] == EVIL
    assert cli.main(["config", "show", "-c", str(file), "--set", "log.level=1"]) == 78
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_bugs_are_logged_with_their_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(_options: object) -> int:
        raise AssertionError("planted")

    structlog.reset_defaults()
    monkeypatch.setitem(cli.COMMANDS, "version", bug)
    assert cli.main(["version"]) == 70
    assert cli.main(["version"]) == 70  # the second time, the log is already configured
    (line,) = capsys.readouterr().err.splitlines()
    event = json.loads(line)
    assert event["event"] == "unexpected exception, please report it"
    assert "AssertionError: planted" in event["exception"]


def test_ctrl_c_gives_the_exit_code_that_shells_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "version", interrupted)
    assert cli.main(["version"]) == 130
