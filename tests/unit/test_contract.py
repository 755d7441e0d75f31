"""Tests that our encoders write exactly the bytes in contract/, and that fastavro decodes them to the JSON beside them.

If the files in contract/ change, the wire contract changes. ``python -m tests.contract`` writes them anew.
"""

import json
from io import BytesIO
from typing import Any

import fastavro
import pytest

from pgsluice.avro.types import ColumnType, Opcode
from pgsluice.avro.wire import normalise, schema_id, unframe
from tests.contract.cases import SCHEMAS
from tests.contract.golden import CONTRACT, digest, files, recorded
from tests.contract.types import KEY_TYPES, TYPES
from tests.contract.values import json_of, physical, plain

GOLDEN: dict[str, Any] = json.loads((CONTRACT / "golden.json").read_text())
BEYOND = [case for case in GOLDEN if case.startswith("keys, ")]
"""The cases whose keys have infinite dates, which Python's date cannot represent."""
PARTS = [(case, part) for case, messages in GOLDEN.items() for message in messages for part in message.values()]


def test_the_files_are_what_the_encoders_write() -> None:
    """Compare the files. If they differ, run ``python -m tests.contract``, and add an entry to CHANGELOG.md."""
    assert sorted(path.name for path in CONTRACT.iterdir()) == sorted(files())
    for name, content in files().items():
        assert json.loads((CONTRACT / name).read_text()) == json.loads(content), name
        assert (CONTRACT / name).read_text() == content, f"the format of {name}"


def test_a_change_of_the_contract_has_its_entry_in_the_changelog() -> None:
    """If the entry of the present contract is missing from CHANGELOG.md, see CONTRIBUTING.md, "The contract"."""
    assert recorded() == digest()


@pytest.mark.parametrize("name", [name for name in SCHEMAS if name != "string"])
def test_a_message_names_its_schema(name: str) -> None:
    schema = json.loads((CONTRACT / f"{name}.avsc").read_text())
    found = {unframe(bytes.fromhex(part["hex"]))[0] for _, part in PARTS if part["schema"] == name}
    assert found == {schema_id(normalise(schema))}


@pytest.mark.parametrize(("case", "part"), [(case, part) for case, part in PARTS if part["hex"]])
def test_fastavro_reads_the_golden_json(case: str, part: dict[str, Any]) -> None:
    schema = SCHEMAS[part["schema"]]
    stream = BytesIO(bytes.fromhex(part["hex"])[5:])
    if case in BEYOND and part["schema"] == "keys_key":
        found = json_of(schema, fastavro.schemaless_reader(stream, physical(schema), None))
    else:
        found = plain(fastavro.schemaless_reader(stream, fastavro.parse_schema(schema), None))
    assert stream.read() == b""
    assert found == part["json"]


def test_every_opcode_has_its_values() -> None:
    fields = (*TYPES.fields(), *KEY_TYPES.key_fields())
    found = {kind.opcode for field in fields for kind in parts(field.type)}
    assert found == set(Opcode) - {Opcode.MARKED}  # MARKED writes nothing, because all of its values are in raw


def parts(kind: ColumnType) -> list[ColumnType]:
    return [kind] if kind.element is None else [kind, *parts(kind.element)]
