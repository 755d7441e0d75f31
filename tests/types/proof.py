"""Inserts values of every type into a real server, and compares what arrives with the server's own text.

Each type is tried as itself, as a domain over it, as an array of it, as an array of the domain, and as a domain over
the array. The formats are text and, if the server supports it, binary. Both formats must give the same bytes, with
both twins of ``rows``. A value must be marked (sent as null, with its text in ``raw``) if, and only if, its column's
Avro type cannot hold it. This module derives from the documentation, independently of pgsluice's code, which values are
marked, and how keys represent them.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format

from pgsluice.avro.binary import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, encode_long
from pgsluice.avro.choices import Choice, ColumnChoice
from pgsluice.avro.encoder import KeyEncoder, RowEncoder
from pgsluice.avro.schema import TableFields, key_fields, key_schema, value_schema
from pgsluice.avro.types import TypeOptions
from pgsluice.envelope import ChangeEncoder
from pgsluice.errors import PoisonError
from pgsluice.pgbinary.base import ToText
from pgsluice.pgbinary.conversions import TypeDescription, conversions, elements, unknown_arrays, unknown_types
from pgsluice.pgoutput import messages
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.pgoutput.messages import TupleData
from pgsluice.postgres.catalog import Catalog
from pgsluice.postgres.options import StreamOptions
from pgsluice.record import Target
from pgsluice.relation import Relation, RelationCache
from pgsluice.transaction import Transaction
from sandbox.postgres import Database
from tests.support.avro_oracle import nearest_single, read, same
from tests.support.pg_text import converter
from tests.support.pgoutput_encoder import encode
from tests.support.replication import decode, options_for, replication
from tests.support.twins import TWINS, outcome
from tests.types import chosen
from tests.types.samples import NEVER_IN_TABLES, SAMPLES, SETUP, USERS, Sample

BINARY_SINCE = 14
DOMAINS_OF_ALL_SINCE = 11
"""Earlier versions have no domains of composites, and no arrays of domains."""

ITEM_MAX = 5000
"""The largest number of characters in an item of an array. Numbers of 131,072 digits are tried only as scalars."""

_ARRAY_TEXT = Transformer().get_loader(1009, Format.TEXT)


# --- what is tried


class Shape(NamedTuple):
    """One column: the type itself, or a type derived from it."""

    name: str
    declaration: str
    is_array: bool


@dataclass
class Subject:
    """One table: the values of one sample as scalars, or as arrays."""

    name: str
    sample: Sample
    shapes: Sequence[Shape]
    pg_type: str
    """The type's own name, without modifiers."""
    sent_in_binary: bool
    rows: list[list[str]] = field(default_factory=list)


class Tally(NamedTuple):
    """How many values of a type were compared, and how many of them were marked."""

    tried: int
    marked: int


@dataclass
class Outcome:
    """The results of one version."""

    tallies: dict[str, Tally]
    problems: list[str]


def _subjects(connection: psycopg.Connection, version: int, seed: int, count: int) -> Iterator[Subject]:
    samples = [sample for sample in (*SAMPLES, *USERS) if sample.since <= version <= sample.until]
    is_modern = version >= DOMAINS_OF_ALL_SINCE
    for number, sample in enumerate(samples):
        rng = Random(f"{seed} {sample.declaration} {number}")
        found = _type(connection, sample.declaration)
        values = sample.values(rng, count)
        scalars = [Shape("own", sample.declaration, is_array=False)]
        if is_modern or found.kind != "c":
            connection.execute(f"CREATE DOMAIN d{number} AS {sample.declaration}".encode())
            scalars.append(Shape("domain", f"d{number}", is_array=False))
        rows = [[value] * len(scalars) for value in values]
        yield Subject(f"s{number}", sample, scalars, found.name, sent_in_binary=True, rows=rows)
        if is_modern or found.kind != "d":
            connection.execute(f"CREATE DOMAIN da{number} AS {sample.declaration}[]".encode())
            shapes = {"items": f"{sample.declaration}[]", "in_domain": f"da{number}"}
            shapes |= {"of_domain": f"d{number}[]"} if is_modern else {}
            arrays = [Shape(name, declaration, is_array=True) for name, declaration in shapes.items()]
            items = [value for value in values if len(value) < ITEM_MAX]
            rows = [[array] * len(arrays) for array in sample.arrays(rng, items)]
            yield Subject(f"a{number}", sample, arrays, found.name, found.has_send, rows)


