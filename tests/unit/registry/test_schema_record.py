import json
from dataclasses import replace

import pytest

from pgsluice.registry.schema_record import MAX_ID, Packed, Registered, parse

RECORD = Registered("shop.public.öl-value", 3, 77, '{"type":"string"}', {"typmods": {"name": 24}})


def test_a_schema_record_is_read_as_it_was_written() -> None:
    assert parse(RECORD.value()) == RECORD


def test_a_schema_record_is_json_without_framing() -> None:
    assert json.loads(RECORD.value()) == {
        "subject": "shop.public.öl-value",
        "version": 3,
        "id": 77,
        "schemaType": "AVRO",
        "schema": '{"type":"string"}',
        "postgres": {"typmods": {"name": 24}},
    }


def test_two_schemas_of_a_subject_never_share_a_key() -> None:
    """Two schemas may have the same version, and compaction must keep both of them."""
    other = Registered(RECORD.subject, RECORD.version, 78, '"long"')
    assert json.loads(RECORD.key()) == {"subject": "shop.public.öl-value", "id": 77}
    assert other.key() != RECORD.key()


def test_a_new_description_of_the_table_replaces_the_old_one() -> None:
    assert Registered(RECORD.subject, 4, RECORD.id, RECORD.schema).key() == RECORD.key()


def test_the_description_of_the_table_may_be_missing() -> None:
    fields = json.loads(RECORD.value())
    del fields["postgres"]
    assert parse(json.dumps(fields).encode()).postgres is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"subject": 1}, "'subject' is not a string"),
        ({"version": "1"}, "'version' is not an integer"),
        ({"version": True}, "'version' is not an integer"),
        ({"version": 0}, "'version' is 0, outside 1 to 2147483647"),
        ({"id": None}, "'id' is not an integer"),
        ({"id": MAX_ID + 1}, "'id' is 2147483648, outside"),
        ({"schemaType": "JSON"}, "'schemaType' is 'JSON', not 'AVRO'"),
        ({"schemaType": "x" * 1000}, r"^.schemaType. is .x+\.\.\.x+., not .AVRO.$"),
        ({"schema": {"type": "string"}}, "'schema' is not a string"),
        ({"schema": "{"}, "Expecting property name"),
        ({"schema": "[" * 100_000}, "nested too deeply"),
        ({"schema": "[" * 200 + "]" * 200}, "nested too deeply"),
        ({"schema": "5"}, "'schema' is not an Avro schema"),
        ({"schema": '"\\ud800"'}, "half of a surrogate pair"),
        ({"subject": "\ud800"}, "half of a surrogate pair"),
        ({"postgres": []}, "'postgres' is neither an object nor null"),
    ],
)
def test_an_invalid_schema_record_is_described(change: dict[str, object], complaint: str) -> None:
    value = json.dumps({**json.loads(RECORD.value()), **change}).encode()
    with pytest.raises(ValueError, match=complaint):
        parse(value)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (None, "it deletes a schema"),
        (b"", "Expecting value"),
        (b"\xff\xfe", "codec can't decode"),
        (b"[]", "it is not a JSON object"),
        (b"{}", "'subject' is not a string"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_values_that_are_not_schema_records_are_refused(value: bytes | None, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse(value)


def test_descriptions_are_kept_packed() -> None:
    columns = [{"name": f"c{number}", "type": "int4"} for number in range(1000)]
    content = {"table": "größe", "columns": columns}
    record = Registered("a", 1, 2, '"long"', content)
    read = parse(record.value())
    assert isinstance(read.postgres, Packed)
    assert len(read.postgres._data) < 10_000
    assert read == record == parse(read.value())
    assert read == parse(record.value())
    assert read != replace(record, postgres=None)
    assert (dict(read.postgres), len(read.postgres), list(read.postgres)) == (content, 2, ["columns", "table"])
    assert (read.postgres["table"], read.postgres.get("none")) == ("größe", None)
