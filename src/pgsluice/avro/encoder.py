"""Encodes rows and keys as Avro. Encoders are made once per version of a relation, and run once per row.

``envelope`` uses the encoders. An encoder takes values as the server sent them, and returns the body of the record
Value or Key. In a row, a value that was not sent becomes null, and its field is listed in ``unchanged``. A value that
its Avro type cannot hold also becomes null, and its text goes to ``raw``.

https://avro.apache.org/docs/1.12.0/specification/#schema-record
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.avro.binary import NULL, VALUE
from pgsluice.avro.from_binary import binary_writer
from pgsluice.avro.schema import Field
from pgsluice.avro.text import Writer, utf8
from pgsluice.avro.types import ColumnType, Misfit
from pgsluice.avro.wire import Schema, header, normalise
from pgsluice.errors import NotInBinary, NullKey, PgsluiceError, PoisonError, ProtocolError, TypeChanged
from pgsluice.pgbinary.base import UNREAD, NewPart, ToText, Unreadable
from pgsluice.pgoutput.cursor import Malformed
from pgsluice.pgoutput.messages import UNCHANGED, BinaryValue, ColumnValue, TupleData
from pgsluice.printable import quoted
from pgsluice.relation import Relation


class RowEncoder:
    """Encodes the record Value of one version of a relation.

    For each column, ``sent`` has a function that converts values from binary format to text. If ``sent`` is None, no
    values may be binary.
    """

    def __init__(self, relation: Relation, fields: Sequence[Field], sent: Sequence[ToText] | None = None) -> None:
        self._table = _Table(relation, sent)
        self.types = [field.type for field in fields]
        self._writers = [kind.write for kind in self.types]
        self.binary_writers = [self._table.binary_writer(index, kind) for index, kind in enumerate(self.types)]
        self.sent: list[ToText | None] = [self._table.to_text(index) for index in range(self._table.width)]
        """The conversion of each column from binary format to text. The column's binary writer was made for this
        conversion. All conversions are None if the server has to send text."""
        self.names = [field.name.encode() for field in fields]
        self.is_key = [column.is_key for column in relation.columns]

    def encode(  # noqa: C901 - one loop, because each further call costs time
        self, values: TupleData, unchanged: list[bytes], raw: list[tuple[bytes, bytes]]
    ) -> bytes:
        """Return the row's body.

        The names of fields whose value was not sent are appended to ``unchanged``. The names and texts of fields whose
        value the Avro type cannot hold are appended to ``raw``. In the body, all these fields are null.
        """
        if len(values) != self._table.width:
            raise self._table.wrong_count(values)
        parts: list[bytes] = []
        append = parts.append
        columns = zip(self._writers, self.binary_writers, self.names, values, strict=True)
        for write, write_binary, name, value in columns:
            if value.__class__ is bytes:
                try:
                    body = write(value)
                except Misfit:
                    append(NULL)
                    raw.append((name, utf8(value)))
                else:
                    append(VALUE)
                    append(body)
            elif value.__class__ is BinaryValue:
                try:
                    body = write_binary(value)
                except Misfit:
                    append(NULL)
                    raw.append((name, utf8(self._table.text(self.names.index(name), value))))
                except UNREAD as error:
                    raise self._table.unread(self.names.index(name), error) from None
                else:
                    append(VALUE)
                    append(body)
            else:
                append(NULL)
                if value is UNCHANGED:
                    unchanged.append(name)
        return b"".join(parts)

    def encode_key_image(self, values: TupleData, unchanged: list[bytes], raw: list[tuple[bytes, bytes]]) -> bytes:
        """Return the body of an old row with only the identity columns. All other fields are null.

        The server sends nulls for the other columns. These nulls say nothing about the row.
        """
        if len(values) != self._table.width:
            raise self._table.wrong_count(values)
        known = [value if is_key else None for value, is_key in zip(values, self.is_key, strict=True)]
        return self.encode(known, unchanged, raw)


class KeyEncoder:
    """Encodes the record Key of one version of a relation. ``sent`` has the conversions of all columns of the row."""

    def __init__(self, relation: Relation, fields: Sequence[Field], sent: Sequence[ToText] | None = None) -> None:
        self._table = _Table(relation, sent)
        self.columns = tuple(field.column.name for field in fields)
        self.places = [relation.columns.index(field.column) for field in fields]
        """The indexes of the key's columns in a row."""
        self.types = [field.type for field in fields]
        self.binary_writers = [
            self._table.binary_writer(place, kind) for place, kind in zip(self.places, self.types, strict=True)
        ]
        self.sent: list[ToText | None] = [self._table.to_text(place) for place in self.places]
        writers = [kind.write for kind in self.types]
        self._parts = list(zip(self.places, writers, self.binary_writers, self.types, strict=True))

    def encode(self, values: TupleData) -> bytes:
        """Return the key's body from the values of a row. Raise PoisonError with the reason if Avro cannot hold it."""
        if len(values) != self._table.width:
            raise self._table.wrong_count(values)
        parts: list[bytes] = []
        for index, write, write_binary, kind in self._parts:
            value = values[index]
            try:
                if value.__class__ is bytes:
                    parts.append(write(value))
                elif value.__class__ is BinaryValue:
                    parts.append(write_binary(value))
                else:
                    raise self._table.missing_key(index, value)
            except Misfit:
                raise self._table.unfit_key(index, kind.schema) from None
            except UNREAD as error:
                raise self._table.unread(index, error) from None
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class FormerKey:
    """The key that a table had before its present key.

    The catalog shows the present primary key, but a row may be older. If a row has a null in a column of the primary
    key, the table did not have this primary key yet. ``encoder`` is None if the table had no key. ``is_optional``:
    whether a row may have a null key.
    """

    schema_id: int
    encoder: KeyEncoder | None
    is_optional: bool = True

    def encode(self, values: TupleData) -> bytes | None:
        """Return the key of a row. Return None if the table had no key, or if the row has a null in this key as well.

        Raise NullKey if null keys are not allowed.
        """
        if self.encoder is None:
            return None
        try:
            return header(self.schema_id) + self.encoder.encode(values)
        except NullKey:
            if self.is_optional:
                return None
            raise


