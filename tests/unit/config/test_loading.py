import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from pgsluice.config import SettingsError, Sources, load
from pgsluice.config.loading import _sentences
from pgsluice.config.units import ListenAddress

LEAST = 'version = 1\nname = "shop"\n[kafka]\nbootstrap_servers = "a:1"\ntopic_prefix = "shop"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.toml"


def problems(content: str, file: Path, environ: dict[str, str] | None = None, *flags: str) -> list[str]:
    file.write_text(content)
    with pytest.raises(SettingsError) as caught:
        load(str(file), environ or {}, flags)
    assert caught.value.__cause__ is None
    return [str(problem).replace(str(file), "file") for problem in caught.value.problems]


def test_flags_come_before_variables_secrets_and_the_file(file: Path, tmp_path: Path) -> None:
    file.write_text(f'{LEAST}client = {{ "linger.ms" = 1, "batch.size" = 2 }}\n[postgres]\nhost = "f"\nuser = "f"\n')
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "postgres__user").write_text("s")
    (secrets / "postgres__dbname").write_text("s")
    environ = {
        "PGSLUICE_CONFIG": str(file),
        "PGSLUICE_SECRETS_DIR": str(secrets),
        "PGSLUICE_POSTGRES__DBNAME": "e",
        "PGSLUICE_POSTGRES__SSLCERT": "e",
        "PGSLUICE_KAFKA__CLIENT__LINGER_MS": "5",
    }
    settings = load(None, environ, ["postgres.sslcert=g"])
    assert settings.postgres.libpq_parameters() == {"host": "f", "user": "s", "dbname": "e", "sslcert": "g"}
    assert settings.kafka.client == {"compression.type": "lz4", "linger.ms": "5", "batch.size": "2"}


def test_a_file_named_by_flag_takes_precedence_over_the_variable(file: Path) -> None:
    file.write_text(LEAST)
    assert load(str(file), {"PGSLUICE_CONFIG": "absent"}).name == "shop"


def test_no_file_is_needed() -> None:
    environ = {
        "PGSLUICE_NAME": "shop",
        "PGSLUICE_KAFKA__BOOTSTRAP_SERVERS": "a:1",
        "PGSLUICE_KAFKA__TOPIC_PREFIX": "shop",
    }
    assert load(None, environ).version == 1


def test_settings_that_a_command_does_not_need_have_defaults() -> None:
    defaults = {"name": "registry", "kafka": {"topic_prefix": "a"}}
    sources = Sources.read(None, {}, ["kafka.bootstrap_servers=a:1", "name=b"], defaults)
    assert (sources.settings().name, sources.settings().kafka.topic_prefix) == ("b", "a")


def test_all_problems_are_reported_at_once_in_the_order_of_the_file(file: Path) -> None:
    content = """\
version = 2
nam = "x"
[postgres]
port = "many"
status_interval = 5
[kafka]
client = { acks = 1 }
[tables]
truncate = "emits"
include = "a.b"
[[tables.rules]]
mtch = "a.b"
[log]
level = 1
[http]
listen = "8080"
"""
    environ = {"PGSLUICE_X__Y": "1", "PGSLUICE_LOG__FORMAT": "jsn"}
    found = problems(content, file, environ, "postgres.create_slot=yes", "nonsense")
    assert [re.sub(r"(kafka.*: (is missing|cannot be set): ).*", r"\1...", line) for line in found] == [
        "--set number 2: is not KEY=VALUE: write it with an equals sign",
        "--set postgres.create_slot: postgres.create_slot: must be true or false",
        'file: name: is missing: write name = "shop" at the top of the file, or set PGSLUICE_NAME',
        "file:1: version: must be 1",
        "file:2: nam: is not a setting: did you mean name?",
        "file:4: postgres.port: must be an integer",
        'file:5: postgres.status_interval: a duration is a text with a unit (ms, s, min, h, d): write "5s" or "5ms"',
        "file:6: kafka.bootstrap_servers: is missing: ...",
        "file:6: kafka.topic_prefix: is missing: ...",
        "file:7: kafka.client.acks: cannot be set: ...",
        "file:9: tables.truncate: must be 'emit' or 'skip': did you mean emit?",
        "file:10: tables.include: must be a list",
        'file:11: tables.rules[0].match: is missing: write match = "public.orders" under [[tables.rules]]',
        "file:12: tables.rules[0].mtch: is not a setting: did you mean tables.rules.match?",
        "file:14: log.level: must be 'debug', 'info', 'warning' or 'error'",
        "file:16: http.listen: '8080' is not an address with a port: write it like '0.0.0.0:8080'",
        "PGSLUICE_LOG__FORMAT: log.format: must be 'auto', 'json' or 'console': did you mean json?",
        "PGSLUICE_X__Y: is not a setting",
    ]


