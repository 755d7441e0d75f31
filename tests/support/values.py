"""Values of every type, at random and those that are hard, as literals for queries.

The same ones each time: the generator's seed is fixed.
"""

import random
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.integration.scenarios import types


class Value(NamedTuple):
    """Values of a type: literals, and what is made of each before it is cast. ``since``: a version has it."""

    declaration: str
    literals: Sequence[str]
    expression: str = "v"
    since: int = 10


# --- values

RANDOM = random.Random(20260)
MANY = 500


def whole(bits: int) -> list[str]:
    return [str(RANDOM.getrandbits(bits) - 2 ** (bits - 1) >> RANDOM.randrange(bits)) for _ in range(MANY)]


def float8s() -> list[str]:
    """Any, those with few digits, powers of two, and some that are the middle of two."""
    bits = [struct.unpack(">d", RANDOM.randbytes(8))[0] for _ in range(MANY)]
    few = [f"{RANDOM.randrange(10 ** RANDOM.randrange(1, 17))}e{RANDOM.randrange(-30, 40)}" for _ in range(MANY)]
    powers = [2.0**exponent for exponent in range(-1074, 1024, 7)]
    wide = [float(RANDOM.randrange(2**52, 2**60)) * 10.0 ** RANDOM.randrange(25) for _ in range(MANY)]
    return [*(repr(number) for number in (*bits, *powers, *wide)), *few, "1e23", "-0"]


def float4s() -> list[str]:
    bits = [RANDOM.getrandbits(32) for _ in range(MANY)]
    bits += [exponent << 23 | mantissa for exponent in range(0, 255, 5) for mantissa in (0, 1, 0x7FFFFF)]
    numbers = [repr(struct.unpack(">f", struct.pack(">I", number))[0]) for number in bits]
    few = [f"{RANDOM.randrange(10 ** RANDOM.randrange(1, 9))}e{RANDOM.randrange(-30, 28)}" for _ in range(MANY)]
    return [*numbers, *few, "-0", "16777217"]


def numerics(digits: int, scale: int) -> list[str]:
    def one() -> str:
        whole = RANDOM.randrange(10 ** RANDOM.randrange(1, digits + 1))
        fraction = RANDOM.randrange(10**scale) // 10 ** RANDOM.randrange(scale + 1)
        return f"{RANDOM.choice(['', '-'])}{whole}.{fraction:0{RANDOM.randrange(1, scale + 1)}}"

    return [one() for _ in range(MANY)]


def within(lowest: int, highest: int) -> list[str]:
    return [str(RANDOM.randrange(lowest, highest) >> RANDOM.choice([0, 0, 9, 20])) for _ in range(MANY)]


def intervals() -> list[str]:
    def one() -> str:
        months, days = (RANDOM.choice([0, RANDOM.randrange(-99, 99)]) for _ in range(2))
        seconds = f"{RANDOM.randrange(60):02}.{RANDOM.choice([0, RANDOM.randrange(10**6)]):06}"
        return f"{months} mons {days} days {RANDOM.choice('+-')}{RANDOM.choice([0, 7, 10**6])}:00:{seconds}"

    return [one() for _ in range(MANY)]


def zones() -> list[str]:
    def one() -> str:
        hours, minutes, seconds = RANDOM.randrange(16), RANDOM.choice([0, 30, 59]), RANDOM.choice([0, 0, 7])
        return f"12:34:56.{RANDOM.randrange(10**6):06}{RANDOM.choice('+-')}{hours:02}:{minutes:02}:{seconds:02}"

    return [one() for _ in range(MANY)]


LETTERS = "abNUL \t\n\r\v\f\\\"'{}()[],;:&|!<>=-*üß☃😀\x01\x7f"


def text(longest: int = 8) -> str:
    return "".join(RANDOM.choices(LETTERS, k=RANDOM.randrange(longest + 1)))


def texts() -> list[str]:
    return [*(text() for _ in range(MANY)), "NULL", "null", ""]


