"""Unit tests of pgsluice.finding."""

import dataclasses

import pytest

from pgsluice.finding import Finding, Verdict


def test_a_verdict_prints_as_its_name() -> None:
    assert [f"{verdict}" for verdict in Verdict] == ["OK", "WARN", "FAIL"]


def test_a_good_finding_needs_no_remedy() -> None:
    assert Finding("wal_level", Verdict.OK, "logical") == Finding("wal_level", Verdict.OK, "logical", remedy="")


def test_a_finding_does_not_change() -> None:
    finding = Finding("wal_level", Verdict.FAIL, "replica", "set wal_level = logical and restart the server")
    with pytest.raises(dataclasses.FrozenInstanceError):
        finding.detail = "logical"  # type: ignore[misc]  # this is what the test is about
