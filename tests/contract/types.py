"""Two tables with columns of many types, for the golden messages.

TYPES has a column of every type, and no key. In KEY_TYPES, all columns belong to the key. Every opcode of the encoder
needs a column in one of the tables. ``tests/unit/test_contract.py`` checks this.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.avro.choices import Choice, ColumnChoice
from pgsluice.avro.schema import Field, TableFields, key_fields
from pgsluice.avro.types import TypeOptions
from pgsluice.pgoutput.messages import TupleData
from pgsluice.relation import CATALOG, Column, PgType, Relation


def numeric(precision: int, scale: int) -> int:
    """Return PostgreSQL's type modifier of numeric(precision, scale)."""
    return (precision << 16 | scale & 0x7FF) + 4


@dataclass(frozen=True)
class Sample:
    """A column with four values: an ordinary value, one near each limit, and one that its Avro type cannot hold."""

    name: str
    type: str
    texts: tuple[str, str, str]
    misfit: str | None = None
    typmod: int = -1
    namespace: str = CATALOG
    before: tuple[str, int] | None = None
    """The type that the column had in an earlier version of the table."""
    choice: str | None = None
    """The Avro type that a user has chosen for the column in the settings."""

    def column(self, *, is_key: bool = False) -> Column:
        return Column(self.name, PgType(0, self.namespace, self.type), self.typmod, is_key)

    def earlier(self) -> Column:
        kind, typmod = self.before or (self.type, self.typmod)
        return Column(self.name, PgType(0, self.namespace, kind), typmod, is_key=False)


A_UUID = "123e4567-e89b-12d3-a456-426614174000"
NO_UUID, ALL_UUID = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
A_MOMENT = "2024-02-29 12:34:56.789"

NUMBERS = (
    Sample("bool", "bool", ("t", "f", "t")),
    Sample("int2", "int2", ("7", "-32768", "32767")),
    Sample("int4", "int4", ("7", "-2147483648", "2147483647")),
    Sample("int8", "int8", ("7", "-9223372036854775808", "9223372036854775807")),
    Sample("oid", "oid", ("16385", "0", "4294967295")),
    Sample("xid", "xid", ("700", "3", "4294967295")),
    Sample("float4", "float4", ("1.1", "-3.4028235e+38", "1e-45")),
    Sample("float8", "float8", ("0.1", "-1.7976931348623157e+308", "5e-324")),
    Sample("special_float4", "float4", ("-0", "-Infinity", "NaN")),
    Sample("special_float8", "float8", ("-0", "-Infinity", "NaN")),
    Sample("decimal", "numeric", ("12.34", "-99999999.99", "99999999.99"), "NaN", numeric(10, 2)),
    Sample("decimal_38", "numeric", ("0." + "0" * 38, "-0." + "9" * 38, "0." + "9" * 38), "NaN", numeric(38, 38)),
    Sample("decimal_scale_below_0", "numeric", ("12300", "-9999900", "9999900"), "NaN", numeric(5, -2)),
    Sample("decimal_scale_above_precision", "numeric", ("0.00012", "-0.00099", "0.00099"), "NaN", numeric(2, 5)),
    Sample("numeric", "numeric", ("1.50", "-Infinity", "NaN")),
    Sample("numeric_39", "numeric", ("1.5", "-" + "9" * 38 + ".9", "NaN"), None, numeric(39, 1)),
    Sample("money", "money", ("12.34", "-92233720368547758.08", "92233720368547758.07")),
)

TIMES = (
    Sample("date", "date", ("2024-02-29", "0001-01-01", "9999-12-31"), "infinity"),
    Sample("time", "time", ("12:34:56.789", "00:00:00", "23:59:59.999999"), "24:00:00"),
    Sample(
        "timestamp",
        "timestamp",
        (A_MOMENT, "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"),
        "0044-03-15 00:00:00 BC",
    ),
    Sample(
        "timestamptz",
        "timestamptz",
        (f"{A_MOMENT}+00", "0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00"),
        "-infinity",
    ),
    Sample("timetz", "timetz", ("12:34:56.7+05:30", "00:00:00+15:59:59", "24:00:00-15:59:59")),
    Sample("interval", "interval", ("P1Y2M3DT4H5M6.7S", "P-178000000Y", "PT0S")),
)

