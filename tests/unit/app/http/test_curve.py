"""The curve on the status page."""

import re

from pgsluice.app.http.curve import curve


def test_the_curve_has_a_gap_where_a_value_is_unknown() -> None:
    found = curve([(120.0, 1.0), (90.0, 2.0), (60.0, None), (30.0, 4.0), (0.0, 0.0)], "s", "seconds of lag")
    (path,) = re.findall(r' d="(.*?)"', found)
    assert path == "M0.0 73.0L150.0 50.0M450.0 4.0L600.0 96.0"
    assert 'aria-label="seconds of lag, now 0.0 s, at most 4.0 s"' in found
    assert "2 min ago" in found


def test_the_present_value_may_be_unknown() -> None:
    assert "<b>not known</b>" in curve([(5.0, 1.0), (0.0, None)], "s", "lag")


def test_there_is_no_curve_without_values() -> None:
    assert curve([(0.0, None)], "s", "lag") == "<p>Not known yet.</p>"


def test_without_lag_the_curve_is_a_line_at_the_bottom() -> None:
    assert 'd="M550.0 96.0L600.0 96.0"' in curve([(5.0, 0.0), (0.0, 0.0)], "s", "lag")
