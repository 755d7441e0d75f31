"""Properties of the Avro encoding.

fastavro reads the same values from Avro as psycopg reads from PostgreSQL's text. A text that PostgreSQL never writes is
either read in the same way, or marked as a value that does not fit.
"""

import io
import math
import re
import struct
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pgsluice.avro import binary, schema
from pgsluice.avro.encoder import KeyEncoder, RowEncoder
from pgsluice.avro.schema import FieldHistory, TableFields, key_fields, key_schema
from pgsluice.avro.text import utf8
from pgsluice.avro.types import TypeOptions, column_type
from pgsluice.errors import PoisonError
from pgsluice.relation import CATALOG, Column, PgType, Relation
from tests.support.avro_oracle import Kind, encoded, nearest_single, numeric, read, same, table, value_of

OPTIONS = TypeOptions()
FULL = TypeOptions(time_range="full")
STRING = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)

# --- texts as PostgreSQL writes them


def time_text(value: Any) -> bytes:  # noqa: ANN401 - a time or a datetime
    text = str(value.isoformat() if not isinstance(value, datetime) else value.isoformat(sep=" "))
    return (text.rstrip("0") if "." in text else text).encode()


def float_text(value: float) -> bytes:
    if math.isnan(value):
        return b"NaN"
    if math.isinf(value):
        return b"Infinity" if value > 0 else b"-Infinity"
    return repr(value).removesuffix(".0").encode()


def escaped_bytea(value: bytes) -> bytes:
    return b"".join(
        b"\\\\" if byte == 0x5C else bytes((byte,)) if 0x20 <= byte < 0x7F else b"\\%03o" % byte for byte in value
    )


def item_text(text: bytes | None, delimiter: bytes) -> bytes:
    if text is None:
        return b"NULL"
    if text and text.upper() != b"NULL" and not re.search(rb'[{}"\\\s]', text) and delimiter not in text:
        return text
    return b'"' + re.sub(rb'(["\\])', rb"\\\1", text) + b'"'


def array_text(items: list[bytes | None], delimiter: bytes = b",") -> bytes:
    return b"{" + delimiter.join(item_text(item, delimiter) for item in items) + b"}"


def hstore_text(pairs: dict[str, str | None]) -> bytes:
    def quoted(text: str) -> bytes:
        return b'"' + re.sub(rb'(["\\])', rb"\\\1", text.encode()) + b'"'

    return b", ".join(
        quoted(key) + b"=>" + (b"NULL" if value is None else quoted(value)) for key, value in pairs.items()
    )


def whole(bits: int) -> st.SearchStrategy[bytes]:
    return st.integers(-(2**bits), 2**bits - 1).map(lambda number: b"%d" % number)


def decimals(precision: int, scale: int) -> st.SearchStrategy[bytes]:
    return st.integers(1 - 10**precision, 10**precision - 1).map(lambda unscaled: decimal_text(unscaled, scale))


def decimal_text(unscaled: int, scale: int) -> bytes:
    digits = f"{abs(unscaled):0{scale + 1}}"
    point = len(digits) - scale
    text = digits[:point] + ("." + digits[point:] if scale else "")
    return ("-" * (unscaled < 0) + text).encode()


def arrays(items: st.SearchStrategy[bytes], delimiter: bytes = b",") -> st.SearchStrategy[bytes]:
    return st.lists(st.none() | items, max_size=5).map(lambda found: array_text(found, delimiter))


SINGLES = st.floats(width=32).map(lambda value: float_text(value) if not math.isfinite(value) else b"%.9g" % value)
SHORT_SINGLES = st.from_regex(rb"-?[1-9](\.[0-9]{1,8}[1-9])?e[+-][0-3][0-9]", fullmatch=True).filter(
    lambda text: 1e-45 < abs(float(text)) < 3e38
)
TIMESTAMPS = st.datetimes().map(time_text)
UUIDS = st.uuids().map(lambda value: str(value).encode())
HEX = st.binary(max_size=20).map(lambda value: b"\\x" + value.hex().encode())
TEXTS = STRING.map(str.encode)