class Described(NamedTuple):
    """A type: its own name, whether it has a binary format, and its typtype."""

    name: str
    has_send: bool
    kind: str


def _type(connection: psycopg.Connection, declaration: str) -> Described:
    query = "SELECT typname, typsend <> 0, typtype::text FROM pg_type WHERE oid = %s::regtype"
    row = connection.execute(query, [declaration]).fetchone()
    assert row is not None
    return Described(*row)


def forgotten(connection: psycopg.Connection, version: int) -> set[str]:
    """Return the server's built-in types that a column can have, but that have no sample."""
    query = """
        SELECT typname FROM pg_type t JOIN pg_namespace n ON n.oid = typnamespace
        WHERE nspname = 'pg_catalog' AND typrelid = 0 AND typtype <> 'p'
          AND NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid)
    """
    there = {name for (name,) in connection.execute(query)}
    tried = {
        _type(connection, sample.declaration).name for sample in SAMPLES if sample.since <= version <= sample.until
    }
    return there - tried - {name for name in there & NEVER_IN_TABLES if _takes_nothing(connection, name)}


def _takes_nothing(connection: psycopg.Connection, name: str) -> bool:
    if name == "smgr":
        return True
    try:
        connection.execute(f"SELECT ''::{name}".encode())
    except psycopg.errors.FeatureNotSupported:
        return True
    return False


# --- what arrives


@dataclass
class Arrived:
    """One table as it arrives in the stream."""

    relation: Relation
    rows: list[TupleData]
    described: Sequence[TypeDescription]
    sent: Sequence[ToText] | None

    def options(self, **choices: Any) -> TypeOptions:  # noqa: ANN401 - any option
        return TypeOptions(elements=elements(self.relation, self.described), binary=self.sent is not None, **choices)


async def _arrived(database: Database, slot: str, publication: str, *, binary: bool) -> dict[str, Arrived]:
    """Read up to the commit of the first transaction with rows, and return the rows by table.

    Ignore empty transactions, such as those of autovacuum, because servers before 15 send them.
    """
    cache, decoder, rows = RelationCache(), Decoder(), defaultdict[int, list[TupleData]](list)
    options = options_for(database)
    async with replication(options) as connection, Catalog(options) as catalog:
        stream = await connection.start(slot, [publication], StreamOptions(streaming="off", binary=binary))
        committed = False
        while not committed:
            for message in decode(await stream.read(), decoder):
                if isinstance(message, messages.Type):
                    cache.on_type(message)
                elif isinstance(message, messages.Relation):
                    cache.on_relation(message)
                elif isinstance(message, messages.Insert):
                    rows[message.relation_oid].append(message.new)
                committed |= isinstance(message, messages.Commit) and bool(rows)
        found = {}
        for oid, of_table in rows.items():
            relation = cache[oid]
            unknown = unknown_types(relation) if binary else unknown_arrays(relation)
            described = await catalog.describe_types(unknown) if unknown else []
            sent = conversions(relation, described) if binary else None
            found[relation.name] = Arrived(relation, of_table, described, sent)
        return found


class Encoded(NamedTuple):
    """One row: its body, the texts that did not fit (by field), and the key's body.

    If the key cannot be encoded (poison), its body is None.
    """

    body: bytes
    raw: dict[str, str]
    key: bytes | None


_TRANSACTION = Transaction(700, 1000, 0)


class Encoding:
    """The encoders of a table, with its second column as the key."""

    def __init__(self, arrived: Arrived, options: TypeOptions) -> None:
        relation = arrived.relation
        self.fields = TableFields(options).assign(relation)
        self.row_schema = value_schema("a.b", self.fields)
        of_key = key_fields(relation, self.fields, [relation.columns[1].name], options)
        self.key_schema = key_schema("a.b", of_key)
        self._row = RowEncoder(relation, self.fields, arrived.sent)
        self._key = KeyEncoder(relation, of_key, arrived.sent)
        self._relation = relation
        target = Target("a.b", 11, 12)
        self._change = ChangeEncoder(relation, target, self._row, self._key, tombstones=False, truncate=False)

    def encode(self, row: TupleData) -> Encoded:
        raw: list[tuple[bytes, bytes]] = []
        body = self._row.encode(row, [], raw)
        try:
            key = self._key.encode(row)
        except PoisonError:
            key = None
        return Encoded(body, {name.decode(): text.decode() for name, text in raw}, key)

    def twins_agree(self, row: TupleData) -> bool:
        """Return whether all twins give the same result for a row that was sent."""
        message = encode(messages.Insert(None, self._relation.oid, row))
        one, *others = (outcome(twin, self._relation, self._change, message, _TRANSACTION) for twin in TWINS)
        return all(other == one for other in others)


