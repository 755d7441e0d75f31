from collections.abc import Mapping

from pgsluice.app.http.health import Health, Role
from pgsluice.app.http.page import status_page


def health(status: Mapping[str, object], dead: str | None = None, unready: Mapping[Role, str] | None = None) -> Health:
    return Health(lambda: status, lambda: dead, (unready or {}).get)


def test_shows_every_kind_of_value() -> None:
    status: dict[str, object] = {
        "lsn": "0/16B3748",
        "slot": {"failover": True, "temporary": False},
        "since": None,
        "publications": ["one", "two"],
        "sessions": (),
        "tables": [{"name": "orders", "rows": 5}, {"name": "items", "error": "gone"}],
    }
    page = status_page(health(status))
    assert "<th>lsn</th><td>0/16B3748</td>" in page
    assert "<th>failover</th><td>yes</td>" in page
    assert "<th>temporary</th><td>no</td>" in page
    assert "<th>since</th><td>-</td>" in page
    assert "<th>publications</th><td>one<br>two</td>" in page
    assert "<th>sessions</th><td>-</td>" in page
    assert "<tr><th>name</th><th>rows</th><th>error</th></tr><tr><td>orders</td><td>5</td><td>-</td></tr>" in page


def test_says_what_is_wrong() -> None:
    page = status_page(health({}, "stuck", {Role.ACTIVE: "standby"}))
    assert '<th>live</th><td class="no">no: stuck</td>' in page
    assert '<th>ready</th><td class="yes">yes</td>' in page
    assert '<th>active</th><td class="no">no: standby</td>' in page


def test_escapes_everything() -> None:
    evil = "<script>alert('1')</script>"
    status: dict[str, object] = {evil: evil, "list": [evil], "table": [{evil: evil}]}
    page = status_page(health(status, evil, {Role.ANY: evil}))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 7


def test_shows_what_has_no_shape() -> None:
    evil = "a\u202eb\x9b\n"
    page = status_page(health({evil: evil, "table": [{evil: evil}]}, evil))
    assert page.count(r"a\u202eb\x9b\n") == 5
    assert evil not in page


def test_needs_nothing_from_elsewhere() -> None:
    page = status_page(health({}))
    assert "//" not in page
    assert "src=" not in page