def addresses() -> list[str]:
    def ipv4() -> str:
        return ".".join(str(RANDOM.choice([0, 10, 255])) for _ in range(4)) + f"/{RANDOM.randrange(33)}"

    def ipv6() -> str:
        words = [RANDOM.choice(["0", "0", "0", "1", "ffff", "abc"]) for _ in range(8)]
        return ":".join(words) + RANDOM.choice([f"/{RANDOM.randrange(129)}", ""])

    return [*(ipv4() for _ in range(MANY)), *(ipv6() for _ in range(MANY)), "::ffff:1.2.3.4", "::", "::1.2.3.4"]


def points(count: int) -> str:
    return ",".join(f"({RANDOM.randrange(-99, 99) / 8},{RANDOM.choice([1e300, -0.1, 0, 1e-9])})" for _ in range(count))


def quoted(word: str) -> str:
    return "'" + word.replace("\\", r"\\").replace("'", "''") + "'"


def tsvectors() -> list[str]:
    def lexeme() -> str:
        marks = RANDOM.choices([":1", ":2A", ":3B,16383C", ""], k=1)
        return quoted(text() + "x") + marks[0]

    return [" ".join(lexeme() for _ in range(RANDOM.randrange(5))) for _ in range(MANY)]


def tsquery(depth: int) -> str:
    kind = RANDOM.randrange(6) if depth else 0
    if kind <= 1:
        return quoted(text() + "x") + RANDOM.choice(["", "", ":*", ":A", ":*BCD"])
    if kind == 2:
        return f"!({tsquery(depth - 1)})"
    return f"({tsquery(depth - 1)}) {RANDOM.choice(['&', '|', '<->', '<3>', '<0>'])} ({tsquery(depth - 1)})"


def ranges(bounds: Sequence[str]) -> list[str]:
    """Return ranges between some of ``bounds``, which are in order."""

    def one() -> str:
        lower, upper = sorted(RANDOM.sample(range(len(bounds)), 2))
        sides = RANDOM.choice(["", quoted_item(bounds[lower])]), RANDOM.choice(["", quoted_item(bounds[upper])])
        return f"{RANDOM.choice('[(')}{sides[0]},{sides[1]}{RANDOM.choice('])')}"

    return [*(one() for _ in range(MANY)), "empty"]


def quoted_item(item: str) -> str:
    return '"' + item.replace("\\", r"\\").replace('"', r"\"") + '"'


def lists(begin: str, end: str, part: Callable[[], str], exactly: int | None = None) -> list[str]:
    def one() -> str:
        count = RANDOM.randrange(4) if exactly is None else exactly
        return begin + ",".join(part() for _ in range(count)) + end

    return [one() for _ in range(MANY)]


def hstores() -> list[str]:
    def one() -> str:
        return f"{quoted_item(text())}=>{RANDOM.choice(['NULL', quoted_item(text())])}"

    return lists("", "", one)


def composite(*fields: str | None) -> str:
    return "(" + ",".join("" if field is None else quoted_item(field) for field in fields) + ")"


NESTS = [
    composite(composite(text(), RANDOM.choice([None, text()])), '{sad,"not so, happy",NULL}', "1.5", "[1,5)")
    for _ in range(MANY)
]


def shapes() -> list[str]:
    """Return arrays with odd bounds and more than one dimension."""

    def one() -> str:
        rows, columns, lower = RANDOM.randrange(1, 4), RANDOM.randrange(1, 4), RANDOM.randrange(-2, 3)
        row = "{" + ",".join(RANDOM.choice(["1", "NULL", "-7"]) for _ in range(columns)) + "}"
        return f"[{lower}:{lower + rows - 1}][1:{columns}]={{{','.join([row] * rows)}}}"

    return [*(one() for _ in range(MANY)), "[0:1]={1,2}", "[2:2]={1}", "{{{1}}}", "{}"]


