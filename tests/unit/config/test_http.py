from pathlib import Path

from tests.support.settings import problems, settings


def test_the_server_listens_for_this_machine_only_by_default() -> None:
    assert str(settings().http.listen) == "127.0.0.1:8080"
    assert settings().http.allowed_hosts == []


def test_hosts_are_names() -> None:
    ((path, _),) = problems(http={"allowed_hosts": ["a", "http://b"]})
    assert path == ("http", "allowed_hosts", 1)


def test_certificate_and_key_of_the_http_server_go_together() -> None:
    assert settings(http={"tls_cert_file": "a", "tls_key_file": "b"}).http.tls_key_file == "b"
    for one in ("tls_cert_file", "tls_key_file"):
        (problem,) = problems(http={one: "a"})
        assert problem == (("http", "tls_key_file"), "goes together with http.tls_cert_file: set both or neither")


def test_the_token_of_the_http_server_cannot_be_guessed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    assert settings(http={"token_file": str(file)}).http.token_file == str(file)
    file.write_text("0123456789abcde\n")
    (problem,) = problems(http={"token_file": str(file)})
    assert "has fewer than 16 characters" in problem[1]