TEXTS = (
    Sample("text", "text", ("Grüße ☃ 😀", "", "a\nb\t\"c\" \\ 'd'")),
    Sample("varchar", "varchar", ("abc", "", "ä" * 10), None, 14),
    Sample("bpchar", "bpchar", ("ab   ", "     ", "abcde"), None, 9),
    Sample("char", "char", ("x", "", "~")),
    Sample("name", "name", ("a name", "", "n" * 63)),
    Sample("citext", "citext", ("Größe", "", "X"), None, -1, "public"),
    Sample("json", "json", ('{"b": 1,  "a": [1, 2]}', "null", '""')),
    Sample("jsonb", "jsonb", ('{"a": [1, 2], "b": 1}', "null", '""')),
    Sample("jsonpath", "jsonpath", ('$."a"[*]', "$", "strict $")),
    Sample("xml", "xml", ("<a>ß</a>", "", "<b/>")),
    Sample("uuid", "uuid", (A_UUID, NO_UUID, ALL_UUID)),
    Sample("bytea", "bytea", (r"\x00ff", r"\x", r"\x" + "80" * 20)),
    Sample("bit", "bit", ("10110", "00000", "11111"), None, 5),
    Sample("varbit", "varbit", ("101", "", "1")),
    Sample("mood", "mood", ("so so", "sad", "happy"), None, -1, "public"),
    Sample("pair", "pair", ('(1,"a ""b""")', "(,)", '(-1,"")'), None, -1, "public"),
    Sample("ltree", "ltree", ("Top.Science", "", "a"), None, -1, "public"),
)

