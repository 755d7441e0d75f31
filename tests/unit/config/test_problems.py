from pgsluice.config.problems import KeyProblems, Problem, SettingsError, did_you_mean, dotted, is_secret
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


def test_suggestions() -> None:
    assert did_you_mean("hots", ["port", "host"]) == ": did you mean host?"
    assert did_you_mean("xyz", ["port", "host"]) == ""


def test_paths_as_people_write_them() -> None:
    assert dotted(("tables", "rules", 0, "match")) == "tables.rules[0].match"
    assert dotted(("name",)) == "name"


def test_names_of_secrets() -> None:
    secrets = [
        "password", "sslpassword", "oauth_client_secret", "scram_client_key", "sasl.password", "ssl.key.password",
        "ssl.key.pem", "ssl.keystore.password", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.config",
        "sasl.oauthbearer.assertion.private.key.pem", "sasl.oauthbearer.assertion.private.key.passphrase",
    ]  # fmt: skip
    assert all(map(is_secret, secrets))
    public = ["password_file", "sasl.username", "ssl.key.location", "ssl.ca.pem", "linger.ms", "sslkey", "passfile"]
    assert not any(map(is_secret, public))
