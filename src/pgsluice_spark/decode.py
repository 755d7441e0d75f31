"""Spark expressions that decode a framed key or value with the schema with which it was written.

Used by :mod:`.reading`, :mod:`.cuts` and :mod:`.origin`. If the records have several schemas, all of these schemas
become the branches of one Avro union. The expressions replace the schema id of a record by the number of a branch, so
that Avro itself chooses the writer's schema. One ``from_avro`` then decodes the records of all versions, and the query
plan does not grow with the number of versions. An unknown id raises an error, so no record is decoded with a guessed
schema.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
https://avro.apache.org/docs/1.12.0/specification/#unions-1
"""

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation
from pyspark.sql.avro.functions import from_avro

from pgsluice_spark.schema import Reading

Part: TypeAlias = Literal["key", "value"]
"""The column of Kafka's source that is decoded."""

_HEADER_BYTES: Final = 5
"""The length of the header: a zero byte, and the schema id as a big-endian number of 4 bytes."""
_TO_THE_END: Final = 2**31 - 1


def decoded(part: Part, reading: Reading) -> Column:
    """Return the struct in a record's key or value, or null where the key or value is null."""
    options = {
        "avroSchema": reading.reader,
        "mode": "FAILFAST",
        "datetimeRebaseMode": "CORRECTED",  # dates before 1582 are Gregorian, as in PostgreSQL
    }
    return F.when(F.col(part).isNotNull(), from_avro(_data(part, reading), reading.writers, options))


def _data(part: Part, reading: Reading) -> Column:
    """Return a key or value in the encoding of ``reading.writers``."""
    body = F.substring(part, _HEADER_BYTES + 1, _TO_THE_END)
    refusal = F.raise_error(_refusal(part))
    if not reading.is_union:
        return F.when(is_written_with(part, reading.branches), body).otherwise(refusal)
    branch = F.try_element_at(_map({i: F.lit(_varint(n)) for i, n in reading.branches.items()}), _header(part))
    return F.concat(F.coalesce(branch, refusal), body)


def fields(reading: Reading) -> Column:
    """Return the names of the row's fields in the schema of a value, or null where the value is null."""
    different = set(reading.fields.values())
    if len(different) == 1:
        return F.when(is_written_with("value", reading.fields), _array(different.pop()))
    return F.try_element_at(_map({i: _array(names) for i, names in reading.fields.items()}), _header("value"))


def _array(names: Iterable[str]) -> Column:
    return F.array(*map(F.lit, names)).cast("array<string>")


def is_written_with(part: Part, identifiers: Iterable[int]) -> Column:
    """Return whether a key or value was written with one of these schemas. Return false if it is null."""
    return F.coalesce(_header(part).isin([F.lit(_framing(one)) for one in identifiers]), F.lit(False))  # noqa: FBT003


def undecodable_key() -> Column:
    """Return an expression that raises an error for a key whose schema is not known."""
    return F.raise_error(_refusal("key"))


def _header(part: Part) -> Column:
    return F.substring(part, 1, _HEADER_BYTES)


def _map(entries: dict[int, Column]) -> Column:
    """Return a map from the first bytes of a framed record, which contain the schema id, to the entry of this id."""
    framed = {_framing(identifier): value for identifier, value in entries.items()}
    return F.create_map(*(item for header, value in framed.items() for item in (F.lit(header), value)))


def _framing(identifier: int) -> bytes:
    return b"\x00" + identifier.to_bytes(4, "big")


def _varint(branch: int) -> bytes:
    """Return the number of a branch in Avro's encoding: zigzag, with seven bits per byte, the lowest bits first."""
    rest, encoded = branch << 1, bytearray()
    while rest > 0x7F:  # noqa: PLR2004 - seven bits
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])


def _refusal(part: Part) -> Column:
    where = F.format_string(f"topic %s, partition %d, offset %d: the {part} ", "topic", "partition", "offset")
    data = F.col(part)
    is_framed = (F.length(data) >= _HEADER_BYTES) & (F.substring(data, 1, 1) == F.lit(b"\x00"))
    unframed = F.format_string(
        "is not in Confluent's wire format (a magic byte of 0 and a 4-byte schema id): it begins with 0x%s.",
        F.hex(_header(part)),
    )
    unknown = F.format_string(
        "has schema id %s, which was not known when this query was planned. Restart the query from its "
        "checkpoint: it reads the schemas again and continues with this record. If the error comes back, "
        f"subject %s-{part} of the schema registry lacks this id.",
        F.conv(F.hex(F.substring(data, 2, 4)), 16, 10),
        "topic",
    )
    return F.concat(where, F.when(is_framed, unknown).otherwise(unframed))