SCALARS = [
    Value("bool", ["t", "f"]),
    Value("int2", whole(16)),
    Value("int4", whole(32)),
    Value("int8", whole(64)),
    *(Value(name, ["0", "3", "4294967295"]) for name in ("oid", "xid", "cid")),
    Value("xid8", ["0", "18446744073709551615"], since=13),
    Value("money", [*whole(63), "-0.05"], "(v::numeric / 100)"),
    Value("numeric", [*numerics(40, 40), *numerics(300, 1), "0", "0.000", "NaN", "1e-300", "1e300"]),
    Value("numeric", ["Infinity", "-Infinity"], since=14),
    Value("numeric(10,2)", [*numerics(8, 2), "NaN", "0"]),
    Value("numeric(38,10)", numerics(28, 10)),
    Value("numeric(5,-2)", [*whole(20), "NaN"], since=15),
    Value("numeric(3,5)", ["0.00123", "-0.00999", "0"], since=15),
    *(Value(name, texts()) for name in ("text", "varchar(5)", "bpchar(6)", "name", "refcursor")),
    Value('"char"', ["x", "", "\\"]),
    Value("bytea", texts(), "convert_to(v, 'UTF8')"),
    Value("uuid", [RANDOM.randbytes(16).hex() for _ in range(MANY)]),
    Value("json", types.TEXTS["json"]),
    Value("jsonb", types.TEXTS["jsonb"]),
    Value("jsonpath", ["$.a[*] ? (@ > 1)", 'strict $."ü"'], since=12),
    Value("xml", ["<a>ß</a>", '<?xml version="1.0" encoding="UTF-8"?><a/>', '<?xml version="1.1"?>\n<a/>', "a", ""]),
    Value("inet", addresses()),
    Value("cidr", addresses(), "network(v::inet)"),
    Value("macaddr", ["08:00:2b:01:02:03"]),
    Value("macaddr8", ["08:00:2b:01:02:03:04:05"]),
    Value("bit(9)", ["101010101", "000000000"]),
    Value("varbit", ["1" * length for length in range(40)]),
    Value("pg_lsn", ["16/B374D848", "0/0", "FFFFFFFF/FFFFFFFF"]),
    Value("tid", ["(0,1)", "(4294967295,65535)"]),
    Value("txid_snapshot", ["10:20:10,14", "5:5:"]),
    Value("pg_snapshot", ["10:20:10,14", "5:5:"], since=13),
    Value("tsvector", tsvectors()),
    Value("tsquery", [*(tsquery(4) for _ in range(MANY)), ""]),
    Value("int2vector", ["1 -2 3", ""]),
    Value("oidvector", ["1 2 4294967295", ""]),
    Value("int4range", ranges([str(number) for number in range(-5, 5)])),
    Value("int8range", ranges([str(number) for number in range(-5, 5)])),
    Value("numrange", ranges(["-1.50", "0", "1.5", "Infinity"]), since=14),
    Value("daterange", ranges(["-infinity", "2000-01-01", "2020-02-29", "infinity"])),
    Value("tsrange", ranges(["-infinity", "2000-01-01 00:00", "2020-02-29 12:34:56.7"])),
    Value("tstzrange", ranges(["2000-01-01 00:00+00", "2020-02-29 12:34:56.7+02", "infinity"])),
    Value("int4multirange", lists("{", "}", lambda: RANDOM.choice(["[1,3)", "(,0]", "[7,)", "empty"])), since=14),
    Value("tstzmultirange", ["{}", "{[2000-01-01 00:00+00,),(,1999-01-01 00:00+00)}"], since=14),
    *(Value(name, ["{}"]) for name in ("int4[]", "text[]")),
    Value("int4[]", shapes()),
    Value("text[]", lists("{", "}", lambda: RANDOM.choice(["NULL", quoted_item(text())]))),
]

MICROSECONDS = "v::bigint * '1 us'::interval"
MOMENTS = within(-211_813_488_000_000_000, 9_000_000_000_000_000_000)

