"""Scenarios with every type in docs/types.md. The most difficult values arrive unchanged, or in ``raw``."""

from collections.abc import Mapping, Sequence
from itertools import chain

from tests.support.scenario import Found, Scenario

Values = Mapping[str, Sequence[str]]
"""The literals of each type, without quotes. Every scenario also adds null."""

NUMBERS = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767", "0"],
    "int": ["-2147483648", "2147483647", "-1"],
    "bigint": ["-9223372036854775808", "9223372036854775807", "1"],
    "oid": ["0", "4294967295"],
    "xid": ["3", "4294967295"],
    "real": ["1.1", "3.4028235e38", "1e-45", "-0", "NaN", "Infinity", "-Infinity", "16777217", "7.038531e-26"],
    "float": [
        "0.1",
        "1.7976931348623157e308",
        "5e-324",
        "-0",
        "NaN",
        "Infinity",
        "-Infinity",
        "1e15",
        "123456789012345678",
    ],
    "numeric": ["0", "-1.50", "NaN", "12345678901234567890123456789012345678901234567890.123456789", "1e-300", "1e300"],
    "numeric(10,2)": ["0", "-99999999.99", "99999999.99", "0.01", "-0.05", "NaN"],
    "numeric(38,10)": ["9999999999999999999999999999.9999999999", "-0.0000000001"],
    "numeric(39,1)": ["99999999999999999999999999999999999999.9", "-0.1", "NaN"],
    "numeric(5)": ["-99999", "1"],
    "money": ["12.34", "-92233720368547758.08"],
}

TIMES = {
    "date": [
        "2020-02-29",
        "0001-01-01",
        "9999-12-31",
        "1969-12-31",
        "infinity",
        "-infinity",
        "10000-01-01",
        "0001-12-31 BC",
        "4714-11-24 BC",
        "5874897-12-31",
    ],
    "time": ["00:00:00", "23:59:59.999999", "12:00:00.1", "24:00:00"],
    "time(0)": ["12:34:56.7"],
    "timetz": ["12:00:00+05:30", "00:00:00.000001-15:59", "24:00:00+00"],
    "timestamp": [
        "2020-02-29 12:34:56.789",
        "0001-01-01 00:00:00",
        "9999-12-31 23:59:59.999999",
        "1969-12-31 23:59:59.999999",
        "infinity",
        "-infinity",
        "0001-12-31 23:59:59.999999 BC",
        "4714-11-24 00:00:00 BC",
        "294276-12-31 23:59:59.999999",
        "10000-01-01 00:00:00",
    ],
    "timestamptz": [
        "2020-02-29 12:34:56.789+02",
        "0001-01-01 00:00:00+00",
        "9999-12-31 23:59:59.999999+00",
        "1883-11-18 12:03:57.000001-04:56:02",
        "infinity",
        "-infinity",
        "4714-11-24 00:00:00+00 BC",
        "294276-12-31 23:59:59.999999+00",
    ],
    "timestamp(3)": ["2020-01-01 00:00:00.0005"],
    "interval": ["1 year 2 mons -3 days 04:05:06.789", "0", "-178000000 years", "-00:00:00.000001", "1 mon -1 day"],
}

