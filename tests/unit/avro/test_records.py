"""Unit tests of pgsluice.avro.records. fastavro writes the records that are read."""

from io import BytesIO
from typing import Any

import fastavro
import pytest

from pgsluice.avro.records import record_reader, record_writer
from pgsluice.avro.schema import cut_schema
from pgsluice.avro.wire import header, normalise

CUT = cut_schema("shop")
OFFSETS = {"partition": 0, "first": 3, "next": 7}
MARK = {
    "topic": "t",
    "schema": "s",
    "table": "u",
    "id": "y",
    "state": "end",
    "epoch": 2,
    "lsn": 5,
    "seq": -(2**62),
    "rows": 4,
    "replaces": True,
}
TOPIC = {"topic": "t", "topic_id": "x", "schema_ids": [7], "offsets": [OFFSETS], "counts": {"c": 4}}
RECORD: dict[str, Any] = {
    "pipeline": "shop",
    "cut": 9,
    "epoch": 2,
    "first_lsn": None,
    "last_lsn": 5,
    "end_lsn": 6,
    "ts": 2**62,
    "transactions": 1,
    "events": 4,
    "topics": [TOPIC],
    "full": True,
    "part": 0,
    "parts": 1,
    "snapshots": [MARK],
}


def written(record: dict[str, Any], schema: dict[str, Any]) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return header(7) + out.getvalue()


def test_a_record_is_written_as_fastavro_writes_it() -> None:
    write = record_writer(7, CUT)
    assert write(RECORD) == written(RECORD, CUT)
    assert write(RECORD | {"cut": 10}) == written(RECORD | {"cut": 10}, CUT)


def read(data: bytes, schema: object = CUT) -> dict[str, Any]:
    return record_reader(CUT, {7: normalise(schema)}.get)(data)  # type: ignore[arg-type]  # any JSON


def without(name: str) -> dict[str, Any]:
    return {**CUT, "fields": [field for field in CUT["fields"] if field["name"] != name]}


def changed(name: str, kind: object) -> dict[str, Any]:
    fields = [{**field, "type": kind} if field["name"] == name else field for field in CUT["fields"]]
    return {**CUT, "fields": fields}


def test_records_are_read_as_they_were_written() -> None:
    assert read(written(RECORD, CUT)) == RECORD


def test_each_writer_is_looked_up_once() -> None:
    asked: list[int] = []

    def find(identifier: int) -> str:
        asked.append(identifier)
        return normalise(CUT)

    reader = record_reader(CUT, find)
    assert reader(written(RECORD, CUT)) == reader(written(RECORD, CUT))
    assert asked == [7]


@pytest.mark.parametrize(("name", "default"), [("full", False), ("snapshots", [])])
def test_an_earlier_version_lacks_fields_that_have_a_default(name: str, default: object) -> None:
    assert read(written(RECORD, without(name)), without(name)) == {**RECORD, name: default}


def test_marks_of_an_earlier_version_do_not_name_the_table() -> None:
    mark = next(field for field in CUT["fields"] if field["name"] == "snapshots")["type"]["items"]
    fields = [field for field in mark["fields"] if field["name"] not in ("schema", "table")]
    earlier = changed("snapshots", {"type": "array", "items": {**mark, "fields": fields}})
    assert read(written(RECORD, earlier), earlier) == {**RECORD, "snapshots": [{**MARK, "schema": "", "table": ""}]}


def test_a_later_version_has_more_fields() -> None:
    more = [
        {"name": "one", "type": "string"},
        {"name": "two", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "three", "type": {"type": "bytes"}},
    ]
    later = {**CUT, "fields": [*more, *CUT["fields"]]}
    assert read(written({**RECORD, "one": "x", "two": 5, "three": b"y"}, later), later) == RECORD


def test_a_schema_may_have_another_text() -> None:
    """Accept a schema with another text, because the libraries of registry servers write schemas differently."""
    text = {"type": "string", "avro.java.string": "String"}
    assert read(written(RECORD, CUT), changed("pipeline", text)) == RECORD


ITSELF = {"type": "record", "name": "A", "fields": [{"name": "a", "type": ["null", "A"]}]}


@pytest.mark.parametrize(
    "schema",
    [
        "string",
        ITSELF,
        {"type": "record", "name": "Cut", "fields": 5},
        {**CUT, "fields": [{"name": "a", "type": ITSELF}, *CUT["fields"]]},
        {**CUT, "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}, *CUT["fields"]]},
        {**CUT, "fields": [5, *CUT["fields"]]},
        {**CUT, "fields": [*CUT["fields"], CUT["fields"][0]]},
        without("cut"),
        changed("cut", "string"),
        changed("cut", ["null", "long"]),
        changed("ts", ["null", "string"]),
        changed("ts", ["null", "long", "string"]),
        changed("topics", {"type": "array", "items": "null"}),
        changed("topics", {"type": "array", "items": {"type": "record", "name": "Topic", "fields": []}}),
    ],
)
def test_a_schema_of_something_else_is_not_used(schema: object) -> None:
    """Refuse these schemas, because fastavro would crash with some of them, and would never return with others."""
    with pytest.raises(ValueError, match=r"^its schema 7 describes something else$"):
        read(header(7) + b"\x02" * 1_000_000, schema)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not in Confluent's wire format"),
        (header(8), r"^its schema 8 is not known$"),
        (header(7), r"^it does not follow its schema 7$"),
        (header(7) + b"\x04\xff\xff" + b"\x00" * 20, r"^it does not follow its schema 7$"),
        (written(RECORD, CUT)[:-5], r"^it does not follow its schema 7$"),
        (written(RECORD, CUT) + b"x", r"^it has more bytes than its schema 7 describes$"),
    ],
)
def test_damaged_records_are_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(data)


def test_a_schema_that_is_not_json_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        record_reader(CUT, lambda _: "[" * 100_000)(header(7))