TYPES: dict[Kind, st.SearchStrategy[bytes]] = {
    ("bool", -1): st.sampled_from([b"t", b"f"]),
    ("int2", -1): whole(15),
    ("int4", -1): whole(31),
    ("int8", -1): whole(63),
    ("oid", -1): st.integers(0, 2**32 - 1).map(lambda number: b"%d" % number),
    ("float4", -1): SINGLES | SHORT_SINGLES,
    ("float8", -1): st.floats().map(float_text),
    ("numeric", -1): decimals(60, 20),
    numeric(10, 2): decimals(10, 2),
    numeric(38, 38): decimals(38, 38),
    numeric(38, 0): decimals(38, 0),
    numeric(3, 5): decimals(3, 5),
    numeric(5, -2): st.integers(-99_999, 99_999).map(lambda number: b"%d" % (number * 100)),
    ("date", -1): st.dates().map(lambda day: day.isoformat().encode()),
    ("time", -1): st.times().map(time_text),
    ("timestamp", -1): TIMESTAMPS,
    ("timestamptz", -1): TIMESTAMPS.map(lambda text: text + b"+00"),
    ("uuid", -1): UUIDS,
    ("bytea", -1): HEX | st.binary(max_size=20).map(escaped_bytea),
    ("text", -1): TEXTS,
    ("jsonb", -1): TEXTS,
    ("interval", -1): st.just(b"P1Y2M3DT4H5M6.7S"),
    ("_int4", -1): arrays(whole(31)),
    ("_bool", -1): arrays(st.sampled_from([b"t", b"f"])),
    ("_text", -1): arrays(TEXTS),
    ("_bytea", -1): arrays(HEX),
    ("_float8", -1): arrays(st.floats().map(float_text)),
    ("_numeric", -1): arrays(decimals(9, 3)),
    ("_numeric", numeric(10, 2)[1]): arrays(decimals(10, 2)),
    ("_date", -1): arrays(st.dates().map(lambda day: day.isoformat().encode())),
    ("_timestamptz", -1): arrays(TIMESTAMPS.map(lambda text: text + b"+00")),
    ("_uuid", -1): arrays(UUIDS),
    ("_box", -1): arrays(st.sampled_from([b"(1,1),(0,0)", b"(2,2),(1,1)"]), b";"),
    ("hstore", -1): st.dictionaries(STRING, st.none() | STRING, max_size=4).map(hstore_text),
    ("vector", -1): st.lists(SINGLES.filter(lambda text: text[-1:] not in b"Nny"), min_size=1, max_size=4).map(
        lambda items: b"[" + b",".join(items) + b"]"
    ),
}
KINDS = sorted(TYPES)


def mutations(text: bytes) -> st.SearchStrategy[bytes]:
    """Return copies of ``text`` in which one part is replaced by a character that occurs in texts of other types."""
    piece = st.sampled_from(
        [b"", b"-", b"+", b"_", b" ", b".", b"0", b"9", b"e", b":", b'"', b"\\", b"{", b"}", b",", b"\xff"]
    )
    position = st.integers(0, len(text))
    return st.builds(
        lambda start, length, new: text[:start] + new + text[start + length :], position, st.integers(0, 2), piece
    )


# --- rows


def cells(kind: Kind) -> st.SearchStrategy[tuple[Kind, bytes]]:
    return st.tuples(st.just(kind), TYPES[kind])


def rows() -> st.SearchStrategy[list[tuple[Kind, bytes]]]:
    return st.lists(st.sampled_from(KINDS).flatmap(cells), max_size=8)


@settings(max_examples=400)
@given(rows())
def test_fastavro_reads_the_values_that_psycopg_reads(row: list[tuple[Kind, bytes]]) -> None:
    relation = table(*(kind for kind, _ in row))
    values, raw = encoded(relation, [text for _, text in row], OPTIONS)
    assert raw == {}
    for (kind, text), value in zip(row, values.values(), strict=True):
        assert same(value, value_of(kind, text)), (kind, text)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(st.data())