TEXTS = {
    "text": ["", "NULL", "\t\n\r\\ \x01\x7f", "ü☃😀", "it''s \"quoted\"", "x" * 3000],
    "varchar(10)": ["a", "ten chars."],
    "char(5)": ["ab", "", "ü"],
    '"char"': ["x", ""],
    "name": ["a name", ""],
    "bytea": ["", "\\x00", "\\x00ff5c27", "\\x" + "ab" * 3000],
    "uuid": ["00000000-0000-0000-0000-000000000000", "FFFFFFFF-ffff-ffff-ffff-ffffffffffff"],
    "json": ['{"a" : 1, "a": [null, "\\u00fc"]}', "null", '"text"', "1e5"],
    "jsonb": ['{"b": 1.50, "a": {"c": []}}', "null", "1e5"],
    "inet": ["10.0.0.1/24", "::1", "10.0.0.1"],
    "cidr": ["10.0.0.0/8", "2001:db8::/32"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "bit(3)": ["101"],
    "varbit": ["", "0101010101"],
    "tsvector": ["a fat cat", "''quoted word'':3A"],
    "tsquery": ["fat & (rat | ''cat'')"],
    "pg_lsn": ["16/B374D848", "0/0"],
    "txid_snapshot": ["10:20:10,14"],
    "tid": ["(0,1)"],
}

NAMED = {"regclass": ["pg_class"], "regtype": ["int4", "12345"], "regrole[]": ["{postgres}"]}

SHAPES = {
    "point": ["(1,2)", "(0.1,-1e300)"],
    "line": ["{1,2,3}"],
    "lseg": ["[(1,2),(3,4)]"],
    "box": ["(1,2),(3,4)"],
    "path": ["[(1,2),(3,4)]", "((1,2),(3,4))"],
    "polygon": ["((1,2),(3,4),(5,6))"],
    "circle": ["<(1,2),3>"],
    "int4range": ["[1,10)", "empty", "(,)", "[5,]"],
    "int8range": ["[1,10)"],
    "numrange": ["(1.50,2]"],
    "daterange": ["[2020-01-01,infinity)"],
    "tsrange": ["[2020-01-01 00:00,2020-01-02 00:00]"],
    "tstzrange": ["[2020-01-01 00:00+00,)"],
}

ARRAYS = {
    "int[]": ["{1,NULL,-3}", "{}", "{{1,2},{3,4}}", "[0:1]={1,2}", "{NULL}"],
    "text[]": ['{a,"NULL",NULL,"","b c","d\\\\e","f\\"g","h,i","{j}",ü}', "{}"],
    "boolean[]": ["{t,f,NULL}"],
    "bigint[]": ["{9223372036854775807,-9223372036854775808}"],
    "real[]": ["{1.1,NaN,Infinity}"],
    "float[]": ["{0.1,1e300,-Infinity,NULL}"],
    "numeric[]": ["{1.50,NaN}"],
    "numeric(10,2)[]": ["{1.5,-2}", "{NaN}"],
    "date[]": ["{2020-01-01,NULL}", "{infinity}"],
    "timestamp[]": ["{2020-01-01 12:00:00}"],
    "timestamptz[]": ["{2020-01-01 12:00:00+02,NULL}"],
    "time[]": ["{12:00:00,24:00:00}", "{12:00:00}"],
    "bytea[]": ['{"\\\\x00ff",NULL}'],
    "uuid[]": ["{00000000-0000-0000-0000-000000000000}"],
    "json[]": ['{"{\\"a\\": [1, 2]}"}'],
    "point[]": ['{"(1,2)"}'],
    "box[]": ["{(3,4),(1,2);(7,8),(5,6)}"],
    "char(3)[]": ["{a,bc}"],
    "interval[]": ["{1 day,NULL}"],
    "int4range[]": ['{"[1,2)",empty}'],
}

MADE = {
    "mood": ["sad", "not so, happy"],
    "mood[]": ['{sad,"not so, happy",NULL}', "{}"],
    "price": ["1.50", "-99999999.99"],
    "pair": ['(1,"a ""b""")', "(,)"],
    "pair[]": ['{"(1,a)"}'],
    "span": ["[1.5,2.5)"],
    "words": ["{a,NULL}"],
    "citext[]": ["{Mixed,NULL}"],
    "citext": ["Mixed Case"],
    "hstore": ['a=>1, "b c"=>NULL, "d\\"e"=>"f\\\\g"', ""],
    "hstore[]": ['{"a=>1"}'],
    "ltree": ["top.middle.bottom"],
}

MAKE = """
    CREATE EXTENSION citext SCHEMA public;
    CREATE EXTENSION hstore SCHEMA public;
    CREATE EXTENSION ltree SCHEMA public;
    CREATE TYPE mood AS ENUM ('sad', 'not so, happy');
    CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE < 1000000000);
    CREATE TYPE pair AS (a int, b text);
    CREATE TYPE span AS RANGE (subtype = float8);
    CREATE DOMAIN words AS text[];
"""

KEYS = {
    "boolean": ["true", "false"],
    "smallint": ["1", "2"],
    "bigint": ["-1", "9223372036854775807"],
    "real": ["1.1", "-Infinity"],
    "numeric": ["NaN", "1.50"],
    "numeric(10,2)": ["1.5", "-2"],
    "date": ["infinity", "-infinity", "2020-01-01"],
    "timestamp": ["2020-01-01 00:00:00", "infinity"],
    "timestamptz": ["-infinity", "2020-01-01 00:00:00+00"],
    "time": ["12:00:00"],
    "interval": ["1 day"],
    "text": ["", "ü"],
    "char(3)": ["a"],
    "uuid": ["00000000-0000-0000-0000-000000000000"],
    "bytea": ["\\x00", "\\xff"],
    "inet": ["10.0.0.1"],
    "mood": ["sad"],
    "int[]": ["{1,NULL}", "{}"],
}


NAMED_SCENARIO = "types whose text is a name of the catalog"
"""The scenario of types whose values are names in text format, but numbers in binary format."""


def _scenario(name: str, types: Values, *, make: str = "", since: int = 10) -> Scenario:
    """Return a scenario that writes rows with all values, and updates and deletes them.

    With replica identity full, the old rows also contain all values.
    """
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(types))
    count = max(map(len, types.values()))
    rows = ", ".join(_row(number, types, null=number == count) for number in range(count + 1))
    return Scenario(
        name,
        "Every value arrives unchanged.",
        since=since,
        lacking=f"its types came with PostgreSQL {since}",
        setup=f"{make}CREATE TABLE t (id int PRIMARY KEY, {columns}); ALTER TABLE t REPLICA IDENTITY FULL",
        work=f"""
            INSERT INTO t VALUES {rows};
            UPDATE t SET id = id + 100 WHERE id % 2 = 0;
            DELETE FROM t WHERE id % 3 = 1;
            UPDATE t SET c0 = NULL;
        """,
    )


