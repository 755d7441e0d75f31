import pytest
from pydantic import ValidationError

from tests.support.settings import problems, settings


def test_tables_of_settings_never_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        settings().http.allowed_hosts = []


def test_an_unknown_key_is_a_mistake() -> None:
    assert problems(tables={"streaming": "on"}) == [(("tables", "streaming"), "extra_forbidden")]


def test_errors_do_not_repeat_the_input() -> None:
    with pytest.raises(ValidationError) as caught:
        settings(postgres={"password": 12345, "port": "hunter2"})
    assert "12345" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
