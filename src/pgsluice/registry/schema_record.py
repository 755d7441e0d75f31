"""One record of a schema topic: a schema with its subject, version and id.

:mod:`.builtin` writes it, and :mod:`.follower` reads it. Key and value are JSON in UTF-8, without framing. The key
consists of subject and id. The version is not part of the key, because two writers may choose the same version at the
same time. Compaction then keeps both schemas, because their ids differ. Messages refer to schemas by id.
"""

import json
import reprlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pgsluice.avro.wire import read_json

MAX_ID: Final = 2**31 - 1
"""Ids and versions are Java ints."""

_FIELDS: Final = {"subject": str, "version": int, "id": int, "schemaType": str, "schema": str}


class Packed(Mapping[str, Any]):  # noqa: PLW1641 - no hash, like a dict
    """A compressed JSON object. Each access decompresses all of it.

    The description of a table is kept with every version, and hardly ever needed again. With 1,500 columns it takes 450
    KB as dicts, and less than 10 KB compressed.
    """

    __slots__ = ("_data",)

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._data = zlib.compress(_json(content), 1)

    def unpacked(self) -> dict[str, Any]:
        """Return the content."""
        content: dict[str, Any] = json.loads(zlib.decompress(self._data))
        return content

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - any JSON
        return self.unpacked()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.unpacked())

    def __len__(self) -> int:
        return len(self.unpacked())

    def __eq__(self, other: object) -> bool:
        content = other.unpacked() if isinstance(other, Packed) else other
        return self.unpacked() == content


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema in a subject. ``postgres`` is PostgreSQL's description of the table, or None without one."""

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
                "postgres": self.postgres.unpacked() if isinstance(self.postgres, Packed) else self.postgres,
            }
        )


def parse(value: bytes | None) -> Registered:
    """Return the content of a record's value. Raise ValueError, with the reason, if the value is not valid."""
    if value is None:
        raise ValueError("it deletes a schema that messages may still need")
    fields = read_json(value.decode())
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - wrong data, not a wrong argument
    for name, kind in _FIELDS.items():
        if type(fields.get(name)) is not kind:
            raise ValueError(f"{name!r} is not {_A[kind]}")
    _check(fields)
    postgres = fields.get("postgres")
    packed = None if postgres is None else Packed(postgres)
    return Registered(fields["subject"], fields["version"], fields["id"], fields["schema"], packed)


_A: Final = {str: "a string", int: "an integer"}


def _check(fields: Mapping[str, Any]) -> None:
    for name in ("version", "id"):
        if not 1 <= fields[name] <= MAX_ID:
            raise ValueError(f"{name!r} is {fields[name]}, outside 1 to {MAX_ID}")
    if fields["schemaType"] != "AVRO":
        raise ValueError(f"'schemaType' is {reprlib.repr(fields['schemaType'])}, not 'AVRO'")
    if not isinstance(fields.get("postgres"), dict | None):
        raise ValueError("'postgres' is neither an object nor null")  # noqa: TRY004 - wrong data
    if not isinstance(read_json(fields["schema"]), str | list | dict):
        raise ValueError("'schema' is not an Avro schema")  # noqa: TRY004 - wrong data


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
