import errno
import os

from pgsluice.config.problems import KeyProblems, Problem, SettingsError, did_you_mean, dotted, is_secret, unreadable
from pgsluice.errors import ConfigError


def test_one_error_reports_all_problems() -> None:
    error = SettingsError([Problem("a.toml:1", "x: is wrong"), Problem("PGSLUICE_X__Y", "is not a setting")])
    assert isinstance(error, ConfigError)
    assert str(error) == ("the configuration has 2 errors:\n  a.toml:1: x: is wrong\n  PGSLUICE_X__Y: is not a setting")
    assert str(SettingsError([Problem("a", "b")])) == "the configuration has one error:\n  a: b"


def test_every_problem_has_a_line_whatever_it_quotes() -> None:
    error = SettingsError([Problem("a\nb.toml", "is wrong")])
    assert error.lines == ("the configuration has one error:", "  a\nb.toml: is wrong")


def test_problems_of_one_validator_read_as_one_sentence() -> None:
    assert str(KeyProblems([(("a",), "is wrong"), ((), "too")])) == "is wrong; too"


def test_a_similar_name_is_suggested() -> None:
    assert did_you_mean("hots", ["port", "host"]) == ": did you mean host?"
    assert did_you_mean("xyz", ["port", "host"]) == ""


def test_paths_as_people_write_them() -> None:
    assert dotted(("tables", "rules", 0, "match")) == "tables.rules[0].match"
    assert dotted(("name",)) == "name"


def test_secrets_are_recognised_by_their_names() -> None:
    secrets = [
        "password", "sslpassword", "oauth_client_secret", "scram_client_key", "sasl.password", "ssl.key.password",
        "ssl.key.pem", "ssl.keystore.password", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.config",
        "sasl.oauthbearer.assertion.private.key.pem", "sasl.oauthbearer.assertion.private.key.passphrase",
    ]  # fmt: skip
    assert all(map(is_secret, secrets))
    public = ["password_file", "sasl.username", "ssl.key.location", "ssl.ca.pem", "linger.ms", "sslkey", "passfile"]
    assert not any(map(is_secret, public))


def test_why_a_file_cannot_be_read_and_what_to_do() -> None:
    def said(number: int, if_absent: str = "") -> str:
        return unreadable(OSError(number, os.strerror(number)), if_absent)

    assert said(errno.ENOENT) == "cannot be read: No such file or directory"
    assert said(errno.ENOENT, "Write it") == "cannot be read: No such file or directory. Write it"
    assert said(errno.EIO, "Write it") == "cannot be read: Input/output error"
    assert said(errno.EISDIR).endswith("does not exist. Remove the directory, and write the file")
    uid, gid = os.geteuid(), os.getegid()
    assert said(errno.EACCES) == (
        f"cannot be read: Permission denied. pgsluice runs as uid {uid}, gid {gid}. Give it the right to read the file"
    )
