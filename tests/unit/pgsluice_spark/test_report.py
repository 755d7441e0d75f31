"""Unit tests of pgsluice_spark.report."""

import json

import pytest

from pgsluice_spark.report import AuditReport, Difference, TableReport, lsn_number, lsn_text


def test_reports() -> None:
    same = TableReport("public.a", "equal", rows=2)
    waits = TableReport("public.b", "loading", "its rows are being read", exceptions={"x": "why"})
    report = AuditReport(7, 1, 0x16B3748, "700:701:700", 1 << 32, 1.25, [same, waits])
    assert not report.equal
    assert str(report).splitlines() == [
        "mirror at cut 7 (epoch 1, 0/16B3748), PostgreSQL at snapshot 700:701:700 (before 1/0)",
        "public.a: equal, 2 rows, 0.0 s",
        "public.b: loading, its rows are being read",
        "  not compared: x: why",
        "1 of 2 tables equal, 1.2 s",
    ]
    changed = Difference("value", {"id": "1"}, "note", "it's", None)
    row = Difference("missing", {"id": "2"})
    other = TableReport(
        "public.c", "different", "", 2, 1, 1, 1, 0, 0.5, [changed, row, Difference("extra", {"id": None})]
    )
    damaged = AuditReport(7, 1, 1, "1:1:", 1, 0, [same, other])
    assert (damaged.different, damaged.equal) == (["public.c"], False)
    assert str(damaged).splitlines()[2:6] == [
        "public.c: different, 2 rows, 0.5 s; 1 rows with other values, 1 missing, 0 extra (1 in the mirror)",
        "  id='1': note is \"it's\" in PostgreSQL, null in the mirror",
        "  id='2': the mirror lacks the row",
        "  id=null: only the mirror has the row",
    ]
    assert json.loads(damaged.to_json())["tables"][1]["differences"][0]["postgres"] == "it's"
    assert not AuditReport(7, 1, 1, "1:1:", 1, 0, []).equal


def test_lsns() -> None:
    assert [lsn_number(text) for text in ("0/16B3748", "a/0", "FFFFFFFF/FFFFFFFF")] == [0x16B3748, 10 << 32, 2**64 - 1]
    assert lsn_text(lsn_number("A/16B3748")) == "A/16B3748"
    for text in ("2026-01-01", "x/y", "1/", "1/123456789", "1/2/3", "", "1/2\n"):
        with pytest.raises(ValueError, match="is not an LSN such as 0/16B3748"):
            lsn_number(text)
