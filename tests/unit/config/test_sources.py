import os
from pathlib import Path

import pytest

from pgsluice.config.problems import Problem, unreadable
from pgsluice.config.sources import Layer, environment_layer, file_layer, flags_layer, secrets_layer


def test_a_file_remembers_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("version = 1\r\n[kafka.topics]\r\npartitions = 3\r\n", newline="")
    layer = file_layer(str(file))
    assert layer.values == {"version": 1, "kafka": {"topics": {"partitions": 3}}}
    assert layer.origin(("kafka", "topics", "partitions")) == f"{file}:3"
    assert layer.origin(("kafka", "topics", "name")) == f"{file}:2"
    assert layer.origin(("name",)) == str(file)
    assert not layer.broken


def test_without_a_file_the_version_is_1() -> None:
    layer = file_layer(None)
    assert layer.values == {"version": 1}
    assert layer.origin(("name",)) == "settings (no file was given with -c or PGSLUICE_CONFIG)"


@pytest.mark.parametrize(
    ("content", "line", "sentence"),
    [
        (b"a = 1\nb = \n", ":2", "is not TOML: Invalid value, at column 5"),
        (b"a = [", "", "is not TOML: Invalid value (at end of document)"),
        (b"a = SCRAM\n", ":1", "is not TOML: Invalid value, at column 5. A text has to be in quotes"),
        (
            b"a = 5min\n",
            ":1",
            "is not TOML: Expected newline or end of document after a statement, at column 6. A text has to be",
        ),
        (b"a = true\na = false\n", ":2", "is not TOML: Cannot overwrite a value, at column 10"),
        (b"[a\n", ":1", "is not TOML: Expected ']' at the end of a table declaration, at column 3"),
        (b"a = 1\na = 2\n", ":2", "is not TOML: Cannot overwrite a value, at column 6"),
        (b"a = {", "", "is not TOML: "),
        (b"a = '\xff'", "", "is not UTF-8 text"),
    ],
)
def test_files_that_are_not_toml_are_refused(tmp_path: Path, content: bytes, line: str, sentence: str) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(content)
    layer = file_layer(str(file))
    (problem,) = layer.problems
    assert problem.origin == f"{file}{line}"
    assert problem.sentence.startswith(sentence)
    assert layer.broken


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    layer = file_layer(str(tmp_path / "absent"))
    (problem,) = layer.problems
    assert problem.origin == str(tmp_path / "absent")
    assert problem.sentence.startswith("cannot be read: No such file or directory. Start from `pgsluice config")


def test_a_directory_in_place_of_the_file_is_reported(tmp_path: Path) -> None:
    (problem,) = file_layer(str(tmp_path)).problems
    assert problem.sentence.startswith("cannot be read: Is a directory. Docker creates a directory if the file")


def test_secret_files_are_named_like_keys(tmp_path: Path) -> None:
    (tmp_path / "postgres__password").write_text("s3cret\n")
    (tmp_path / "KAFKA__CLIENT__SASL.PASSWORD").write_text("hush\r\n", newline="")
    (tmp_path / "kafka__client__sasl_username").write_text("a\n\n")
    (tmp_path / "kafka__client__log_level").write_text("7\n")
    (tmp_path / "ca.crt").write_text("somebody else's")
    (tmp_path / "..2026__data").write_text("how Kubernetes swaps directories")
    (tmp_path / "a__directory").mkdir()
    os.mkfifo(tmp_path / "postgres__user")  # reading from it would never end
    layer = secrets_layer(str(tmp_path))
    assert layer.problems == []
    assert layer.values == {
        "postgres": {"password": "s3cret"},
        "kafka": {"client": {"sasl.password": "hush", "sasl.username": "a\n", "log_level": "7"}},
    }
    assert layer.origin(("postgres", "password")) == f"{tmp_path}/postgres__password"