TIMES = [
    Value("date", within(-2_451_507, 2_145_031_949), "'2000-01-01'::date + v::int"),
    Value("date", types.TIMES["date"]),
    Value("time", within(0, 86_400_000_000), f"'00:00'::time + {MICROSECONDS}"),
    Value("time", types.TIMES["time"]),
    Value("timetz", [*zones(), *types.TIMES["timetz"]]),
    Value("timestamp", types.TIMES["timestamp"]),
    Value("timestamptz", types.TIMES["timestamptz"]),
    Value("timestamp", MOMENTS, f"'2000-01-01'::timestamp + {MICROSECONDS}"),
    Value("timestamptz", MOMENTS, f"'2000-01-01 00:00+00'::timestamptz + {MICROSECONDS}"),
    Value("interval", [*intervals(), *types.TIMES["interval"]]),
    Value("interval", ["infinity", "-infinity"], since=17),
]

FLOATS = [
    Value("float8", [*float8s(), "NaN", "Infinity", "-Infinity", "0"]),
    Value("float4", [*float4s(), "NaN", "Infinity", "-Infinity", "0"]),
    Value("point", [points(1) for _ in range(MANY)]),
    Value("lseg", [f"[{points(2)}]" for _ in range(MANY)]),
    Value("box", [points(2) for _ in range(MANY)]),
    Value("line", ["{1,2,3}", "{-0.1,1e300,0}"]),
    Value("circle", [f"<{points(1)},{RANDOM.randrange(9)}>" for _ in range(MANY)]),
    Value("path", [RANDOM.choice(["[%s]", "(%s)"]) % points(RANDOM.randrange(1, 5)) for _ in range(MANY)]),
    Value("polygon", [f"({points(RANDOM.randrange(1, 5))})" for _ in range(MANY)]),
    Value("float8[]", ["{0.1,NaN,-Infinity,NULL}", "{{1e300}}"]),
    Value("public.cube", ["(1, 2),(3, 4)", "(1.5)", "(0.1, 1e300)", "()"]),
]

USERS = [
    Value("public.mood", ["sad", "not so, happy"]),
    Value("public.mood[]", ['{sad,"not so, happy",NULL}', "{}", "{{sad}}"]),
    Value("public.pair", lists("(", ")", lambda: RANDOM.choice(["", quoted_item(text())]), exactly=2)),
    Value("public.nest", [*NESTS, "(,,,)"]),
    Value("public.pair[]", ['{"(1,a)",NULL,"(\\"\\",\\"x y\\")"}']),
    Value("public.words", ranges(sorted({text() for _ in range(40)}, key=lambda word: word.encode()))),
    Value("public.words_multirange", ['{["a b","c,d")}']),
    Value("public.price", ["1.50", "-99999999.99"]),
    Value("public.price[]", ["{1.50,NULL}"]),
    Value("public.prices", ["{1.50,NULL}"]),
    Value("public.citext", texts()),
    Value("public.hstore", hstores()),
    Value("public.hstore[]", ['{"a=>1",NULL}']),
    Value("public.ltree", ["top.middle.bottom", ""]),
    Value("public.lquery", ["*.a|b@*{1,2}", "a"]),
    Value("public.ltxtquery", ["a & !b"]),
]

SETUP = """
CREATE EXTENSION hstore SCHEMA public;
CREATE EXTENSION citext SCHEMA public;
CREATE EXTENSION ltree SCHEMA public;
CREATE EXTENSION cube SCHEMA public;
CREATE TYPE public.mood AS ENUM ('sad', 'not so, happy');
CREATE TYPE public.pair AS (a text, b text);
CREATE TYPE public.words AS RANGE (subtype = text, collation = "C");
CREATE DOMAIN public.price AS numeric(10,2);
CREATE DOMAIN public.prices AS public.price[];
CREATE TYPE public.hidden;
CREATE FUNCTION public.hidden_in(cstring) RETURNS public.hidden LANGUAGE internal IMMUTABLE STRICT AS 'int4in';
CREATE FUNCTION public.hidden_out(public.hidden) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'int4out';
CREATE TYPE public.hidden (INPUT = public.hidden_in, OUTPUT = public.hidden_out, LIKE = int4);
CREATE TYPE public.nest AS (a public.pair, b public.mood[], c public.price, d int4range)
"""
