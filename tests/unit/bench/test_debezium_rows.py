from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

from bench.debezium.rows import Digest, row_text, select
from bench.latency import ORDERS

TEXT = "7|7|0.07|status 2|note|7|2026-11-26 01:02:03.045000|2026-11-26|false|8f14e45f-ceea-167a-5a36-dedd4bea2543"
TAG = "8f14e45f-ceea-167a-5a36-dedd4bea2543"
SAME = {"id": 7, "customer": 7, "amount": Decimal("0.07"), "status": "status 2", "note": "note", "quantity": 7}


def test_pgsluices_row_is_as_postgresql_writes_it() -> None:
    placed = datetime(2026, 11, 26, 2, 2, 3, 45_000, timezone(timedelta(hours=1)))
    row = {**SAME, "placed": placed, "day": date(2026, 11, 26), "paid": False, "tag": UUID(TAG)}
    assert row_text(ORDERS.columns, row) == TEXT


def test_debeziums_row_is_as_postgresql_writes_it() -> None:
    days = (date(2026, 11, 26) - date(1970, 1, 1)).days
    row = {**SAME, "placed": "2026-11-26T01:02:03.045Z", "day": days, "paid": False, "tag": TAG}
    assert row_text(ORDERS.columns, row) == TEXT


def test_a_different_row_is_noticed_but_not_another_order() -> None:
    digests = []
    for texts in (["a", "b"], ["b", "a"], ["a", "c"]):
        digest = Digest()
        for text in texts:
            digest.add(text)
        digests.append(digest)
    assert digests[0] == digests[1] != digests[2]
    assert digests[0].rows == digests[2].rows == 2


def test_the_checksum_is_that_of_md5() -> None:
    digest = Digest()
    digest.add("")
    assert digest == Digest(1, int.from_bytes(bytes.fromhex("d41d8cd98f00b204"), "big", signed=True))


def test_postgresql_writes_every_column() -> None:
    sql = select(ORDERS, "orders")
    assert "to_char(placed AT TIME ZONE 'UTC'" in sql
    assert all(f"{name}::text" in sql for name, kind, _ in ORDERS.columns if kind != "timestamptz")