def _row(number: int, types: Values, *, null: bool) -> str:
    literals = ("NULL" if null else f"'{values[number % len(values)]}'::{kind}" for kind, values in types.items())
    return f"({', '.join(chain([str(number)], literals))})"


def _keys() -> Scenario:
    """Return a scenario whose primary key has a column of every type that is allowed in a primary key."""
    columns = [f"c{number}" for number in range(len(KEYS))]
    types = ", ".join(f"{name} {kind}" for name, kind in zip(columns, KEYS, strict=True))
    rows = ", ".join(_row(number, KEYS, null=False) for number in range(6))
    return Scenario(
        "types of keys",
        "In keys, an infinite date or timestamp is the least or greatest integer. A numeric without precision is text.",
        setup=f"""
            CREATE TYPE mood AS ENUM ('sad', 'happy');
            CREATE TABLE t (id int, {types}, PRIMARY KEY (id, {", ".join(columns)}))
        """,
        work=f"""
            INSERT INTO t VALUES {rows};
            UPDATE t SET c0 = NOT c0 WHERE id < 3;
            UPDATE t SET id = id;
            DELETE FROM t WHERE id > 3;
        """,
        check=_infinite_keys,
    )


def _infinite_keys(found: Found) -> None:
    keys = {event.key["id"]: event.key for event in found.events() if event.key}
    names = {kind: f"c{number}" for number, kind in enumerate(KEYS)}
    assert keys[0][names["date"]] == 2**31 - 1
    assert keys[1][names["date"]] == -(2**31)
    assert keys[1][names["timestamp"]] == 2**63 - 1
    assert keys[0][names["timestamptz"]] == -(2**63)


CHOSEN = {
    "amount": ("numeric", "decimal(20,4)", ["1.5", "-99999999999999.9999", "1.23456", "NaN"]),
    "ratio": ("numeric", "double", ["0.375", "-2.5", "123456789.125", "0.12345678901234567890"]),
    "number": ("numeric(20,0)", "long", ["7", "-99999999999999999999", "9223372036854775807", "0"]),
    "small": ("int", "long", ["7", "-2147483648", "2147483647", "0"]),
    "clock": ("time", "time-millis", ["12:34:56.789", "24:00:00", "00:00:00.0001", "00:00:00"]),
    "created_at": (
        "timestamptz",
        "timestamp-millis",
        ["2020-01-01 00:00:00.001+00", "infinity", "epoch", "0044-03-15 BC"],
    ),
    "local_at": (
        "timestamp",
        "local-timestamp-millis",
        ["2020-01-01 00:00:00.001", "infinity", "epoch", "1999-01-01 00:00:00.0001"],
    ),
    "elapsed": ("interval", "interval-micros", ["1 day 02:03:04.000005", "-1 us", "1 month", "0"]),
    "grid": ("int[]", "string", ["{{1,2},{3,4}}", "{}", "[0:0]={1}", "{1,NULL}"]),
    "marks": ("numeric[]", "decimal(9,1)", ["{1.5,NULL}", "{}", "{1.55}", "{NaN}"]),
}
"""The type of each column, the chosen Avro type, and values. Values that do not fit are delivered in ``raw``."""


