"""The files of ``contract/`` (schemas, and golden messages in hex and JSON), and their entry in CHANGELOG.md."""

import hashlib
import json
import re
from io import BytesIO
from pathlib import Path

import fastavro

from pgsluice.avro.wire import unframe
from tests.contract.cases import SCHEMAS, Part, messages
from tests.contract.values import Json, json_of, physical

ROOT = Path(__file__).parents[2]
CONTRACT = ROOT / "contract"


def files() -> dict[str, str]:
    """Return the name and the expected content of each file of ``contract/``."""
    schemas = {f"{name}.avsc": pretty(schema) + "\n" for name, schema in SCHEMAS.items() if isinstance(schema, dict)}
    return {**schemas, "golden.json": json.dumps(golden(), ensure_ascii=False, indent=1) + "\n"}


def golden() -> dict[str, list[dict[str, Json]]]:
    """Return the content of golden.json: for each case, the keys and values of its records, and their schemas."""
    return {
        case: [{"key": _part(message.key), "value": _part(message.value)} for message in found]
        for case, found in messages().items()
    }


def _part(part: Part | None) -> dict[str, Json]:
    if part is None:
        return {"schema": None, "hex": None, "json": None}
    schema = SCHEMAS[part.schema]
    value = fastavro.schemaless_reader(BytesIO(unframe(part.data)[1]), physical(schema), None)
    return {"schema": part.schema, "hex": part.data.hex(), "json": json_of(schema, value)}


def pretty(value: Json, indent: str = "") -> str:
    """Return a schema as JSON. Each field is on a separate line, unless it contains a record."""
    if not _is_open(value):
        return json.dumps(value, ensure_ascii=False)
    inner = f"{indent}  "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + pretty(item, inner) for item in value) + f"\n{indent}]"
    entries = [f"{inner}{json.dumps(name)}: {pretty(part, inner)}" for name, part in value.items()]
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"


def _is_open(value: Json) -> bool:
    if isinstance(value, dict):
        return "fields" in value or any(map(_is_open, value.values()))
    return isinstance(value, list) and any(
        _is_open(item) or (isinstance(item, dict) and "name" in item) for item in value
    )


# --- the entry in CHANGELOG.md

_ENTRY = re.compile(r"^- \*\*Contract `([0-9a-f]{12})`\*\*: \S", re.MULTILINE)


def digest() -> str:
    """Return the first 12 hex digits of a SHA-256 over the names and contents of the files of ``contract/``."""
    found = hashlib.sha256()
    for path in sorted(CONTRACT.iterdir()):
        content = path.read_bytes()
        found.update(f"{path.name} {len(content)}\n".encode() + content)
    return found.hexdigest()[:12]


def recorded() -> str | None:
    """Return the digest in the newest entry of CHANGELOG.md about the contract."""
    entry = _ENTRY.search((ROOT / "CHANGELOG.md").read_text())
    return None if entry is None else entry[1]
