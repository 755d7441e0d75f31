"""Dead letters as fastavro reads them, and the search for the change behind a refused record."""

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest

from pgsluice.avro.wire import header
from pgsluice.dead_letter import MAX_KEY_BYTES, DeadLetter, Reason, Refused, SourceChange, encode, origin_of
from pgsluice.errors import PoisonError

CONTRACT = Path(__file__).parents[2] / "contract"
SCHEMA, ENVELOPE, KEY, CUT = (
    json.loads((CONTRACT / f"{name}.avsc").read_text()) for name in ("dead_letter", "envelope", "key", "cut")
)
GOLDEN: dict[str, Any] = json.loads((CONTRACT / "golden.json").read_text())

ORIGIN = SourceChange("public", "orders", "u", 2, 0x16B374D848, 5, 4242, 1_766_684_800_123_456)
LETTER = DeadLetter(
    ORIGIN, "shop.public.orders", Reason.RECORD_TOO_LARGE, "larger than …", b"\0key", 2_000_000, 1_048_588
)


def read(letter: DeadLetter) -> Any:  # noqa: ANN401 - what fastavro reads
    body = encode(letter)
    stream = BytesIO(body)
    found = fastavro.schemaless_reader(stream, fastavro.parse_schema(SCHEMA))
    assert stream.tell() == len(body)
    return found


def test_a_dead_letter_has_all_attributes_of_its_change() -> None:
    found = read(LETTER)
    assert round(found.pop("ts").timestamp() * 1e6) == ORIGIN.ts
    assert found == {
        "schema": "public",
        "table": "orders",
        "op": "u",
        "topic": "shop.public.orders",
        "key": b"\0key",
        "size": 2_000_000,
        "limit": 1_048_588,
        "reason": "record_too_large",
        "detail": "larger than …",
        "epoch": 2,
        "lsn": 0x16B374D848,
        "seq": 5,
        "xid": 4242,
    }


def test_unknown_attributes_are_null() -> None:
    found = read(DeadLetter(ORIGIN, "t", Reason.KEY_NOT_REPRESENTABLE, "key column id is null"))
    assert (found["key"], found["size"], found["limit"]) == (None, None, None)


@pytest.mark.parametrize(("size", "kept"), [(MAX_KEY_BYTES, True), (MAX_KEY_BYTES + 1, False)])
def test_a_key_that_would_make_a_dead_letter_too_large_is_left_out(size: int, kept: bool) -> None:  # noqa: FBT001 - what is expected
    assert (read(replace(LETTER, key=bytes(size)))["key"] is not None) is kept


def test_a_change_is_named_by_its_key_and_position() -> None:
    assert str(ORIGIN) == "table public.orders (epoch 2, LSN 16/B374D848, seq 5)"
    named = replace(ORIGIN, key_columns=("tenant", "id"))
    assert str(named) == "table public.orders (key: tenant, id; epoch 2, LSN 16/B374D848, seq 5)"


@pytest.mark.parametrize("case", [case for case in GOLDEN if GOLDEN[case][0]["value"]["schema"] == "envelope"])
def test_the_change_behind_a_record_is_found_in_its_envelope(case: str) -> None:
    for golden in (golden for golden in GOLDEN[case] if golden["value"]["hex"]):
        key_schema = KEY if golden["key"]["hex"] else None
        found = origin_of(bytes.fromhex(golden["value"]["hex"]), ENVELOPE, key_schema)
        expected = golden["value"]["json"]
        assert found is not None
        assert found.key_columns == (("id",) if key_schema else ())
        for name in ("schema", "table", "op", "epoch", "lsn", "seq", "xid"):
            assert getattr(found, name) == expected[name], name
        assert type(found.ts) is int


def test_a_value_that_is_not_an_envelope_has_no_change() -> None:
    cut = bytes.fromhex(GOLDEN["cut"][0]["value"]["hex"])
    assert origin_of(cut, CUT, None) is None
    assert origin_of(header(7) + b"body", None, None) is None


def test_a_refusal_stops_the_process_without_dead_letters() -> None:
    refused = Refused("Kafka cannot take it.", [LETTER])
    assert isinstance(refused, PoisonError)
    assert (str(refused), refused.letters) == ("Kafka cannot take it.", (LETTER,))


@pytest.mark.parametrize("message", [b"", header(7), header(7) + b"\x02\xff", header(7) + b"\xff" * 40])
def test_a_damaged_value_has_no_change(message: bytes) -> None:
    assert origin_of(message, ENVELOPE, None) is None
