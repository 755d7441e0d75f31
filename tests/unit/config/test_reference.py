import re
import tomllib
from pathlib import Path

from pgsluice.config import Settings, Sources, reference
from pgsluice.config.keys import RULES, all_keys, section_keys
from pgsluice.config.tables import Rule

LEAST = {"version": 1, "name": "shop", "kafka": {"bootstrap_servers": "127.0.0.1:9092", "topic_prefix": "shop"}}


def test_the_example_contains_only_defaults(tmp_path: Path) -> None:
    file = tmp_path / "example.toml"
    file.write_text(reference.example())
    settings = Sources.read(str(file), {}).settings()
    assert settings.model_dump() == Settings.model_validate(LEAST).model_dump()


def test_the_example_has_every_key_and_its_examples_can_be_used(tmp_path: Path) -> None:
    # Uncomment all keys, except for those that contradict others.
    lines = re.sub(r"(?m)^# (?=(\[\[|[a-z_]+ = ))", "", reference.example())
    others = {"password_file", "password_command", "token", "token_file", "token_command", "aws_msk_region"}
    lines = re.sub(rf"(?m)^({'|'.join(others)}) = .*$", "", lines)
    file = tmp_path / "example.toml"
    file.write_text(re.sub(r"= \S+   # e\.g\. ", "= ", lines))
    values = tomllib.loads(file.read_text())
    for path in all_keys():
        table = values
        for name in path[:-1]:
            table = table[name]
        assert path[-1] in {*table, *others}, path
    assert set(values["tables"]["rules"][0]) == {key.path[-1] for key in section_keys(RULES, Rule)}
    assert Sources.read(str(file), {}).settings().tables.rules[0].partitions == 12


def test_the_schema_has_defaults_as_they_are_written() -> None:
    sections = reference.schema()["$defs"]
    assert sections["Delivery"]["properties"]["cut_interval"]["default"] == "50ms"
    assert sections["Buffer"]["properties"]["memory_max"]["default"] == "32MiB"


def test_the_reference_has_a_line_for_every_key() -> None:
    tables = reference.markdown()
    for key in [*all_keys().values(), *section_keys(RULES, Rule)]:
        assert f"| `{key.path[-1]}` |" in tables
    assert "| `version` | 1 | required |" in tables
    assert "| `port` | integer, 1 to 65535 |  |" in tables
    assert "| `partitions` | integer, 1 or more | `3` |" in tables
    assert "| `rules` | list of tables | `[]` |" in tables
    assert '| `truncate` | "emit" or "skip" | `"emit"` |' in tables
    assert "| `password` | text, secret |  |" in tables
    assert "escaped as \\_xHHHH\\_." in tables


def test_possible_secrets_are_not_shown() -> None:
    secrets = {
        "sasl.passwrod": "hunter2",
        "sasl.kerberos.kinit.cmd": "kinit --password hunter2",
        "sasl.oauthbearer.token.endpoint.url": "https://id:hunter2@login.example.com/token?key=hunter2",
        "sasl.oauthbearer.extensions": "k=hunter2",
    }
    flags = [f"kafka.client.{name}={value}" for name, value in secrets.items()]
    flags += ["name=shop", "kafka.bootstrap_servers=a:1,b:2", "kafka.topic_prefix=shop"]
    sources = Sources.read(None, {}, flags)
    settings = sources.settings()
    shown = reference.show(settings, sources)
    assert "hunter2" not in shown
    assert 'client."sasl.passwrod" = "***"' in shown
    assert 'client."sasl.oauthbearer.token.endpoint.url" = "https://***@login.example.com/token?***"' in shown
    assert settings.kafka.librdkafka_properties().items() >= secrets.items()


def test_effective_settings_are_shown_with_their_sources(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        'version = 1\nname = "shop"\n[kafka]\nbootstrap_servers = "a:1"\ntopic_prefix = "shop"\n'
        '[[tables.rules]]\nmatch = "a.b"\nconfig = { "retention.ms" = -1 }\n'
    )
    environ = {"PGSLUICE_POSTGRES__PASSWORD": "hunter2", "PGSLUICE_KAFKA__CLIENT__SASL_PASSWORD": "hunter3"}
    sources = Sources.read(str(file), environ, ["log.level=debug"])
    shown = reference.show(sources.settings(), sources)
    assert "hunter" not in shown
    lines = shown.splitlines()
    for line in (
        f"version = 1  # {file}:1",
        'slot = "pgsluice_shop"  # default',
        'password = "***"  # PGSLUICE_POSTGRES__PASSWORD',
        'client."compression.type" = "lz4"  # default',
        'client."sasl.password" = "***"  # PGSLUICE_KAFKA__CLIENT__SASL_PASSWORD',
        'level = "debug"  # --set log.level',
        f"[[tables.rules]]  # {file}:6",
        'config = { "retention.ms" = "-1" }',
    ):
        assert line in lines
    again = tmp_path / "again.toml"
    again.write_text(shown)
    assert Sources.read(str(again), {}).settings().tables.rules[0].config == {"retention.ms": "-1"}