# --- what should arrive

_NOT_COMMON = re.compile(r"-?infinity|[0-9]{5,}-.*|.* BC")


def is_marked(schema: Any, text: str, delimiter: str) -> bool:  # noqa: ANN401 - an Avro schema
    """Return whether a value must be marked according to docs/types.md."""
    logical_type = schema.get("logicalType") if isinstance(schema, dict) else None
    if logical_type == "decimal":
        return text in ("NaN", "Infinity", "-Infinity")
    if logical_type == "time-micros":
        return text == "24:00:00"
    if logical_type in ("date", "timestamp-micros", "local-timestamp-micros"):
        return _NOT_COMMON.fullmatch(text) is not None
    if isinstance(schema, dict) and schema["type"] == "array" and schema["items"] != "float":  # not a vector
        if text[0] == "[" or text[:2] == "{{":
            return True
        return any(
            item is not None and is_marked(schema["items"][1], item, delimiter) for item in _items(text, delimiter)
        )
    return False


def _items(text: str, delimiter: str) -> list[str | None]:
    """Return the items of a one-dimensional array, as psycopg reads them."""
    if delimiter != ",":
        return list(text[1:-1].split(delimiter)) if text != "{}" else []
    items: list[str | None] = _ARRAY_TEXT.load(text.encode())
    return items


_EXTREMES = {"date": (INT_MIN, INT_MAX), "timestamp": (LONG_MIN, LONG_MAX), "timestamptz": (LONG_MIN, LONG_MAX)}


def infinite_key(pg_type: str, text: str) -> bytes | None:
    """Return the bytes of an infinite date or timestamp in a key. Return None if ``text`` is another value."""
    if pg_type not in _EXTREMES or text not in ("infinity", "-infinity"):
        return None
    return encode_long(_EXTREMES[pg_type][text == "infinity"])


def agrees(schema: Any, pg_type: str, delimiter: str, value: Any, text: str) -> bool:  # noqa: ANN401 - any value
    """Return whether fastavro's value is equal to the server's text."""
    if schema == "float":
        return same(value, nearest_single(text.encode()))
    if schema == "double":
        return same(value, float(text))
    if isinstance(schema, dict) and schema.get("items") == "float":
        return same(value, [nearest_single(part.encode()) for part in text[1:-1].split(",")])
    if pg_type in ("float4", "float8", "vector") and isinstance(value, list):
        expected = _items(text, delimiter)
        parts = zip(value, expected, strict=True)
        return all(
            (a is b) if a is None or b is None else agrees(schema["items"][1], pg_type, ",", a, b) for a, b in parts
        )
    name = pg_type if not isinstance(value, list) else f"_{'box' if delimiter == ';' else pg_type}"
    return converter(schema, name)(value) == text


# --- the comparison


