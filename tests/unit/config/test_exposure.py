import os
from pathlib import Path

import pytest

from pgsluice.config import exposure
from pgsluice.config.loading import Sources
from pgsluice.finding import Finding, Verdict

NOBODY = 65534
REST = 'version = 1\nname = "shop"\nkafka.bootstrap_servers = "kafka:9092"\nkafka.topic_prefix = "shop"\n'
CREDENTIALS = 'postgres.password = "hunter2"\n'


def write(file: Path, text: str, mode: int = 0o644) -> str:
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def findings(file: str | None = None, directory: Path | None = None, *flags: str) -> list[Finding]:
    environ = {} if directory is None else {"PGSLUICE_SECRETS_DIR": str(directory)}
    sources = Sources.read(file, environ, flags)
    return exposure.findings(sources.settings(), sources)


@pytest.mark.parametrize(
    "secret",
    [
        CREDENTIALS,
        'postgres.dsn = "host=db password=hunter2"\n',
        'postgres.parameters.sslpassword = "hunter2"\n',
        'kafka.client."sasl.password" = "hunter2"\n',
        'schema_registry.token = "hunter2"\n',
    ],
)
def test_a_file_with_a_secret_is_for_its_owner_only(tmp_path: Path, secret: str) -> None:
    file = write(tmp_path / "a.toml", REST + secret)
    (finding,) = findings(file)
    assert (finding.name, finding.verdict) == ("secret files", Verdict.WARN)
    assert f"can read or change {file}, which" in finding.detail
    assert "chmod 600" in finding.remedy
    write(tmp_path / "a.toml", REST + secret, 0o600)
    assert findings(file) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        'postgres.dsn = "postgresql://pgsluice@db/shop"\nsnapshot.primary = "host=db"\n',
        'kafka.client.debug = "all"\n',
    ],
)
def test_a_file_without_a_secret_may_be_read_by_everybody(tmp_path: Path, text: str) -> None:
    assert findings(write(tmp_path / "a.toml", REST + text)) == []


