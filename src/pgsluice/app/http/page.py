"""The status as a page for people. It loads nothing from elsewhere, and reloads itself."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from pgsluice import __version__
from pgsluice.app.http.health import Health, Role
from pgsluice.printable import printable

REFRESH_S: Final = 5

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}

_STYLE: Final = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
table { border-collapse: collapse }
th, td { padding: .15rem 1.2rem .15rem 0; text-align: left; vertical-align: top }
th { font-weight: 500; opacity: .7 }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere }
.yes { color: #2a8a3e } .no { color: #c0392b }
"""


def status_page(health: Health) -> str:
    """Return ``/status`` as a page for people. It loads nothing from elsewhere, and reloads itself."""
    verdicts = (
        ("live", health.live()),
        ("ready", health.ready(Role.ANY)),
        ("active", health.ready(Role.ACTIVE)),
    )
    rows = "".join(f"<tr><th>{name}</th>{_verdict_cell(reason)}</tr>" for name, reason in verdicts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="{REFRESH_S}"><title>pgsluice</title>'
        f"<style>{_STYLE}</style></head>"
        f"<body><h1>pgsluice {escape(__version__)}</h1><table>{rows}</table><hr>{_cell(health.status())}"
        '<hr><p><a href="status">JSON</a> · <a href="metrics">metrics</a></p></body></html>'
    )


def _verdict_cell(reason: str | None) -> str:
    if reason is None:
        return '<td class="yes">yes</td>'
    return f'<td class="no">no: {_text(reason)}</td>'


def _text(value: object) -> str:
    return escape(printable(str(value)))


def _cell(value: object) -> str:
    """Return any part of the status as HTML. Objects become tables, and a list of objects has a row for each."""
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
