"""The status as an HTML page, which loads nothing from other hosts, and refreshes itself.

Names of tables and topics, names of prepared transactions, and messages of servers are untrusted. So every text goes
through :func:`_text`, and the page's Content-Security-Policy allows only its own script and style.

https://developer.mozilla.org/en-US/docs/Web/HTTP/Guides/CSP
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from pgsluice import __version__
from pgsluice.app.http.assets import SCRIPT, STYLE
from pgsluice.app.http.curve import curve
from pgsluice.app.http.health import Health, Role
from pgsluice.app.http.overview import Overview
from pgsluice.printable import printable

REFRESH_S: Final = 5
"""How often a browser without scripts loads the page again. The script refreshes the page at the same interval."""

POSITIONS: Final = ("server_lsn", "received_lsn", "delivered_lsn", "confirmed_lsn")

_SECTIONS: Final = (
    ("Positions", (*POSITIONS, "epoch", "cut")),
    ("Slot", ("slot", "slot_status")),
    ("Memory", ("buffered_bytes", "waiting_transactions", "waiting_bytes")),
    ("Snapshot", ("snapshot",)),
    ("Quarantine", ("quarantined",)),
)
"""Parts of the status, each under a heading."""

_OWN_PLACE: Final = {*(name for _, names in _SECTIONS for name in names), "prepared", "lag_seconds", "state"}
"""Keys of the status that the table at the top leaves out, because the page shows them elsewhere."""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HEADERS: Final = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_hash(SCRIPT)}; style-src {_hash(STYLE)}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}


def status_page(health: Health) -> str:
    """Return ``/status`` as an HTML page, with the overview of the last minutes if it is known."""
    status = health.status()
    overview = None if health.overview is None else health.overview()
    content = _cell(status) if overview is None else _sections(status, overview)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<noscript><meta http-equiv="refresh" content="{REFRESH_S}"></noscript>'
        f"<title>{_text(status.get('pipeline', 'pgsluice'))} - pgsluice</title><style>{STYLE}</style></head>"
        f"<body><main>{_head(health, status)}{content}</main>"
        '<footer><a href="status">JSON</a> · <a href="metrics">metrics</a></footer>'
        f"<script>{SCRIPT}</script></body></html>"
    )


def _head(health: Health, status: Mapping[str, object]) -> str:
    verdicts = (
        ("live", health.live()),
        ("ready", health.ready(Role.ANY)),
        ("active", health.ready(Role.ACTIVE)),
    )
    rows = "".join(f"<tr><th>{name}</th>{_verdict_cell(reason)}</tr>" for name, reason in verdicts)
    name = f"{_text(status['pipeline'])} " if "pipeline" in status else ""
    paused = ", paused" if status.get("paused") else ""
    state = f" <span class=state>{_text(status['state'])}{paused}</span>" if "state" in status else ""
    return (
        f"<h1>{name}<small>pgsluice {escape(__version__)}</small>{state}</h1>"
        "<p class=stale>The process does not answer. This is its last answer.</p>"
        f"<table>{rows}</table>"
    )


def _sections(status: Mapping[str, object], overview: Overview) -> str:
    parts = [
        _wrapped(_cell({name: value for name, value in status.items() if name not in _OWN_PLACE})),
        _section("Lag", curve(overview.lag, "s", "seconds of lag")),
        _section("Events per second", curve(overview.events_per_s, "/s", "events per second")),
        _section("Topics", _topics(overview)),
        _section("Cuts", _cuts(overview)),
        _section("Open and prepared transactions", _open(overview)),
    ]
    for title, names in _SECTIONS:
        found = {name: status[name] for name in names if status.get(name)}
        content: object = found if len(names) > 1 else next(iter(found.values()), None)
        parts.append(_section(title, _cell(content or None)))
    parts.append(_section("Recent warnings and errors", _warnings(overview)))
    settings = f"<details id=settings><summary>Settings</summary><pre>{_lines(overview.settings)}</pre></details>"
    return f"{''.join(parts)}<section>{settings}</section>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{_wrapped(content)}</section>"


def _wrapped(content: str) -> str:
    """Make a wide table scroll on its own, so that the page fits the screen of a phone."""
    return f"<div class=wide>{content}</div>"


def _topics(overview: Overview) -> str:
    rows = [(one.topic, f"{one.per_s:,.1f}", f"{one.total:,}") for one in overview.topics]
    more = f"<p>and {overview.more_topics:,} more topics, which are less busy</p>" if overview.more_topics else ""
    return _table(("topic", "events per second", "events since the start"), rows, "No events yet.") + more


def _cuts(overview: Overview) -> str:
    rows = [
        (
            name,
            *(f"{number:,}" for number in (one.cuts, one.transactions, one.events, one.bytes)),
            f"{1000 * one.seconds / one.cuts:,.1f} ms" if one.cuts else "-",
        )
        for name, one in (("last minute", overview.last_minute), ("since the start", overview.delivered))
    ]
    return _table(("", "cuts", "transactions", "events", "bytes", "mean time to commit"), rows, "")


def _open(overview: Overview) -> str:
    rows = [(one.kind, str(one.xid), _age(one.age_s), one.detail) for one in overview.open]
    more = f"<p>and {overview.more_open:,} more</p>" if overview.more_open else ""
    return _table(("", "xid", "age", ""), rows, "None.") + more


def _warnings(overview: Overview) -> str:
    rows = [
        (one.timestamp[:19].replace("T", " "), one.level, one.text + (one.remedy and f" To do: {one.remedy}"))
        for one in overview.warnings
    ]
    return _table(("time (UTC)", "level", "what happened"), rows, "None since the start.")


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], if_empty: str) -> str:
    if not rows:
        return f"<p>{if_empty}</p>"
    head = "".join(f"<th>{name}</th>" for name in names)
    body = ("".join(f"<td>{_text(value)}</td>" for value in row) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in body)}</table>"


def _age(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _lines(text: str) -> str:
    return "\n".join(map(_text, text.split("\n")))


def _verdict_cell(reason: str | None) -> str:
    if reason is None:
        return '<td class="yes">yes</td>'
    return f'<td class="no">no: {_text(reason)}</td>'


def _text(value: object) -> str:
    return escape(printable(str(value)))


def _cell(value: object) -> str:
    """Return any part of the status as HTML. An object becomes a table, and so does a list of objects."""
    if isinstance(value, Mapping):
        rows = (f"<tr><th>{_text(name)}</th><td>{_cell(part)}</td></tr>" for name, part in value.items())
        return f"<table>{''.join(rows)}</table>"
    if isinstance(value, list | tuple):
        return _list(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else _text(value)


def _list(values: Sequence[object]) -> str:
    if not values:
        return "-"
    if not all(isinstance(value, Mapping) for value in values):
        return "<br>".join(_cell(value) for value in values)
    objects = [value for value in values if isinstance(value, Mapping)]
    names = list(dict.fromkeys(name for value in objects for name in value))
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    rows = ("".join(f"<td>{_cell(value.get(name))}</td>" for name in names) for value in objects)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
