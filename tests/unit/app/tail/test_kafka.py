from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro
import pytest

from pgsluice.app.tail import kafka
from pgsluice.app.tail.shown import Shown

ENVELOPE: Mapping[str, Any] = {
    "op": "u",
    "schema": "public",
    "table": "orders",
    "before": {"id": 1, "at": None},
    "before_image": "key",
    "after": {"id": 1, "at": None, "doc": None},
    "unchanged": ["doc"],
    "raw": {"at": "infinity", "before.id": "one"},
    "lsn": 42,
    "xid": 7,
    "ts": datetime(2026, 11, 26, tzinfo=UTC),
    "origin": None,
    "flags": ["key_change"],
}


def test_an_unknown_value_is_not_shown_as_null() -> None:
    assert kafka._change(ENVELOPE) == Shown(
        *("u", 42, 7, "2026-11-26T00:00:00Z", "public", "orders"),
        before={"id": "one"},
        before_image="key",
        after={"id": 1, "at": "infinity"},
        unchanged=("doc",),
        flags=("key_change",),
    )


def test_a_message_is_shown_with_its_prefix_and_content() -> None:
    record = {"prefix": "p", "content": b"\xff", "lsn": 42, "xid": None, "ts": None, "origin": None}
    assert kafka._message(record) == Shown("m", 42, None, None, after={"prefix": "p", "content": "\udcff"})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1, 1),
        (0.1, 0.1),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (True, True),
        (Decimal("1.50"), "1.50"),
        (b"\x00\xff", "\\x00ff"),
        (date(2024, 2, 29), "2024-02-29"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ([b"\x01", None], ["\\x01", None]),
        ({"k": Decimal("1e3")}, {"k": "1E+3"}),
    ],
)
def test_every_value_can_be_shown_as_json(value: object, shown: object) -> None:
    assert kafka._json(value) == shown


def test_times_beyond_those_of_python_are_numbers() -> None:
    field = {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]}
    amount = {"name": "n", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}}
    schema = {"type": "record", "name": "r", "fields": [field, amount]}
    out = BytesIO()
    fastavro.schemaless_writer(out, kafka._without_times(schema), {"at": 2**62, "n": Decimal("1.50")})
    assert kafka._decoded(schema, out.getvalue()) == {"at": 2**62, "n": Decimal("1.50")}
