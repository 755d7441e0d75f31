import re
from dataclasses import replace
from xml.etree import ElementTree as ET

from bench import plot, report
from bench.__main__ import DOCUMENT, RESULTS
from bench.results import Results
from tests.unit.bench.test_report import results

SVG = "{http://www.w3.org/2000/svg}"


def drawn(found: Results) -> ET.Element:
    return ET.fromstring(plot.svg(found))  # noqa: S314 - the SVG is our own


def test_each_contender_has_a_bar_as_long_as_its_ratio() -> None:
    bars = [float(bar.attrib["width"]) for bar in drawn(results()).iter(f"{SVG}rect")][1:]
    assert bars[:3] == [plot.SCALE, 0.8 * plot.SCALE, 0.2 * plot.SCALE]
    assert len(bars) == 17


def test_everything_lies_inside_the_picture() -> None:
    root = drawn(results())
    height = float(root.attrib["height"])
    lowest = [
        float(bar.attrib["y"]) + float(bar.attrib["height"]) for bar in root.iter(f"{SVG}rect") if "y" in bar.attrib
    ]
    assert max(lowest) < height
    assert all(float(text.attrib["y"]) < height for text in root.iter(f"{SVG}text"))


def test_labels_show_the_ratio_and_the_rate() -> None:
    assert "0.80  (800/s)" in [text.text for text in drawn(results()).iter(f"{SVG}text")]


def test_the_bar_of_a_much_faster_contender_ends_at_the_margin() -> None:
    found = results()
    load = found.loads["orders-20"]
    load.runs["exactly once, Python"] = [replace(load.runs["exactly once, Python"][0], opening=None)]
    load.runs["drain"] = [replace(run, whole=replace(run.whole, seconds=9.0)) for run in load.runs["drain"]]
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="16"', plot.svg(found))]
    assert max(widths) == plot.SCALE * plot.SCALE_MAX


def test_titles_may_contain_any_characters() -> None:
    found = results()
    found.loads["orders-20"].title = "a < b & c"
    assert "a < b & c" in [text.text for text in drawn(found).iter(f"{SVG}text")]


def test_the_picture_is_current() -> None:
    """Compare the picture with the results. If they differ, run ``python -m bench --render``."""
    path, found = DOCUMENT.parent / report.PLOT, Results.read(RESULTS)
    assert (path.read_text() if path.exists() else None) == (plot.svg(found) if found else None)