def test_values_of_every_type_are_read_as_by_psycopg(kind: Kind, data: st.DataObject) -> None:
    text = data.draw(TYPES[kind])
    values, raw = encoded(table(kind), [text], OPTIONS)
    assert raw == {}
    assert same(values["c0"], value_of(kind, text))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(st.data())
def test_a_text_that_postgresql_never_writes_is_marked_or_read_as_by_psycopg(kind: Kind, data: st.DataObject) -> None:
    text = data.draw(TYPES[kind].flatmap(mutations))
    for options in (OPTIONS, FULL):
        fields = TableFields(options).assign(table(kind))
        raw: list[tuple[bytes, bytes]] = []
        body = RowEncoder(table(kind), fields).encode([text], [], raw)
        if raw:
            assert (raw, body) == ([(b"c0", utf8(text))], b"\x00")
        elif options is OPTIONS and text.isascii():
            value = read(schema.value_schema("a.b.c", fields), body)["c0"]
            assert agrees(value, value_of(kind, text)), text


def agrees(value: object, reading: object) -> bool:
    """Compare as :func:`same` does, but compare decimals by value, because a mutated text may have fewer digits."""
    return same(value, reading) or (isinstance(value, Decimal) and value == reading)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(st.binary(max_size=60) | st.text('0123456789-+.:eBCNaInfity{}",\\ xtf', max_size=30).map(str.encode))
def test_any_bytes_are_encoded_or_marked(kind: Kind, text: bytes) -> None:
    relation = table(kind)
    for options in (OPTIONS, FULL, TypeOptions(numeric=(38, 9))):
        fields = TableFields(options).assign(relation)
        raw: list[tuple[bytes, bytes]] = []
        body = RowEncoder(relation, fields).encode([text], [], raw)
        assert (body == b"\x00") == (raw == [(b"c0", utf8(text))])
        if options is OPTIONS and text.isascii():
            read(schema.value_schema("a.b.c", fields), body)
        key = KeyEncoder(relation, key_fields(relation, fields, ["c0"], options))
        try:
            key.encode([text])
        except PoisonError:
            assert raw, "a value that fits a row has to fit a key"


@given(st.sampled_from(KINDS).flatmap(cells))
def test_a_key_has_the_same_value_as_the_row(case: tuple[Kind, bytes]) -> None:
    kind, text = case
    relation = table(kind)
    fields = TableFields(OPTIONS).assign(relation)
    key = key_fields(relation, fields, ["c0"], OPTIONS)
    body = KeyEncoder(relation, key).encode([text])
    assert body == RowEncoder(relation, fields).encode([text], [], [])[1:]
    assert same(read(key_schema("a.b.c", key), body)["c0"], value_of(kind, text))


# --- numbers


@given(st.integers(-(2**63), 2**63 - 1))
@example(2**63 - 1)
def test_longs_are_encoded_as_specified(number: int) -> None:
    zigzag = (number << 1) ^ (number >> 63)
    expected = bytearray()
    while zigzag > 127:
        expected.append(zigzag & 127 | 128)
        zigzag >>= 7
    expected.append(zigzag)
    assert binary.encode_long(number) == bytes(expected)


@given(st.integers(0, 0x7F7FFFFE), st.sampled_from([Decimal(0), Decimal("1e-40"), Decimal("-1e-40")]))
def test_float4_is_rounded_correctly_near_the_middle_of_two_neighbours(bits: int, nudge: Decimal) -> None:
    low, high = (nearest_single(repr(value).encode()) for value in singles(bits))
    with_nudge = (Decimal(low) + Decimal(high)) / 2 * (1 + nudge)
    text = str(with_nudge.normalize()).lower().encode()
    assume(with_nudge)
    values, raw = encoded(table(("float4", -1)), [text], OPTIONS)
    assert raw == {}
    assert same(values["c0"], nearest_single(text))