class _Table:
    """What both encoders share: conversions of values in binary format, and errors about the table."""

    def __init__(self, relation: Relation, sent: Sequence[ToText] | None) -> None:
        self._name = str(relation)
        self._columns = [quoted(column.name) for column in relation.columns]
        self._types = [str(column.type) for column in relation.columns]
        self._sent = sent
        self.width = len(self._columns)

    def to_text(self, index: int) -> ToText | None:
        """Return the conversion of a column's values in binary format."""
        return None if self._sent is None else self._sent[index]

    def binary_writer(self, index: int, kind: ColumnType) -> Writer:
        """Return a column's writer for values in binary format. The writer raises Misfit and the errors in UNREAD."""
        return self._unwanted(index) if self._sent is None else binary_writer(kind, self._sent[index])

    def _unwanted(self, index: int) -> Writer:
        def write(_value: bytes) -> bytes:
            raise ProtocolError(
                f"row of table {self._name}: column {self._columns[index]} came in binary format (expected text format)"
            )

        return write

    def text(self, index: int, value: bytes) -> bytes:
        """Return the text of a value in binary format, which the column's Avro type cannot hold."""
        assert self._sent is not None, "without conversions, the binary writer has raised ProtocolError"
        try:
            return self._sent[index](value)
        except UNREAD as error:
            raise self.unread(index, error) from None

    def wrong_count(self, values: TupleData) -> ProtocolError:
        return ProtocolError(
            f"row of table {self._name} with {len(values)} values (expected {self.width},"
            " the number of columns of its Relation message)"
        )

    def unread(self, index: int, error: Exception) -> PgsluiceError:
        """Return the error for a value in binary format that could not be read."""
        column = self._columns[index]
        if isinstance(error, Unreadable):
            sentence = f"Table {self._name}: column {column} of type {self._types[index]} came in binary format, but"
            if isinstance(error, NewPart):
                return TypeChanged(f"{sentence} {error}.")
            return NotInBinary(f"{sentence} {error}.")
        what = f"row of table {self._name}: binary value of column {column}"
        return error.within(what) if isinstance(error, Malformed) else ProtocolError(f"{what}: {error}")

    def missing_key(self, index: int, value: ColumnValue) -> PoisonError:
        column = self._columns[index]
        if value is None:
            return NullKey(f"key column {column} is null")
        return PoisonError(f"the value of key column {column} was not sent (unchanged, out of line)")

    def unfit_key(self, index: int, schema: Schema) -> PoisonError:
        column = self._columns[index]
        return PoisonError(f"key column {column} has a value outside its Avro type {normalise(schema)}")