OTHERS = (
    Sample("inet", "inet", ("192.168.0.1/24", "::", "::1")),
    Sample("cidr", "cidr", ("10.0.0.0/8", "0.0.0.0/0", "::/0")),
    Sample("macaddr", "macaddr", ("08:00:2b:01:02:03", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff")),
    Sample("point", "point", ("(1.5,2)", "(-0,-Infinity)", "(NaN,1e+300)")),
    Sample("box", "box", ("(1,1),(0,0)", "(0,0),(0,0)", "(2,2),(1,1)")),
    Sample("int4range", "int4range", ("[1,5)", "empty", "(,)")),
    Sample("tsvector", "tsvector", ("'a':1 'b':2A", "", "'x'")),
    Sample("tsquery", "tsquery", ("'a' & !'b'", "", "'x'")),
    Sample("pg_lsn", "pg_lsn", ("16/B374D848", "0/0", "FFFFFFFF/FFFFFFFF")),
    Sample("hstore", "hstore", ('"a"=>"1", "b c"=>NULL', "", '"\\"=>"=>"x, y"'), None, -1, "public"),
    Sample("vector", "vector", ("[1,2.5,-3]", "[0]", "[3.4028235e+38]"), None, -1, "public"),
)

ARRAYS = (
    Sample("bools", "_bool", ("{t,NULL,f}", "{}", "{NULL}"), "[0:1]={t,f}"),
    Sample("int4s", "_int4", ("{1,NULL,-3}", "{}", "{2147483647}"), "{{1,2},{3,4}}"),
    Sample("texts", "_text", (r'{a,NULL,"NULL","","a b","{}","a,b","\"","\\"}', "{}", "{ä}"), "{{a},{b}}"),
    Sample("float8s", "_float8", ("{0.1,NULL}", "{}", "{1e+308}"), "[2:2]={1}"),
    Sample("decimals", "_numeric", ("{1.00,NULL,-0.50}", "{}", "{99999999.99}"), "{NaN}", numeric(10, 2)),
    Sample("numerics", "_numeric", ("{1.50,NULL,NaN}", "{}", "{-1}"), "{{1},{2}}"),
    Sample("dates", "_date", ("{2024-02-29,NULL}", "{}", "{9999-12-31}"), "{infinity}"),
    Sample("times", "_time", ("{12:34:56.789,NULL}", "{}", "{23:59:59.999999}"), "{24:00:00}"),
    Sample("timestamps", "_timestamp", (f'{{"{A_MOMENT}",NULL}}', "{}", '{"0001-01-01 00:00:00"}'), "{infinity}"),
    Sample(
        "timestamptzs",
        "_timestamptz",
        (f'{{"{A_MOMENT}+00",NULL}}', "{}", '{"0001-01-01 00:00:00+00"}'),
        '{"0044-03-15 00:00:00+00 BC"}',
    ),
    Sample("uuids", "_uuid", (f"{{{A_UUID},NULL}}", "{}", f"{{{NO_UUID}}}"), f"{{{{{A_UUID}}}}}"),
    Sample("byteas", "_bytea", (r'{"\\x00ff",NULL}', "{}", r'{"\\x"}'), r'{{"\\x00"}}'),
    Sample("jsonbs", "_jsonb", (r'{"{\"a\": 1}",NULL}', "{}", "{null}"), "{{1}}"),
    Sample("boxes", "_box", ("{(1,1),(0,0);(2,2),(1,1)}", "{}", "{(0,0),(0,0)}"), "{{(0,0),(0,0)}}"),
)

HISTORY = (
    Sample("widened_long", "int4", ("7", "-2147483648", "2147483647"), before=("int8", -1)),
    Sample("widened_double", "int4", ("7", "-2147483648", "2147483647"), before=("float8", -1)),
    Sample("widened_single", "float4", ("1.1", "-3.4028235e+38", "1e-45"), before=("float8", -1)),
    Sample(
        "widened_decimal", "numeric", ("1.25", "-9.99", "9.99"), "NaN", numeric(3, 2), before=("numeric", numeric(9, 2))
    ),
    Sample("changed", "int4", ("7", "-2147483648", "2147483647"), before=("text", -1)),
    Sample("Größe in cm", "int4", ("7", "-2147483648", "2147483647")),
    Sample("INT4", "int4", ("7", "-2147483648", "2147483647")),
)

CHOSEN = (
    Sample(
        "chosen_decimal",
        "numeric",
        ("1.5", "-" + "9" * 29 + "." + "9" * 9, "0.000000001"),
        "0.0000000001",
        choice="decimal(38,9)",
    ),
    Sample("chosen_double", "numeric", ("0.1", "-Infinity", "NaN"), "0.10000000000000001", choice="double"),
    Sample(
        "chosen_long",
        "numeric",
        ("7", "-9223372036854775808", "9223372036854775807"),
        "9223372036854775808",
        choice="long",
    ),
    Sample("chosen_time", "time", ("12:34:56.789", "00:00:00", "23:59:59.999"), "23:59:59.9999", choice="time-millis"),
    Sample(
        "chosen_timestamp",
        "timestamp",
        (A_MOMENT, "0001-01-01 00:00:00", "9999-12-31 23:59:59.999"),
        "2024-02-29 12:34:56.7891",
        choice="local-timestamp-millis",
    ),
    Sample(
        "chosen_timestamptz",
        "timestamptz",
        (f"{A_MOMENT}+00", "0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999+00"),
        "infinity",
        choice="timestamp-millis",
    ),
    Sample("chosen_interval", "interval", ("P1DT2H3M4.5S", "PT-0.000001S", "PT0S"), "P1M", choice="interval-micros"),
    Sample("chosen_text", "_int4", ("{1,NULL}", "{{1,2},{3,4}}", "{}"), choice="string"),
)

SAMPLES = (*NUMBERS, *TIMES, *TEXTS, *OTHERS, *ARRAYS, *HISTORY, *CHOSEN)

OPTIONS = TypeOptions(
    choices=tuple(ColumnChoice(sample.name, Choice.parse(sample.choice)) for sample in CHOSEN if sample.choice)
)

KEYS = (
    Sample("bool", "bool", ("t", "f", "t")),
    Sample("int4", "int4", ("7", "-2147483648", "2147483647")),
    Sample("int8", "int8", ("7", "-9223372036854775808", "9223372036854775807")),
    Sample("float8", "float8", ("0.1", "-Infinity", "NaN")),
    Sample("decimal", "numeric", ("12.34", "-99999999.99", "99999999.99"), typmod=numeric(10, 2)),
    Sample("numeric", "numeric", ("1.50", "-Infinity", "NaN")),
    Sample("text", "text", ("Grüße", "", " ")),
    Sample("uuid", "uuid", (A_UUID, NO_UUID, ALL_UUID)),
    Sample("bytea", "bytea", (r"\x00ff", r"\x", r"\x80")),
    Sample("time", "time", ("12:34:56.789", "00:00:00", "23:59:59.999999")),
    Sample("date", "date", ("2024-02-29", "-infinity", "infinity")),
    Sample("timestamp", "timestamp", (A_MOMENT, "-infinity", "infinity")),
    Sample("timestamptz", "timestamptz", (f"{A_MOMENT}+00", "-infinity", "infinity")),
    Sample("mood", "mood", ("so so", "sad", "happy"), None, -1, "public"),
    Sample("int4s", "_int4", ("{1,NULL,-3}", "{}", "{2147483647}")),
    Sample("widened", "int4", ("7", "-2147483648", "2147483647"), before=("int8", -1)),
    Sample("Größe in cm", "int4", ("7", "-2147483648", "2147483647")),
)


@dataclass(frozen=True)
class SampleTable:
    """A table with one column per sample. Its key has all columns if ``keyed``. Otherwise, it has no key."""

    name: str
    samples: Sequence[Sample]
    keyed: bool

    @property
    def relation(self) -> Relation:
        return self._relation(tuple(sample.column(is_key=self.keyed) for sample in self.samples))

    def fields(self) -> tuple[Field, ...]:
        """Return the row's fields in a table whose columns formerly had the types of :meth:`Sample.earlier`."""
        history = TableFields(OPTIONS)
        history.assign(self._relation(tuple(sample.earlier() for sample in self.samples)))
        return history.assign(self.relation)

    def key_fields(self) -> tuple[Field, ...]:
        names = [sample.name for sample in self.samples] if self.keyed else []
        return key_fields(self.relation, self.fields(), names, OPTIONS)

    def row(self, number: int) -> TupleData:
        """Return the row with value ``number`` (0, 1 or 2) of each sample."""
        return [sample.texts[number].encode() for sample in self.samples]

    def misfits(self) -> TupleData:
        """Return the row of values that Avro cannot hold. Columns without such a value are null."""
        return [None if sample.misfit is None else sample.misfit.encode() for sample in self.samples]

    def _relation(self, columns: tuple[Column, ...]) -> Relation:
        return Relation(7, "public", self.name, "d", columns)


TYPES = SampleTable("types", SAMPLES, keyed=False)
KEY_TYPES = SampleTable("keys", KEYS, keyed=True)
