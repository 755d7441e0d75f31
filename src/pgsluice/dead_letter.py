"""Dead letters: the records in ``<prefix>.dead_letters`` that replace changes which cannot be delivered.

The change encoder creates them for keys that Avro cannot hold. The sink creates them for records that the brokers
refused, and the pipeline for changes of tables that cannot be published. A dead letter names the change that it
replaces, the topic of that change, and the reason. It has no row data except the key.

https://kafka.apache.org/documentation/#topicconfigs_max.message.bytes
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from typing import Any, Final

import fastavro

from pgsluice.avro.binary import NULL, VALUE, encode_bytes, encode_long, encode_string
from pgsluice.avro.records import DAMAGED
from pgsluice.avro.schema import key_columns, named_fields
from pgsluice.avro.wire import unframe
from pgsluice.errors import PoisonError
from pgsluice.lsn import format_lsn
from pgsluice.printable import quoted

OP: Final = "dead_letter"
"""The op of dead letters. The ``counts`` of a cut record use it as well."""

MAX_KEY_BYTES: Final = 256 * 1024
"""A longer key is left out, because the dead letter itself must not be too large. Kafka's default limit is 1 MiB."""


class Reason(StrEnum):
    """Why a change could not be delivered."""

    RECORD_TOO_LARGE = "record_too_large"
    KEY_NOT_REPRESENTABLE = "key_not_representable"
    REFUSED = "refused"
    TABLE_REFUSED = "table_refused"


@dataclass(frozen=True, slots=True)
class SourceChange:
    """The change that a record describes, with the envelope's fields that identify it. ``ts``: in µs since 1970."""

    schema: str
    table: str
    op: str
    epoch: int
    lsn: int
    seq: int
    xid: int
    ts: int
    key_columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        key = f"key: {', '.join(map(quoted, self.key_columns))}; " if self.key_columns else ""
        position = f"epoch {self.epoch}, LSN {format_lsn(self.lsn)}, seq {self.seq}"
        return f"table {quoted(self.schema, self.table)} ({key}{position})"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter. A value is None if it is not known.

    ``topic``: the topic of the record that the dead letter replaces. ``key``: the encoded key. ``size``: the size of
    key and value, in bytes. ``limit``: the largest size that was allowed. ``detail``: an explanation for people,
    without row data.
    """

    origin: SourceChange
    topic: str
    reason: Reason
    detail: str
    key: bytes | None = None
    size: int | None = None
    limit: int | None = None


class Refused(PoisonError):
    """Kafka refused records because of their content. ``letters``: the dead letters that may replace these records."""

    def __init__(self, message: str, letters: Sequence[DeadLetter]) -> None:
        super().__init__(message)
        self.letters = tuple(letters)


def encode(letter: DeadLetter) -> bytes:
    """Return the body of the record DeadLetter, with its fields in the order of ``contract/dead_letter.avsc``."""
    origin, key = letter.origin, letter.key
    if key is not None and len(key) > MAX_KEY_BYTES:
        key = None
    texts = (origin.schema, origin.table, origin.op, letter.topic)
    numbers = (origin.epoch, origin.lsn, origin.seq, origin.xid, origin.ts)
    return b"".join(
        (
            *(encode_string(text) for text in texts),
            NULL if key is None else VALUE + encode_bytes(key),
            *(NULL if number is None else VALUE + encode_long(number) for number in (letter.size, letter.limit)),
            encode_string(letter.reason),
            encode_string(letter.detail),
            *(encode_long(number) for number in numbers),
        )
    )


_TYPES: Final = {
    "op": "string",
    "schema": "string",
    "table": "string",
    "epoch": "int",
    "lsn": "long",
    "seq": "long",
    "xid": "long",
    "ts": "long",
}
_PLAIN: Final = {name: {"name": name, "type": kind} for name, kind in _TYPES.items()}
"""The fields of an envelope that identify the change. These fields contain no row data."""


def origin_of(
    message: bytes, schema: Mapping[str, Any] | None, key_schema: Mapping[str, Any] | None
) -> SourceChange | None:
    """Return the change that a framed envelope describes, or None if it cannot be read."""
    fields = named_fields(schema or {})
    if schema is None or fields is None or not _PLAIN.keys() <= {field["name"] for field in fields}:
        return None
    # The fields are read as plain numbers, because fastavro turns some logical types into datetimes.
    written = {**schema, "fields": [{**one, **_PLAIN.get(one["name"], {})} for one in fields]}
    wanted = {**schema, "fields": list(_PLAIN.values())}
    try:
        found: Any = fastavro.schemaless_reader(BytesIO(unframe(message)[1]), written, wanted)
    except DAMAGED:
        return None
    return SourceChange(**found, key_columns=tuple(key_columns(key_schema or {}) or ()))