def _chosen() -> Scenario:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in CHOSEN.items())
    values = [", ".join(f"'{literals[number]}'" for _, _, literals in CHOSEN.values()) for number in range(4)]
    rows = ", ".join(f"({number}, {row})" for number, row in enumerate(values))
    fits = {"amount": (0, 1), "ratio": (0, 1, 2), "elapsed": (0, 1, 3), "marks": (0, 1)}

    def shown(name: str, value: str) -> str:
        numbers = ", ".join(map(str, fits[name]))
        return f"CASE WHEN id IN ({numbers}) THEN ({value})::text ELSE {name}::text END AS {name}"

    query = f"""
        SELECT id, {shown("amount", "amount::numeric(20,4)")}, {shown("ratio", "ratio::float8")}, number, small, clock,
            created_at, local_at, {shown("elapsed", "(extract(epoch FROM elapsed) * 1000000)::bigint")}, grid,
            {shown("marks", "marks::numeric(9,1)[]")}
        FROM "types that were chosen".t
    """
    types = {name: choice for name, (_, choice, _) in CHOSEN.items() if not name.endswith("_at")}
    return Scenario(
        "types that were chosen",
        "Each value arrives with the type that tables.rules selects for its column, or as text in raw.",
        setup=f"CREATE TABLE t (id int PRIMARY KEY, {columns})",
        rules=[{"match": "t", "types": {**types, "created_at": "timestamp-millis", "*_at": "local-timestamp-millis"}}],
        work=f"INSERT INTO t VALUES {rows}; UPDATE t SET small = small",
        contents={"t": query},
        ops={"t": "ccccuuuu"},
        check=_marked,
    )


def _marked(found: Found) -> None:
    assert [sorted(event["raw"]) for event in found.events()[:4]] == [
        [],
        ["clock", "created_at", "local_at", "number"],
        ["amount", "clock", "elapsed", "marks"],
        ["amount", "created_at", "local_at", "marks", "ratio"],
    ]


SCENARIOS = [
    _scenario("numbers", NUMBERS),
    _scenario("times", TIMES),
    _scenario("texts", TEXTS),
    _scenario(NAMED_SCENARIO, NAMED),
    _scenario("shapes and ranges", SHAPES),
    _scenario("arrays", ARRAYS),
    _scenario("types of users and extensions", MADE, make=MAKE),
    _scenario(
        "arrays of domains", {"price[]": ["{1.50,NULL}"]}, make="CREATE DOMAIN price AS numeric(10,2);\n", since=11
    ),
    _scenario("jsonpath", {"jsonpath": ["$.a[*] ? (@ > 1)"]}, since=12),
    _scenario("types of 13", {"xid8": ["18446744073709551615"], "pg_snapshot": ["10:20:10,14"]}, since=13),
    _scenario(
        "multiranges and infinite numbers",
        {
            "int4multirange": ["{[1,3),[5,7)}", "{}"],
            "tstzmultirange": ["{[2020-01-01 00:00+00,)}"],
            "numeric": ["Infinity", "-Infinity"],
            "int4multirange[]": ['{"{[1,2)}"}'],
        },
        since=14,
    ),
    _scenario(
        "numbers with odd scales",
        {"numeric(5,-2)": ["1234567", "-50"], "numeric(3,5)": ["0.00123", "-0.00999"], "numeric(2,-40)": ["1e41"]},
        since=15,
    ),
    _chosen(),
    _scenario("infinite intervals", {"interval": ["infinity", "-infinity"]}, since=17),
    _keys(),
]
