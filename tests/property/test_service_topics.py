"""Properties of records in service topics: records of other programs have only documented effects on pgsluice."""

import json
from dataclasses import asdict
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgsluice.avro.wire import header, normalise
from tests.support import hostile_records as hostile

NUMBERS = st.sampled_from([0, 1, -1, 2**30, 2**31 - 1, 2**31, 2**62, 2**63, 2**64 - 1, 2**64, 10**300, True, 1.5])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | NUMBERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
DEEP = 100_000
SCHEMAS = [json.loads(hostile.RECORD.schema), hostile.CUT, hostile.KEY, "string", ["null", "string"]]


def changed(value: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401 - any JSON
    """Return values in which one part of ``value`` is changed or left out, and arbitrary values."""
    if isinstance(value, dict) and value:
        one = st.sampled_from(sorted(value)).flatmap(
            lambda name: changed(value[name]).map(lambda part: {**value, name: part})
        )
        less = st.sampled_from(sorted(value)).map(
            lambda gone: {name: part for name, part in value.items() if name != gone}
        )
        return one | one | less | JSON
    if isinstance(value, list) and value:
        return st.integers(0, len(value) - 1).flatmap(
            lambda at: changed(value[at]).map(lambda part: [*value[:at], part, *value[at + 1 :]])
        )
    return JSON


def texts(value: Any) -> st.SearchStrategy[bytes]:  # noqa: ANN401 - any JSON
    whole = changed(value) | JSON
    return st.binary() | whole.map(lambda found: json.dumps(found).encode())


@settings(max_examples=300)
@given(texts({"version": 1, **asdict(hostile.CHECKPOINT)}))
@example(b"[" * DEEP)
@example(b'{"a":' * DEEP)
@example(hostile.CHECKPOINT.to_json().replace(b'"7"', b'"\\ud800"'))
@example(hostile.CHECKPOINT.to_json().replace(b"1000", b"9" * 5_000))
def test_changed_checkpoints_cause_only_documented_errors(value: bytes) -> None:
    hostile.take_checkpoint(value)


@settings(max_examples=300)
@given(texts(json.loads(hostile.COMMAND.to_json())) | texts(json.loads(hostile.ANSWER.to_json())))
@example(b"[" * DEEP)
@example(hostile.COMMAND.to_json().replace(b"id > 7", b"\\ud800"))
@example(hostile.COMMAND.to_json().replace(b"1700000000000", b"9" * 5_000))
def test_changed_commands_cause_only_documented_errors(value: bytes) -> None:
    hostile.take_command(value)


@settings(max_examples=300)
@given(texts(json.loads(hostile.RECORD.value())))
@example(json.dumps({**json.loads(hostile.RECORD.value()), "version": 2**31 - 1}).encode())
@example(json.dumps({**json.loads(hostile.RECORD.value()), "subject": "\ud800"}).encode())
@example(hostile.RECORD.value().replace(b'"key":["id"]', b'"key":["' + b"[" * DEEP))
def test_changed_schemas_cause_only_documented_errors(value: bytes) -> None:
    hostile.take_schema(value)


@settings(max_examples=300)
@given(st.sampled_from(SCHEMAS).flatmap(changed))
def test_schemas_with_changed_content_cause_only_documented_errors(schema: Any) -> None:  # noqa: ANN401 - any JSON
    record = {**json.loads(hostile.RECORD.value()), "schema": json.dumps(schema)}
    hostile.take_schema(json.dumps(record).encode())


@settings(max_examples=300)
@given(st.binary() | st.binary().map(lambda body: header(hostile.CUT_ID) + body))
def test_changed_cut_records_cause_only_documented_errors(value: bytes) -> None:
    hostile.take_cut(value)


SELF = {"type": "record", "name": "A", "fields": [{"name": "a", "type": ["null", "A"]}]}
NOTHING = {"type": "array", "items": "null"}


@settings(max_examples=300)
@given(changed(hostile.CUT).map(normalise) | st.text(), st.binary())
@example(normalise(SELF), b"\x02" * 1_000_000)
@example(normalise({**hostile.CUT, "fields": [*hostile.CUT["fields"], {"name": "a", "type": SELF}]}), b"\x02" * 9)
@example(normalise({**hostile.CUT, "fields": [{"name": "a", "type": NOTHING}, *hostile.CUT["fields"]]}), b"\xff" * 9)
def test_cut_records_of_any_schema_cause_only_documented_errors(schema: str, body: bytes) -> None:
    hostile.take_cut_of(schema, body)


@given(st.binary() | st.binary().map(lambda body: header(7) + body))
def test_changed_messages_cause_only_documented_errors(value: bytes) -> None:
    hostile.take_message(value)