def test_every_required_key_of_a_missing_table_is_reported(file: Path) -> None:
    assert [line.partition(": is missing")[0] for line in problems("", file)] == [
        "file: version",
        "file: name",
        "file: kafka.bootstrap_servers",
        "file: kafka.topic_prefix",
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("postgres = 1", "file:1: postgres: must be a table"),
        ("postgres.host = 1", "file:1: postgres.host: must be a text in quotes"),
        ("postgres.host = ''", "file:1: postgres.host: must not be empty: leave the key out instead"),
        ("postgres.port = 0", "file:1: postgres.port: must be at least 1"),
        ("postgres.port = 65536", "file:1: postgres.port: must be at most 65535"),
        ("postgres.publications = []", "file:1: postgres.publications: must not be empty"),
        ("unheard_of = 1", "file:1: unheard_of: is not a setting"),
    ],
)
def test_problems_are_described_in_sentences(file: Path, line: str, sentence: str) -> None:
    assert problems(f"{line}\n{LEAST}", file) == [sentence]


def test_errors_without_a_message_of_ours_use_pydantics_message() -> None:
    error = ValidationError.from_exception_data("x", [{"type": "finite_number", "loc": ("a",), "input": "hunter2"}])
    (detail,) = error.errors()
    assert list(_sentences(detail)) == [(("a",), "Input should be a finite number")]


def test_a_check_of_two_keys_points_to_the_key_that_is_set(file: Path) -> None:
    (line,) = problems(f'{LEAST}[postgres]\nwal_sender_timeout = "6s"\n', file)
    assert line.startswith("file:6: postgres.status_interval: is 5s, more than a third")
    (line,) = problems(LEAST, file, {"PGSLUICE_POSTGRES__WAL_SENDER_TIMEOUT": "6s"})
    assert line.startswith("file: postgres.status_interval: is 5s, more than a third")


def test_entries_of_a_list_come_from_one_source(file: Path) -> None:
    environ = {"PGSLUICE_TABLES__RULES": '[{"match": "a.b"}, {"topic": "{prefix}.x"}]'}
    (line,) = problems(f'{LEAST}[[tables.rules]]\nmatch = "x"\n[[tables.rules]]\nmatch = "y"\n', file, environ)
    assert line.startswith("PGSLUICE_TABLES__RULES: tables.rules[1].match: is missing")


def test_missing_keys_are_not_reported_if_the_file_cannot_be_read(file: Path) -> None:
    assert set(problems("a = [", file, {"PGSLUICE_X__Y": "1"})) == {
        "file: is not TOML: Invalid value (at end of document)",
        "PGSLUICE_X__Y: is not a setting",
    }


def test_secrets_are_in_no_message(file: Path, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "kafka__client__acks").write_text("hunter1")
    (secrets / "postgres__dsn").write_text("hunter2")
    environ = {"PGSLUICE_SECRETS_DIR": str(secrets), "PGSLUICE_KAFKA__CLIENT__ERROR_CB": "hunter3"}
    content = f"{LEAST}[postgres]\npassword = 31337\nparameters = {{ pasword = 'hunter4' }}\n"
    lines = problems(content, file, environ, "postgres.sslpasword=hunter5")
    assert len(lines) == 6
    assert not any(secret in line for line in lines for secret in ("hunter", "31337"))


def test_the_listen_address_is_read_from_invalid_settings(file: Path) -> None:
    assert Sources.read(None, {}).http().listen == ListenAddress("127.0.0.1", 8080)
    sources = Sources.read(None, {"PGSLUICE_X__Y": "1"}, ["http.listen=[::]:80"])
    assert sources.http().listen == ListenAddress("::", 80)
    with pytest.raises(SettingsError, match=r"--set http\.listen: http\.listen: 'x' is not an address"):
        Sources.read(None, {}, ["http.listen=x"]).http()
    with pytest.raises(SettingsError, match="cannot be read"):
        Sources.read(str(file), {}).http()


def test_variables_that_are_empty_name_no_file() -> None:
    sources = Sources.read(None, {"PGSLUICE_CONFIG": "", "PGSLUICE_SECRETS_DIR": ""})
    assert [layer.problems for layer in sources.layers] == [[]] * 5
