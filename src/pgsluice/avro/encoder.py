"""Rows and keys as Avro: encoders compiled once per version of a relation, run once per row.

Used by ``envelope``. Values go in as the server sent them and come out as the body of the records Value and
Key; what a row cannot say is reported beside it (``unchanged``, ``raw``), never replaced.

https://avro.apache.org/docs/1.12.0/specification/#schema-record
"""

from collections.abc import Sequence

from pgsluice.avro.binary import NULL, VALUE
from pgsluice.avro.schema import Field
from pgsluice.avro.types import Misfit
from pgsluice.avro.wire import Schema, normalise
from pgsluice.errors import PgsluiceError, PoisonError, ProtocolError
from pgsluice.pgoutput.messages import UNCHANGED, ColumnValue, TupleData
from pgsluice.relation import Relation


class RowEncoder:
    """The record Value of one version of a relation."""

    def __init__(self, relation: Relation, fields: Sequence[Field]) -> None:
        self._table = _Table(relation)
        self._writers = [field.type.write for field in fields]
        self._names = [field.name.encode() for field in fields]
        self._is_key = [column.is_key for column in relation.columns]

    def encode(self, values: TupleData, unchanged: list[bytes], raw: list[tuple[bytes, bytes]]) -> bytes:
        """Return the row's body; null stands for what is appended to ``unchanged`` and ``raw``.

        ``unchanged`` gets the names of fields whose value was not sent, ``raw`` the names and texts of those
        whose value the Avro type cannot hold.
        """
        if len(values) != self._table.width:
            raise self._table.wrong_count(values)
        parts: list[bytes] = []
        append = parts.append
        for write, name, value in zip(self._writers, self._names, values, strict=True):
            if value.__class__ is bytes:
                try:
                    body = write(value)
                except Misfit:
                    append(NULL)
                    raw.append((name, value))
                else:
                    append(VALUE)
                    append(body)
            else:
                append(NULL)
                if value is UNCHANGED:
                    unchanged.append(name)
                elif value is not None:
                    raise self._table.binary_value(self._names.index(name))
        return b"".join(parts)

    def encode_key_image(self, values: TupleData, unchanged: list[bytes], raw: list[tuple[bytes, bytes]]) -> bytes:
        """Return the body of an old row of which only the identity columns were sent; the others are null.

        What the server sent for the others is filler and is not looked at.
        """
        if len(values) != self._table.width:
            raise self._table.wrong_count(values)
        known = [value if is_key else None for value, is_key in zip(values, self._is_key, strict=True)]
        return self.encode(known, unchanged, raw)


class KeyEncoder:
    """The record Key of one version of a relation."""

    def __init__(self, relation: Relation, fields: Sequence[Field]) -> None:
        self._table = _Table(relation)
        self._columns = [(relation.columns.index(field.column), field.type.write, field) for field in fields]

    def encode(self, values: TupleData) -> bytes:
        """Return the key's body, taken from a row; PoisonError when it has a value that Avro cannot hold."""
        if len(values) != self._table.width:
            raise self._table.wrong_count(values)
        parts: list[bytes] = []
        for index, write, field in self._columns:
            value = values[index]
            if value.__class__ is not bytes:
                raise self._table.missing_key(index, value)
            try:
                parts.append(write(value))
            except Misfit:
                raise self._table.unfit_key(index, field.type.schema) from None
        return b"".join(parts)


class _Table:
    """What the errors of both encoders say about the table."""

    def __init__(self, relation: Relation) -> None:
        self._name = f"{relation.namespace}.{relation.name}"
        self._columns = [column.name for column in relation.columns]
        self.width = len(self._columns)

    def wrong_count(self, values: TupleData) -> ProtocolError:
        return ProtocolError(
            f"row of table {self._name} with {len(values)} values (expected {self.width},"
            " the number of columns of its Relation message)"
        )

    def binary_value(self, index: int) -> ProtocolError:
        return ProtocolError(
            f"row of table {self._name}: column {self._columns[index]} came in binary format (expected text format)"
        )

    def missing_key(self, index: int, value: ColumnValue) -> PgsluiceError:
        column = self._columns[index]
        if value is None:
            return self._poison(f"key column {column} is null")
        if value is UNCHANGED:
            return self._poison(f"the value of key column {column} was not sent (unchanged, out of line)")
        return self.binary_value(index)

    def unfit_key(self, index: int, schema: Schema) -> PoisonError:
        column = self._columns[index]
        return self._poison(f"key column {column} has a value outside its Avro type {normalise(schema)}")

    def _poison(self, reason: str) -> PoisonError:
        return PoisonError(
            f"table {self._name}: {reason}; name other key columns with keys in tables.rules, exclude the"
            ' table, or set delivery.poison = "dead_letter"'
        )
