import pytest

from pgsluice.avro.wire import Schema, normalise
from pgsluice.registry.look_up import find
from pgsluice.registry.schema_record import Registered

TEXT: Schema = {"type": "string"}
LONG: Schema = {"type": "long"}


def version(number: int, schema: object) -> Registered:
    return Registered("a", number, number, schema if isinstance(schema, str) else normalise(schema))  # type: ignore[arg-type]


def test_the_same_text_is_found() -> None:
    versions = [version(1, TEXT), version(2, LONG)]
    assert find(versions, LONG) == versions[1]


def test_the_same_schema_in_another_notation_is_found() -> None:
    versions = [version(1, TEXT), version(2, LONG)]
    assert find(versions, "long") == versions[1]


def test_the_same_text_is_preferred_to_the_same_schema() -> None:
    versions = [version(1, '"long"'), version(2, LONG)]
    assert find(versions, LONG) == versions[1]


def test_another_schema_is_not_found() -> None:
    assert find([version(1, TEXT)], LONG) is None
    assert find([], TEXT) is None


def test_an_invalid_schema_is_refused_even_if_there_are_no_versions() -> None:
    with pytest.raises(ValueError, match="unknown type 'text'"):
        find([], "text")


def test_foreign_records_do_not_disturb_a_look_up() -> None:
    versions = [version(1, {"no": "schema"}), version(2, "[" * 100_000), version(3, LONG)]
    assert find(versions, "long") == versions[2]