def singles(bits: int) -> tuple[float, float]:
    low, high = struct.unpack("<ff", struct.pack("<II", bits, bits + 1))
    return low, high


# --- dates and times of every year


def days_of_year(year: int) -> int:
    """Return the number of days from 1970-01-01 to January 1 of an astronomical year."""
    before = year - 1
    leap_days = before // 4 - before // 100 + before // 400
    return 365 * (year - 1970) + leap_days - (1969 // 4 - 1969 // 100 + 1969 // 400)


@given(st.integers(-4713, 294_000), st.integers(0, 364), st.integers(0, 86_399_999_999))
@example(1, 0, 0)
@example(0, 364, 86_399_999_999)
@example(9999, 364, 86_399_999_999)
@example(10_000, 0, 0)
def test_dates_and_times_of_any_year_are_counted_from_1970(year: int, day_of_year: int, time_us: int) -> None:
    # 2001 is not a leap year. In leap years, dates after February are one day later in the year.
    day = date(2001, 1, 1) + timedelta(days=day_of_year)
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = days_of_year(year) + day_of_year + (1 if is_leap and day.month > 2 else 0)
    moment = datetime(2001, 1, 1) + timedelta(microseconds=time_us)  # noqa: DTZ001 - for its time of day only
    bc = b" BC" if year < 1 else b""
    date_text = b"%04d-%02d-%02d" % (year if year > 0 else 1 - year, day.month, day.day)
    clock = time_text(moment.time())
    texts = [date_text + bc, date_text + b" " + clock + bc, date_text + b" " + clock + b"+00" + bc]
    kinds = [("date", -1), ("timestamp", -1), ("timestamptz", -1)]
    expected = [days, days * 86_400_000_000 + time_us, days * 86_400_000_000 + time_us]
    relation = table(*kinds)
    for options, fits in ((FULL, True), (OPTIONS, 1 <= year <= 9999)):
        writers = [column_type(column, options).write for column in relation.columns]
        for write, text, number in zip(writers, texts, expected, strict=True):
            try:
                body = write(text)
            except ValueError:
                assert not fits
            else:
                assert fits
                assert body == binary.encode_long(number)


# --- names


@given(STRING, STRING)
@example("_x0041_", "A")
@example("_x0041é", "A_x00E9_")
@example("_", "_x005F_")
def test_names_are_legal_and_never_collide(one: str, other: str) -> None:
    assume(one and other)
    for name in (one, other):
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", schema.avro_name(name))
        assert schema.pg_name(schema.avro_name(name)) == name
    assert (schema.avro_name(one) == schema.avro_name(other)) == (one == other)


# --- changes of a table over time

COLUMN_KINDS: list[Kind] = [
    ("int4", -1),
    ("int8", -1),
    ("float4", -1),
    ("float8", -1),
    ("text", -1),
    ("uuid", -1),
    ("timestamptz", -1),
    numeric(10, 2),
    numeric(12, 2),
    numeric(12, 4),
]
NAMES = ["a", "A", "a__2", "b", "é", "_x00E9_"]
VERSION = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(COLUMN_KINDS)), unique_by=lambda c: c[0], max_size=4
)
EXAMPLES = {
    "int4": b"7",
    "int8": b"7",
    "float4": b"0.1",
    "float8": b"0.1",
    "text": b"7",
    "uuid": str(UUID(int=7)).encode(),
    "timestamptz": b"2024-02-29 12:00:00+00",
    "numeric": b"7.00",
}


def version(columns: list[tuple[str, Kind]]) -> Relation:
    made = [Column(name, PgType(0, CATALOG, kind[0]), kind[1], is_key=False) for name, kind in columns]
    return Relation(16_385, "public", "orders", "d", tuple(made))


def envelope(history: TableFields, relation: Relation) -> dict[str, Any]:
    return schema.envelope_schema("shop.public.orders", history.assign(relation))