def test_secret_files_that_cannot_be_used_are_reported(tmp_path: Path) -> None:
    (tmp_path / "postgres__pasword").write_text("hunter2")
    (tmp_path / "postgres__user").write_bytes(b"\xff")
    layer = secrets_layer(str(tmp_path))
    assert layer.problems == [
        Problem(f"{tmp_path}/postgres__pasword", "is not a setting: did you mean postgres__password?"),
        Problem(f"{tmp_path}/postgres__user", "is not UTF-8 text"),
    ]
    absent = secrets_layer(str(tmp_path / "absent"))
    assert absent.problems == [
        Problem("PGSLUICE_SECRETS_DIR", f"{tmp_path}/absent cannot be read: No such file or directory")
    ]
    assert secrets_layer(None) == Layer("PGSLUICE_SECRETS_DIR")


def test_a_directory_or_a_broken_link_in_place_of_a_secret_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "postgres__password").mkdir()
    (tmp_path / "postgres__user").symlink_to("absent")
    assert secrets_layer(str(tmp_path)).problems == [
        Problem(f"{tmp_path}/postgres__password", unreadable(IsADirectoryError(21, "Is a directory"))),
        Problem(f"{tmp_path}/postgres__user", "cannot be read: No such file or directory"),
    ]


def test_a_secret_file_may_vanish_while_it_is_read(tmp_path: Path) -> None:
    # is_file() follows this link and returns True, but reading fails, because no memory is mapped at address 0.
    (tmp_path / "postgres__password").symlink_to("/proc/self/mem")
    (problem,) = secrets_layer(str(tmp_path)).problems
    assert problem.sentence.startswith("cannot be read: ")


def test_variables_are_named_like_keys() -> None:
    layer = environment_layer(
        {
            "PGSLUICE_NAME": "shop",
            "PGSLUICE_POSTGRES__PORT": "5433",
            "PGSLUICE_POSTGRES__CREATE_SLOT": "false",
            "PGSLUICE_POSTGRES__PUBLICATIONS": "a, b",
            "PGSLUICE_POSTGRES__PARAMETERS__TARGET_SESSION_ATTRS": "any",
            "PGSLUICE_KAFKA__CLIENT": '{"linger.ms": 5}',
            "PGSLUICE_KAFKA__CLIENT__SASL_PASSWORD": "hush",
            "PGSLUICE_KAFKA__TOPICS__CONFIG__MIN_INSYNC_REPLICAS": "2",
            "PGSLUICE_TABLES__RULES": '[{"match": "a.b"}]',
            "PGSLUICE_TABLES__EXCLUDE": ' ["a.b"]',
        }
    )
    assert layer.problems == []
    assert layer.values == {
        "name": "shop",
        "postgres": {
            "port": 5433,
            "create_slot": False,
            "publications": ["a", "b"],
            "parameters": {"target_session_attrs": "any"},
        },
        "kafka": {
            "client": {"linger.ms": 5, "sasl.password": "hush"},
            "topics": {"config": {"min.insync.replicas": "2"}},
        },
        "tables": {"rules": [{"match": "a.b"}], "exclude": ["a.b"]},
    }
    assert layer.origin(("tables", "rules", 0, "match")) == "PGSLUICE_TABLES__RULES"


def test_variables_with_bytes_that_are_not_utf8_are_reported() -> None:
    layer = environment_layer({"PGSLUICE_POSTGRES__PASSWORD": "hush\udcff", "PGSLUICE_NAME": "shop"})
    assert layer.problems == [Problem("PGSLUICE_POSTGRES__PASSWORD", "is not UTF-8 text")]
    assert layer.values == {"name": "shop"}


def test_variables_of_others_are_ignored() -> None:
    others = {
        "PGSLUICE_PORT": "tcp://10.0.0.1:8080", "PGSLUICE_SERVICE_HOST": "10.0.0.1", "PGSLUICE_CONFIG": "x",
        "PGSLUICE_SECRETS_DIR": "x", "PGSLUICE_VERSION": "0.1.0", "OTHER__NAME": "x", "NAME": "x",
    }  # fmt: skip
    assert environment_layer(others) == Layer("environment")


