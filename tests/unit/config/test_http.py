from tests.support.settings import problems, settings


def test_the_server_listens_for_this_machine_only_by_default() -> None:
    assert str(settings().http.listen) == "127.0.0.1:8080"
    assert settings().http.allowed_hosts == []


def test_hosts_are_names() -> None:
    ((path, _),) = problems(http={"allowed_hosts": ["a", "http://b"]})
    assert path == ("http", "allowed_hosts", 1)
