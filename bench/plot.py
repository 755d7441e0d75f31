"""Draws the speed of all contenders relative to the bare drain as SVG, with one group of bars for each load. No I/O.

https://www.w3.org/TR/SVG2/
"""

from collections.abc import Iterator
from xml.sax.saxutils import escape

from bench.results import DRAIN, LOADING, LoadResult, Results

TITLE = "Events per second, relative to the bare drain of the same WAL"

WIDTH = 960
LEFT = 230
SCALE = 280
"""The length of a bar in pixels if the contender is as fast as the drain."""

BAR, GAP, HEAD = 16, 5, 30
TOP = 58
SCALE_MAX = 2.1

COLOURS = {
    DRAIN: "#8c8c8c",
    "patient drain": "#a3a3a3",
    "pg_recvlogical": "#bababa",
    "exactly once": "#1b6ca8",
    "at least once": "#5aa469",
    "discard": "#d08c3f",
    LOADING: "#7a5ea8",
}
"""The colour of each kind of contender. Contenders with the Python encoder have a paler bar."""

FADED = 0.55


def svg(results: Results) -> str:
    """Return the chart."""
    height = TOP + sum(HEAD + len(load.runs) * (BAR + GAP) for load in results.loads.values()) + 10
    size = f'width="{WIDTH}" height="{height}"'
    font = 'font-family="sans-serif" font-size="12"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {height}" {font}>',
            f'<rect {size} fill="white"/>',
            f'<text x="10" y="20" font-size="15" font-weight="bold">{TITLE}</text>',
            *_axis(height),
            *_groups(results),
            "</svg>\n",
        ]
    )


def _axis(height: int) -> Iterator[str]:
    for quarter in range(9):
        x = LEFT + quarter * SCALE / 4
        colour = "#444444" if quarter == 4 else "#dddddd"
        yield f'<line x1="{x:.0f}" y1="{TOP - 8}" x2="{x:.0f}" y2="{height - 6}" stroke="{colour}"/>'
        yield f'<text x="{x:.0f}" y="{TOP - 12}" text-anchor="middle" fill="#444444">{quarter / 4:g}</text>'


def _groups(results: Results) -> Iterator[str]:
    y = TOP
    for load in results.loads.values():
        yield f'<text x="10" y="{y + 18}" font-weight="bold">{escape(load.title)}</text>'
        y += HEAD
        for name in load.runs:
            yield from _bar(load, name, y)
            y += BAR + GAP


def _bar(load: LoadResult, name: str, y: int) -> Iterator[str]:
    base, rate = load.rate(DRAIN).median, load.rate(name)
    ratio = rate.median / base
    kind = name.partition(",")[0]
    opacity = FADED if name.endswith("Python") else 1.0
    middle = y + BAR / 2
    yield f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>'
    yield (
        f'<rect x="{LEFT}" y="{y}" width="{_x(ratio):.1f}" height="{BAR}" fill="{COLOURS[kind]}" '
        f'fill-opacity="{opacity:g}"/>'
    )
    least, greatest = LEFT + _x(rate.least / base), LEFT + _x(rate.greatest / base)
    yield f'<line x1="{least:.1f}" y1="{middle:g}" x2="{greatest:.1f}" y2="{middle:g}" stroke="black"/>'
    label = max(LEFT + _x(ratio), greatest) + 6
    yield f'<text x="{label:.1f}" y="{y + 12}">{ratio:.2f}  ({rate.median:,.0f}/s)</text>'


def _x(ratio: float) -> float:
    """Return the length of a bar in pixels. If a contender is much faster than the drain, its bar is cut off."""
    return min(ratio, SCALE_MAX) * SCALE
