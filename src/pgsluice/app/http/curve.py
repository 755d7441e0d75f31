"""A curve of the last minutes, as SVG."""

from collections.abc import Iterator
from typing import Final

from pgsluice.app.http.overview import Curve

WIDTH: Final = 600
HEIGHT: Final = 100
"""The size of the drawing in its own units. The page scales the drawing to the width of the page."""

LEAST_SPAN_S: Final = 60.0
"""A curve that covers less than ``LEAST_SPAN_S`` does not take the whole width."""


def curve(values: Curve, unit: str, name: str) -> str:
    """Return a curve with its scale. The curve has a gap where values are unknown."""
    known = [value for _, value in values if value is not None]
    if not known:
        return "<p>Not known yet.</p>"
    top, span_s = max(*known, 0.001), max(LEAST_SPAN_S, values[0][0])
    last = values[-1][1]
    now = "not known" if last is None else f"{last:,.1f} {unit}"
    label = f"{name}, now {now}, at most {max(known):,.1f} {unit}"
    return (
        f"<p><b>{now}</b></p>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f'<path d="{"".join(_steps(values, span_s, top))}"/></svg>'
        f"<div class=scale><span>{span_s / 60:.0f} min ago</span><span>highest: {max(known):,.1f} {unit}</span>"
        "<span>now</span></div>"
    )


def _steps(values: Curve, span_s: float, top: float) -> Iterator[str]:
    """Return the commands of the path. ``M`` begins a new part of the line, and ``L`` continues it."""
    command = "M"
    for age_s, value in values:
        if value is None:
            command = "M"
            continue
        x, y = WIDTH * (1 - age_s / span_s), HEIGHT - 4 - (HEIGHT - 8) * value / top
        yield f"{command}{x:.1f} {y:.1f}"
        command = "L"
