"""One record of a schema topic: a schema under its subject, version and id.

Written by :mod:`.builtin`, read by :mod:`.follower`. Key and value are JSON in UTF-8, without framing.
The key is subject and id, not subject and version: should two writers ever take the same version at the
same time, compaction keeps both schemas, and a record names what a message needs, its id.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MAX_ID: Final = 2**31 - 1
"""Ids and versions are Java ints."""

_FIELDS: Final = {"subject": str, "version": int, "id": int, "schemaType": str, "schema": str}


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema in a subject; ``postgres``: what PostgreSQL says of the table beyond the wire schema."""

    subject: str
    version: int
    id: int
    schema: str
    postgres: Mapping[str, Any] | None = None

    def key(self) -> bytes:
        """Return the record's key."""
        return _json({"subject": self.subject, "id": self.id})

    def value(self) -> bytes:
        """Return the record's value."""
        return _json(
            {
                "subject": self.subject,
                "version": self.version,
                "id": self.id,
                "schemaType": "AVRO",
                "schema": self.schema,
                "postgres": self.postgres,
            }
        )


def parse(value: bytes | None) -> Registered:
    """Return what a record's value says; ValueError, saying what is wrong, when it is not such a value."""
    if value is None:
        raise ValueError("it deletes a schema, and messages that need it may still be there")
    fields = _parse_json(value.decode())
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - wrong data, not a wrong argument
    for name, kind in _FIELDS.items():
        if type(fields.get(name)) is not kind:
            raise ValueError(f"{name!r} is not {_A[kind]}")
    _check(fields)
    return Registered(fields["subject"], fields["version"], fields["id"], fields["schema"], fields.get("postgres"))


_A: Final = {str: "a string", int: "an integer"}


def _check(fields: Mapping[str, Any]) -> None:
    for name in ("version", "id"):
        if not 1 <= fields[name] <= MAX_ID:
            raise ValueError(f"{name!r} is {fields[name]}, outside 1 to {MAX_ID}")
    if fields["schemaType"] != "AVRO":
        raise ValueError(f"'schemaType' is {fields['schemaType']!r}, not 'AVRO'")
    if not isinstance(fields.get("postgres"), dict | None):
        raise ValueError("'postgres' is neither an object nor null")  # noqa: TRY004 - as above
    _parse_json(fields["schema"])


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