def test_a_connection_string_that_is_overridden_may_hold_a_password(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", REST + 'postgres.dsn = "hunter2"\n')
    assert len(findings(file, None, "postgres.dsn=host=db")) == 1


def test_secret_files_and_files_that_settings_name(tmp_path: Path) -> None:
    directory = tmp_path / "secrets"
    directory.mkdir()
    exposed = [
        write(directory / "kafka__client__sasl.password", "hunter2"),
        write(directory / "schema_registry__token", "hunter2"),
        write(tmp_path / "password", "hunter2"),
        write(tmp_path / "key", "hunter2"),
    ]
    write(directory / "kafka__client__sasl.username", "shop")
    settings = f'postgres.password_file = "{exposed[2]}"\nkafka.client."ssl.key.location" = "{exposed[3]}"\n'
    absent = f'kafka.client."sasl.kerberos.keytab" = "{tmp_path}/absent"\n'
    file = write(tmp_path / "a.toml", REST + settings + absent)
    (finding,) = findings(file, directory)
    assert f"read or change {', '.join(exposed)}, which" in finding.detail


MINIMAL = ("name=shop", "kafka.bootstrap_servers=kafka:9092", "kafka.topic_prefix=shop")


def test_settings_without_a_file_expose_nothing() -> None:
    assert findings(None, None, *MINIMAL) == []


@pytest.mark.parametrize("flag", ["postgres.password=hunter2", "kafka.client.sasl.password=hunter2"])
def test_arguments_can_be_seen_by_everybody(flag: str) -> None:
    (finding,) = findings(None, None, *MINIMAL, flag)
    assert (finding.name, finding.verdict) == ("secrets in arguments", Verdict.WARN)
    assert finding.detail.startswith(f"{flag.partition('=')[0]} was given by --set")
    assert "hunter2" not in finding.detail


@pytest.mark.parametrize(("listen", "count"), [("0.0.0.0:1", 1), ("[::1]:1", 0), ("localhost:1", 0), ("db:1", 1)])
def test_a_port_that_others_reach(listen: str, count: int) -> None:
    found = findings(None, None, *MINIMAL, f"http.listen={listen}")
    assert [finding.name for finding in found] == count * ["http port"]
    assert findings(None, None, *MINIMAL, f"http.listen={listen}", "http.allowed_hosts=shop.example.com") == []
    sources = Sources.read(None, {"PGSLUICE_HTTP__LISTEN": listen}, MINIMAL)
    assert exposure.findings(sources.settings(), sources) == []


def test_a_variable_that_opens_the_port_contrary_to_the_file(tmp_path: Path) -> None:
    environ = {"PGSLUICE_HTTP__LISTEN": "0.0.0.0:8080"}
    other = "PGSLUICE_HTTP__LISTEN takes precedence over {file}:5, so http.listen is 0.0.0.0:8080"
    same = "http.listen is 0.0.0.0:8080, and http.allowed_hosts is empty"
    for written, detail in (("127.0.0.1:9000", other), ("0.0.0.0:9000", other), ("0.0.0.0:8080", same)):
        file = write(tmp_path / "a.toml", f'{REST}http.listen = "{written}"\n')
        sources = Sources.read(file, environ)
        (finding,) = exposure.findings(sources.settings(), sources)
        assert finding.detail.startswith(detail.format(file=file))
    sources = Sources.read(file, {"PGSLUICE_HTTP__LISTEN": "127.0.0.1:8080"})
    assert exposure.findings(sources.settings(), sources) == []


def test_a_token_over_an_unencrypted_port_causes_a_warning(tmp_path: Path) -> None:
    token, key = (write(tmp_path / name, 2 * "0123456789abcdef", 0o600) for name in ("token", "key"))
    given = *MINIMAL, "http.listen=0.0.0.0:8080", f"http.token_file={token}"
    (finding,) = findings(None, None, *given)
    assert "everybody who reads the traffic can use the token" in finding.detail
    assert findings(None, None, *given, f"http.tls_cert_file={key}", f"http.tls_key_file={key}") == []
    Path(key).chmod(0o644)
    (finding,) = findings(None, None, *given, f"http.tls_cert_file={key}", f"http.tls_key_file={key}")
    assert finding.name == "secret files"


def test_settings_that_everybody_can_change(tmp_path: Path) -> None:
    directory = tmp_path / "secrets"
    directory.mkdir()
    file = write(tmp_path / "a.toml", REST, 0o646)
    secret = write(directory / "postgres__user", "shop")
    assert [finding.detail for finding in findings(file, directory)] == [
        f"every user can write to {file}, and can therefore change the settings"
    ]
    write(tmp_path / "a.toml", REST)
    directory.chmod(0o777)
    (finding,) = findings(file, directory)
    assert (finding.name, finding.verdict) == ("settings files", Verdict.WARN)
    assert finding.detail == f"every user can write to {directory}, and can therefore change the settings"
    directory.chmod(0o1777)  # the sticky bit keeps users from renaming files of others
    assert findings(file, directory) == []
    Path(secret).unlink()


def test_paths_that_are_not_regular_files_are_not_reported(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o666)
    settings = f'kafka.client."ssl.key.location" = "{tmp_path}/key"\n'
    assert findings(write(tmp_path / "a.toml", REST + settings)) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can change the owner of a file")
@pytest.mark.parametrize(
    ("owner", "mode", "count"), [(0, 0o440, 0), (0, 0o444, 1), (NOBODY, 0o440, 1), (NOBODY, 0o400, 0)]
)
def test_a_file_of_root_may_be_readable_by_its_group(tmp_path: Path, owner: int, mode: int, count: int) -> None:
    file = write(tmp_path / "a.toml", REST + CREDENTIALS, mode)
    os.chown(file, owner, NOBODY)
    assert len(findings(file)) == count