@given(st.lists(VERSION.map(version), max_size=8), VERSION.map(version))
def test_field_names_depend_only_on_the_registered_schemas(versions: list[Relation], last: Relation) -> None:
    history = TableFields(OPTIONS)
    registered: list[dict[str, Any]] = []
    for relation in versions:
        # After a restart, each registered schema is read once, and the names are derived from these schemas.
        found = envelope(TableFields(OPTIONS, FieldHistory(registered)), relation)
        assert found == envelope(history, relation)
        registered += [] if found in registered else [found]
    assert TableFields(OPTIONS, FieldHistory(registered)).assign(last) == history.assign(last)


@given(st.lists(st.tuples(VERSION.map(version), st.booleans()), max_size=8))
def test_a_continued_history_equals_a_new_one(versions: list[tuple[Relation, bool]]) -> None:
    """Compare a history that learns schemas one by one with a new history. Unregistered schemas have no effect."""
    history = FieldHistory()
    registered: list[dict[str, Any]] = []
    for relation, is_registered in versions:
        found = envelope(TableFields(OPTIONS, history), relation)
        assert found == envelope(TableFields(OPTIONS, FieldHistory(registered)), relation)
        if is_registered:
            history.learn(found)
            registered += [] if found in registered else [found]


@given(st.lists(VERSION.map(version), max_size=8))
def test_a_field_always_belongs_to_the_same_column(versions: list[Relation]) -> None:
    history = TableFields(OPTIONS)
    owners: dict[str, tuple[str, str]] = {}
    for relation in versions:
        fields = history.assign(relation)
        assert [field.column for field in fields] == list(relation.columns)
        assert len({field.name.lower() for field in fields}) == len(fields)
        for field in fields:
            assert owners.setdefault(field.name.lower(), (field.name, field.column.name)) == (
                field.name,
                field.column.name,
            )


@given(st.lists(VERSION.map(version), min_size=2, max_size=6))
def test_every_schema_reads_or_refuses_the_rows_of_every_other(versions: list[Relation]) -> None:
    history = TableFields(OPTIONS)
    rows: list[tuple[Any, bytes]] = []
    for relation in versions:
        fields = history.assign(relation)
        fastavro.parse_schema(envelope(history, relation))
        row_schema = schema.value_schema("shop.public.orders", fields)
        texts = [EXAMPLES[column.type.name] for column in relation.columns]
        rows.append((fastavro.parse_schema(row_schema), RowEncoder(relation, fields).encode(list(texts), [], [])))
    for written, (writer_schema, body) in enumerate(rows):
        as_written = read(writer_schema, body)
        for known, (reader_schema, _) in enumerate(rows):
            try:
                as_read = reread(writer_schema, reader_schema, body)
            except fastavro.read.SchemaResolutionError:
                # A reader may refuse a row only if a field is narrower in the reader's schema. It must never read a
                # wrong value.
                assert known < written
                assert narrower(reader_schema, writer_schema)
            else:
                expected = {name: as_written.get(name) for name in as_read}
                assert as_read == expected


def narrower(reader_schema: Any, writer_schema: Any) -> list[str]:  # noqa: ANN401 - parsed by fastavro
    """Return the names of the fields that are wider in the writer's schema."""
    wide = {field["name"]: field["type"][1] for field in writer_schema["fields"]}
    names = {field["name"]: field["type"][1] for field in reader_schema["fields"] if field["name"] in wide}
    return [
        name
        for name, kind in names.items()
        if (kind, wide[name]) in [("int", "long"), ("int", "double"), ("float", "double")]
    ]


def reread(writer_schema: Any, reader_schema: Any, body: bytes) -> Any:  # noqa: ANN401 - fastavro's
    return fastavro.schemaless_reader(io.BytesIO(body), writer_schema, reader_schema)


def test_the_oracle_does_not_round_twice() -> None:
    assert nearest_single(b"7.038531e-26") == 7.038530691851209e-26
