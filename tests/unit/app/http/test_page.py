import base64
import hashlib
import re
from collections.abc import Mapping

from pgsluice.app.http.health import Health, Role
from pgsluice.app.http.overview import OpenTransaction, Overview, TopicRate
from pgsluice.app.http.page import HEADERS, status_page
from pgsluice.app.log import Warned
from pgsluice.metrics import Delivered


def health(status: Mapping[str, object], dead: str | None = None, unready: Mapping[Role, str] | None = None) -> Health:
    return Health(lambda: status, lambda: dead, (unready or {}).get)


def test_the_page_shows_every_kind_of_value() -> None:
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


def test_the_page_says_what_is_wrong() -> None:
    page = status_page(health({}, "stuck", {Role.ACTIVE: "standby"}))
    assert '<th>live</th><td class="no">no: stuck</td>' in page
    assert '<th>ready</th><td class="yes">yes</td>' in page
    assert '<th>active</th><td class="no">no: standby</td>' in page


EVIL = "<script>alert('1')</script>\"><img src=//evil onerror=x>"


def overview(text: str = "plain") -> Overview:
    return Overview(
        lag=[(10.0, None), (5.0, 2.0), (0.0, 1.0)],
        events_per_s=[(5.0, 100.0), (0.0, 1234.5)],
        topics=[TopicRate(text, 1234.56, 98765)],
        more_topics=980,
        open=[OpenTransaction("prepared", 7, 3720.0, text), OpenTransaction("open", 8, 65.0, "waits")],
        more_open=3,
        last_minute=Delivered(4, 8, 1600, 10_000, 0.02),
        delivered=Delivered(),
        warnings=[Warned("2026-11-26T01:02:03.4Z", "warning", text, text)],
        settings=f"[kafka]\ntopic_prefix = {text}",
    )


def test_the_page_escapes_all_texts() -> None:
    status: dict[str, object] = {EVIL: EVIL, "list": [EVIL], "table": [{EVIL: EVIL}], "quarantined": [{"table": EVIL}]}
    status |= {"pipeline": EVIL, "state": EVIL, "snapshot": {"not_loaded": [{"table": EVIL, "reason": EVIL}]}}
    full = Health(lambda: status, lambda: EVIL, {Role.ANY: EVIL}.get, lambda: overview(EVIL))
    for page in (status_page(health(status, EVIL, {Role.ANY: EVIL})), status_page(full)):
        assert page.count("<script") == 1, "only the page's own script"
        assert "<img" not in page
        assert "&lt;script&gt;" in page


def test_only_the_pages_own_script_and_style_may_run() -> None:
    page = status_page(Health(dict, lambda: None, lambda _: None, overview))
    policy = HEADERS["Content-Security-Policy"]
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert " style=" not in page
    assert " on" not in re.sub(r"<(script|style)>.*?</\1>|>[^<]*<", "", page, flags=re.DOTALL)


def test_the_page_shows_the_last_minutes() -> None:
    page = status_page(Health(lambda: {"state": "streaming"}, lambda: None, lambda _: None, overview))
    assert "<td>plain</td><td>1,234.6</td><td>98,765</td>" in page
    assert "and 980 more topics" in page
    assert "<td>prepared</td><td>7</td><td>1 h 2 min</td>" in page
    assert "<td>open</td><td>8</td><td>1 min 5 s</td>" in page
    assert "and 3 more" in page
    assert "<td>4</td><td>8</td><td>1,600</td><td>10,000</td><td>5.0 ms</td>" in page
    assert "<td>0</td><td>-</td>" in page
    assert "<td>2026-11-26 01:02:03</td><td>warning</td><td>plain To do: plain</td>" in page
    assert "[kafka]\ntopic_prefix = plain" in page


def test_a_pause_is_shown_beside_the_state() -> None:
    for paused, shown in ((True, "streaming, paused"), (False, "streaming"), (None, "streaming")):
        status: dict[str, object] = {"state": "streaming", "paused": paused}
        page = status_page(Health(lambda status=status: status, lambda: None, lambda _: None, overview))  # type: ignore[misc]
        assert f"<span class=state>{shown}</span>" in page


def test_a_pipeline_that_has_just_started_shows_that_nothing_is_known() -> None:
    nothing = Overview([], [], [], 0, [], 0, Delivered(), Delivered(), [], "")
    page = status_page(Health(dict, lambda: None, lambda _: None, lambda: nothing))
    assert "Not known yet." in page
    assert "No events yet." in page
    assert "None since the start." in page


def test_characters_without_a_visible_form_are_escaped() -> None:
    evil = "a\u202eb\x9b\n"
    page = status_page(health({evil: evil, "table": [{evil: evil}]}, evil))
    assert page.count(r"a\u202eb\x9b\n") == 5
    assert evil not in page


def test_the_page_loads_nothing_from_elsewhere() -> None:
    page = status_page(health({}))
    assert "//" not in page
    assert "src=" not in page
    assert "//" not in status_page(Health(dict, lambda: None, lambda _: None, overview))