class Proof:
    """The tables of one version."""

    def __init__(self, database: Database, seed: int, count: int) -> None:
        self._database = database
        self._seed = seed
        self._count = count
        self._version = database.server.version
        self._subjects: list[Subject] = []
        self._tallies: Counter[tuple[str, bool]] = Counter()
        self.problems: list[str] = []

    async def run(self) -> Outcome:
        """Insert, read and compare."""
        with psycopg.connect(options_for(self._database).conninfo(), autocommit=True) as connection:
            connection.execute("SET search_path = public")
            connection.execute(SETUP.encode())
            self.problems += [f"no values of type {name}" for name in forgotten(connection, self._version)]
            self._subjects = list(_subjects(connection, self._version, self._seed, self._count))
            self._create(connection)
            async with replication(options_for(self._database)) as replicating:
                await replicating.create_slot("proof_text")
                if self._version >= BINARY_SINCE:
                    await replicating.create_slot("proof_binary")
            self._insert(connection)
            in_text = await _arrived(self._database, "proof_text", "everything", binary=False)
            in_binary = {}
            if self._version >= BINARY_SINCE:
                in_binary = await _arrived(self._database, "proof_binary", "sendable", binary=True)
            connection.execute("SET search_path = ''")
            for subject in self._subjects:
                texts = self._texts(connection, subject)
                self._compare(subject, texts, in_text[subject.name])
                if not subject.shapes[0].is_array:
                    self._compare_chosen(subject, texts, in_text[subject.name])
                if subject.name in in_binary:
                    self._compare_formats(connection, subject, in_text[subject.name], in_binary[subject.name])
                    self._compare_twins(subject, in_binary[subject.name])
        return Outcome(self._summary(), self.problems)

    def _create(self, connection: psycopg.Connection) -> None:
        for subject in self._subjects:
            columns = ", ".join(f"{shape.name} {shape.declaration}" for shape in subject.shapes)
            connection.execute(f"CREATE TABLE {subject.name} (id int PRIMARY KEY, {columns})".encode())
        for name, subjects in (
            ("everything", self._subjects),
            ("sendable", [s for s in self._subjects if s.sent_in_binary]),
        ):
            tables = ", ".join(subject.name for subject in subjects)
            connection.execute(f"CREATE PUBLICATION {name} FOR TABLE {tables}".encode())

    def _insert(self, connection: psycopg.Connection) -> None:
        with connection.transaction(), connection.cursor() as cursor:
            for subject in self._subjects:
                with cursor.copy(f"COPY {subject.name} FROM STDIN".encode()) as copy:
                    for number, row in enumerate(subject.rows):
                        copy.write_row((number, *row))
                    copy.write_row((len(subject.rows), *(None for _ in subject.shapes)))

    def _texts(self, connection: psycopg.Connection, subject: Subject, cast: str = "") -> list[list[str | None]]:
        """Return the rows as the server's output functions write them."""
        columns = ", ".join(f"{shape.name}{cast and cast + '[]' * shape.is_array}" for shape in subject.shapes)
        query = f"SELECT {columns} FROM public.{subject.name} ORDER BY id".encode()
        result = connection.pgconn.exec_params(query, [], result_format=Format.TEXT)
        assert result.status == ExecStatus.TUPLES_OK, result.get_error_message()
        places = range(len(subject.shapes))
        cells = ([result.get_value(row, place) for place in places] for row in range(result.ntuples))
        return [[None if cell is None else _decoded(cell) for cell in row] for row in cells]

    def _compare(self, subject: Subject, texts: list[list[str | None]], arrived: Arrived) -> None:
        """Compare what arrived in text format with the server's text."""
        encoding = Encoding(arrived, arrived.options())
        if len(arrived.rows) != len(texts):
            self.problems.append(f"{subject.sample.declaration}: {len(arrived.rows)} rows of {len(texts)}")
        for row, expected in zip(arrived.rows, texts, strict=False):
            encoded = encoding.encode(row)
            found = list(read(encoding.row_schema, encoded.body).values())[1:]
            for field_, value, text in zip(encoding.fields[1:], found, expected, strict=True):
                self._compare_value(subject, field_, value, encoded.raw.get(field_.name), text)
            self._compare_key(subject, encoding, encoded, found[0], expected[0])

    def _compare_value(self, subject: Subject, field_: Any, value: Any, raw: str | None, text: str | None) -> None:  # noqa: ANN401 - any value
        schema, delimiter = field_.type.schema, subject.sample.delimiter
        if text is None:
            if (value, raw) != (None, None):
                self._complain(subject, field_.name, "null", value, raw)
            return
        marked = is_marked(schema, text, delimiter)
        self._tallies[subject.pg_type, marked] += 1
        if marked and (value is not None or raw != text):
            self._complain(subject, field_.name, text, value, raw)
        if not marked and (raw is not None or not agrees(schema, subject.pg_type, delimiter, value, text)):
            self._complain(subject, field_.name, text, value, raw)

    def _compare_key(
        self,
        subject: Subject,
        encoding: Encoding,
        encoded: Encoded,
        value: Any,  # noqa: ANN401 - any value
        text: str | None,
    ) -> None:
        infinity = None if text is None else infinite_key(subject.pg_type, text)
        if infinity is not None:
            fits = encoded.key == infinity
        elif value is None:  # null or marked
            fits = encoded.key is None
        else:
            fits = encoded.key is not None and same(next(iter(read(encoding.key_schema, encoded.key).values())), value)
        if not fits:
            self._complain(subject, "key", text, encoded.key, None)

    def _compare_chosen(self, subject: Subject, texts: list[list[str | None]], found: Arrived) -> None:
        """Compare what arrives with the expected values, for each Avro type that can be chosen."""
        for choice in _choices(subject):
            encoding = Encoding(found, found.options(**_chosen(choice)))
            for row, (text, *_) in zip(found.rows, texts, strict=False):
                encoded = encoding.encode(row)
                value, raw = read(encoding.row_schema, encoded.body)["own"], encoded.raw.get("own")
                wanted = None if text is None else chosen.expected(choice, subject.pg_type, text)
                self._tallies[f"{subject.pg_type} as {choice}", wanted is chosen.UNFIT] += text is not None
                fits = (
                    (value, raw) == (None, text)
                    if wanted is chosen.UNFIT
                    else raw is None and same(chosen.arrived(value), wanted)
                )
                if not fits:
                    self._complain(subject, choice, text, value, raw)

    def _compare_formats(
        self, connection: psycopg.Connection, subject: Subject, in_text: Arrived, in_binary: Arrived
    ) -> None:
        """Check that both formats give the same bytes, with every type that can be chosen."""
        numbers = self._texts(connection, subject, "::oid") if subject.pg_type.startswith("reg") else None
        choices = [_chosen(choice) for choice in _choices(subject)]
        for options in (*_OPTIONS, *choices):
            one, other = (
                Encoding(in_text, in_text.options(**options)),
                Encoding(in_binary, in_binary.options(**options)),
            )
            if one.row_schema != other.row_schema:
                self.problems.append(f"{subject.sample.declaration}: schemas differ by format")
            for place, (text, binary) in enumerate(zip(in_text.rows, in_binary.rows, strict=True)):
                expected = [text[0], *numbers[place]] if numbers is not None else text
                if one.encode([v.encode() if isinstance(v, str) else v for v in expected]) != other.encode(binary):
                    self._complain(subject, str(options), text[1], binary[1], None)

    def _compare_twins(self, subject: Subject, in_binary: Arrived) -> None:
        """Check that both twins write the same bytes for values in binary format."""
        for options in _OPTIONS:
            encoding = Encoding(in_binary, in_binary.options(**options))
            for row in in_binary.rows:
                if not encoding.twins_agree(row):
                    self._complain(subject, f"{options}, the twins differ", row[1], None, None)

    def _complain(self, subject: Subject, where: str, text: object, value: object, raw: object) -> None:
        shown = [repr(one)[:200] for one in (text, value, raw)]
        self.problems.append(f"{subject.sample.declaration}, {where}: {shown[0]} came as {shown[1]} (raw: {shown[2]})")

    def _summary(self) -> dict[str, Tally]:
        names = sorted({name for name, _ in self._tallies})
        return {
            name: Tally(self._tallies[name, False] + self._tallies[name, True], self._tallies[name, True])
            for name in names
        }


def _decoded(cell: bytes) -> str:
    """Return the text. A "char" beyond ASCII is returned as servers since 16 write it."""
    try:
        return cell.decode()
    except UnicodeDecodeError:
        readable = cell.decode("utf-8", "surrogateescape")
        octal = '"\\\\{:03o}"' if len(cell) > 1 else "\\{:03o}"
        return re.sub("[\udc80-\udcff]", lambda match: octal.format(ord(match[0]) & 0xFF), readable)


def _choices(subject: Subject) -> list[str]:
    return ["string", *chosen.CHOICES.get(subject.pg_type, ())]


def _chosen(choice: str) -> dict[str, Any]:
    return {"choices": (ColumnChoice("[!i]*", Choice.parse(choice)), ColumnChoice("items", Choice.parse(choice)))}


_OPTIONS: Sequence[Mapping[str, Any]] = ({}, {"numeric": (38, 9), "time_range": "full"})
"""The options with which both formats are compared."""


async def prove(database: Database, seed: int, count: int) -> Outcome:
    """Try ``count`` values of each sample, in each shape."""
    return await Proof(database, seed, count).run()