def test_one_underscore_instead_of_two_is_a_problem() -> None:
    meant = {
        "PGSLUICE_POSTGRES_PASSWORD": "PGSLUICE_POSTGRES__PASSWORD",
        "PGSLUICE_KAFKA_TOPIC_PREFIX": "PGSLUICE_KAFKA__TOPIC_PREFIX",
        "PGSLUICE_KAFKA_CLIENT_SASL_PASSWORD": "PGSLUICE_KAFKA__CLIENT__SASL_PASSWORD",
    }
    layer = environment_layer({**dict.fromkeys(meant, "x"), "PGSLUICE_POSTGRES_PORT": "tcp://10.0.0.1:5432"})
    assert layer.values == {}
    assert {one.origin: one.sentence for one in layer.problems} == {
        name: f"is not a setting: did you mean {right}?" for name, right in meant.items()
    }


def test_unknown_variables_are_problems() -> None:
    layer = environment_layer({"PGSLUICE_POSTGRES__HOTS": "a", "PGSLUICE_X__Y": "b", "PGSLUICE_LOG__LEVEL__X": "c"})
    assert layer.values == {}
    assert layer.problems == [
        Problem("PGSLUICE_LOG__LEVEL__X", "is not a setting"),
        Problem("PGSLUICE_POSTGRES__HOTS", "is not a setting: did you mean PGSLUICE_POSTGRES__HOST?"),
        Problem("PGSLUICE_X__Y", "is not a setting"),
    ]


def test_values_of_wrong_types_are_left_to_the_model() -> None:
    layer = environment_layer(
        {
            "PGSLUICE_POSTGRES__PORT": "many",
            "PGSLUICE_POSTGRES__CREATE_SLOT": "yes",
            "PGSLUICE_KAFKA__CLIENT": "acks=1",
            "PGSLUICE_KAFKA__CLIENT__LINGER_MS": "5",
        }
    )
    assert layer.problems == []
    assert layer.values == {"postgres": {"port": "many", "create_slot": "yes"}, "kafka": {"client": "acks=1"}}


def test_invalid_json_is_a_problem_that_does_not_repeat_the_value() -> None:
    layer = environment_layer({"PGSLUICE_KAFKA__CLIENT": '{"sasl.password": "hunter2}'})
    assert layer.problems == [Problem("PGSLUICE_KAFKA__CLIENT", "is not JSON: Unterminated string, at column 19")]


def test_flags_are_keys_and_values() -> None:
    layer = flags_layer(
        [
            "postgres.host=a=b",
            "kafka.client.sasl.password=x",
            " name =y",
            "kafka.topics.partitions=-1",
            "log.x=1",
        ]
    )
    assert layer.values == {
        "postgres": {"host": "a=b"},
        "kafka": {"client": {"sasl.password": "x"}, "topics": {"partitions": -1}},
        "name": "y",
    }
    assert layer.origin(("postgres", "host")) == "--set postgres.host"
    assert layer.problems == [
        Problem("--set log.x", "is not a setting"),
    ]


@pytest.mark.parametrize(
    ("flag", "origin"),
    [
        ("log", "--set log"),
        ("postgres.password hunter2", "--set postgres.password"),
        ("postgres.password:hunter2", "--set postgres.password"),
        (" postgres.password aHVudGVyMg==", "--set postgres.password"),
        ("kafka.client.sasl.password hunter2=", "--set kafka.client"),
        ("kafka.client.hunter2", "--set kafka.client"),
        ("postgres.password.hunter2", "--set number 2"),
        ("hunter2", "--set number 2"),
        ("=hunter2", "--set number 2"),
        ("", "--set number 2"),
    ],
)
def test_a_flag_without_a_value_may_hold_a_secret(flag: str, origin: str) -> None:
    layer = flags_layer(["name=shop", flag])
    assert layer.values == {"name": "shop"}
    assert layer.problems == [Problem(origin, "is not KEY=VALUE: write it with an equals sign")]
