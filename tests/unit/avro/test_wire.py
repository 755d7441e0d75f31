"""Unit tests of pgsluice.avro.wire."""

import hashlib
import json

import pytest

from pgsluice.avro import wire


def test_equal_schemas_have_the_same_text() -> None:
    one = {"type": "record", "name": "Größe", "fields": [{"name": "b", "type": "int"}, {"name": "a", "type": "int"}]}
    other = {"fields": [{"type": "int", "name": "b"}, {"name": "a", "type": "int"}], "name": "Größe", "type": "record"}
    text = '{"fields":[{"name":"b","type":"int"},{"name":"a","type":"int"}],"name":"Größe","type":"record"}'
    assert wire.normalise(one) == wire.normalise(other) == text
    assert wire.normalise("string") == '"string"'


def test_the_order_of_fields_and_branches_is_part_of_the_schema() -> None:
    assert wire.normalise(["null", "int"]) != wire.normalise(["int", "null"])


@pytest.mark.parametrize("text", ['"string"', "{}", "é", ""])
def test_an_id_is_31_bits_of_the_sha_256_of_the_text(text: str) -> None:
    number = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)
    assert wire.schema_id(text) == number % 2**31


def test_ids_do_not_change() -> None:
    assert wire.schema_id('"string"') == 0x69E5C1C9


def test_an_id_is_never_zero_nor_negative() -> None:
    assert wire._id_of_digest(bytes(32)) == wire._id_of_digest(b"\x80" + bytes(31)) == 1
    assert wire._id_of_digest(b"\xff" * 32) == 2**31 - 1


@pytest.mark.parametrize(("identifier", "data"), [(1, b"\x00\x00\x00\x00\x01"), (2**31 - 1, b"\x00\x7f\xff\xff\xff")])
def test_the_header_is_a_zero_byte_and_the_id(identifier: int, data: bytes) -> None:
    assert wire.header(identifier) == data
    assert wire.unframe(data) == (identifier, b"")
    assert wire.unframe(data + b"body") == (identifier, b"body")


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x00\x00\x00", b"\x01\x00\x00\x00\x01body"])
def test_bytes_without_a_header_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="zero byte and a 4-byte schema id"):
        wire.unframe(data)


@pytest.mark.parametrize(
    "text", ["{}", '{"a":[1,null,"\\u00e9\\ud83d\\ude00"]}', "[" * 128 + "]" * 128, "5", '"' + "[" * 200 + '"']
)
def test_json_of_other_programs_is_read(text: str) -> None:
    assert wire.read_json(text) == json.loads(text)


def test_json_may_have_fractions() -> None:
    assert wire.read_json('{"a":-1.5e300}') == {"a": -1.5e300}


def test_many_brackets_on_one_level_are_accepted() -> None:
    assert wire.read_json("[" + ",".join(["{}"] * 500) + "]") == [{}] * 500


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "Expecting value"),
        ("NaN", r"^NaN is not JSON$"),
        ('{"a":-Infinity}', r"^-Infinity is not JSON$"),
        ("9" * 5_000, "4300 digits"),
        ('{"a":-1e999}', r"^its JSON has a number that is too large$"),
        ('"\\ud800"', r"^its JSON has half of a surrogate pair$"),
        ("[" * 129 + "]" * 129, r"^its JSON is nested too deeply$"),
        ('{"a":' * 129 + "1" + "}" * 129, r"^its JSON is nested too deeply$"),
        ("[" * 100_000, r"^its JSON is nested too deeply$"),
        ('["\\u0041",' + "[" * 100_000, r"^its JSON is nested too deeply$"),
    ],
)
def test_json_that_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        wire.read_json(text)
