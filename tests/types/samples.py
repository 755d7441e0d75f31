"""Values of every type that a column can have: difficult values, and any number of random values.

``proof`` uses this module. The values are texts for the type's input function. A seed determines the random values.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

Draw = Callable[[Random], str]

NEVER_IN_TABLES = {
    "smgr",  # in servers before 12; it has only one value, and no arrays
    *("pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "gtsvector"),
    *("pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"),
}
"""Types that have no samples. The input functions of all these types except ``smgr`` refuse every text."""


@dataclass(frozen=True)
class Sample:
    """A type as it is declared, and its values: the ``edges``, and values from ``draw``."""

    declaration: str
    draw: Draw | None = None
    edges: Sequence[str] = field(default=())
    since: int = 10
    until: int = 99
    delimiter: str = ","

    def values(self, rng: Random, count: int) -> list[str]:
        """Return all ``edges``, and enough drawn values for a total of ``count``."""
        drawn = [self.draw(rng) for _ in range(count - len(self.edges))] if self.draw is not None else []
        return [*self.edges, *drawn]

    def arrays(self, rng: Random, values: Sequence[str]) -> list[str]:
        """Return arrays of the values, in every shape. There are about as many arrays as values."""
        return [*self._odd_arrays(values), *(self._array(rng, values) for _ in range(len(values)))]

    def _odd_arrays(self, values: Sequence[str]) -> list[str]:
        one = _item(values[0])
        row = self.delimiter.join([one, "NULL"])
        return [
            "{}",
            "{NULL}",
            f"{{{one}}}",
            f"[0:1]={{{row}}}",
            f"[2:2]={{{one}}}",
            f"{{{{{row}}}}}",
            f"{{{{{{{row}}}}}}}",
        ]

    def _array(self, rng: Random, values: Sequence[str]) -> str:
        items = [_item(rng.choice(values)) if rng.randrange(8) else "NULL" for _ in range(rng.choice([1, 2, 2, 3, 5]))]
        row = f"{{{self.delimiter.join(items)}}}"
        shape = rng.randrange(12)
        if shape == 0:
            lower = rng.randrange(-3, 4)
            return f"[{lower}:{lower + len(items) - 1}]={row}"
        return f"{{{row}{self.delimiter}{row}}}" if shape == 1 else row


def _item(text: str) -> str:
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'


# --- numbers


def _whole(bits: int) -> Draw:
    return lambda rng: str(rng.getrandbits(bits) - 2 ** (bits - 1) >> rng.randrange(bits))


def _natural(bits: int) -> Draw:
    return lambda rng: str(rng.getrandbits(bits) >> rng.randrange(bits))


def _float8(rng: Random) -> str:
    """Return any float, a number with few digits, a power of two, or a number that may lie halfway between two floats.

    The four kinds are equally likely.
    """
    kind = rng.randrange(4)
    if kind == 0:
        return repr(struct.unpack(">d", rng.randbytes(8))[0])
    if kind == 1:
        return f"{rng.randrange(10 ** rng.randrange(1, 17))}e{rng.randrange(-30, 40)}"
    return repr(
        2.0 ** rng.randrange(-1074, 1024) if kind == 2 else rng.randrange(2**52, 2**60) * 10.0 ** rng.randrange(25)
    )


def _float4(rng: Random) -> str:
    kind = rng.randrange(3)
    if kind == 0:
        return f"{rng.randrange(10 ** rng.randrange(1, 9))}e{rng.randrange(-30, 28)}"
    bits = rng.getrandbits(32) if kind == 1 else rng.randrange(255) << 23 | rng.choice([0, 1, 0x7FFFFF])
    return repr(struct.unpack(">f", struct.pack(">I", bits))[0])


_SPECIAL = ("NaN", "Infinity", "-Infinity")
_FLOAT_EDGES = ("0", "-0", "1e15", "1e23", "123456789.125", "16777217", *_SPECIAL)


def _numeric(digits: int, scale: int) -> Draw:
    def draw(rng: Random) -> str:
        number = rng.randrange(10 ** rng.randrange(1, digits + 1))
        fraction = rng.randrange(10**scale) // 10 ** rng.randrange(scale + 1)
        point = f".{fraction:0{rng.randrange(1, scale + 1)}}" if scale else ""
        return f"{rng.choice(['', '-'])}{number}{point}"

    return draw


def _money(rng: Random) -> str:
    cents = int(_whole(64)(rng))
    return f"{'-' * (cents < 0)}{abs(cents) // 100}.{abs(cents) % 100:02}"


# --- times


def _day(rng: Random, years: tuple[int, int] = (-4712, 9999)) -> tuple[str, str]:
    """Return a date, and its era (``" BC"`` or nothing), which the caller must append after the time."""
    year = rng.randrange(*years)
    era = " BC" if year <= 0 else ""
    return f"{year if year > 0 else 1 - year:04}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}", era


def _date(rng: Random) -> str:
    return "".join(_day(rng, rng.choice([(1, 9999), (1900, 2100), (-4712, 5_000_000)])))


def _time(rng: Random) -> str:
    digits = rng.randrange(7)
    fraction = f".{rng.randrange(10**digits):0{digits}}" if digits else ""
    return f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}{fraction}"


def _timestamp(rng: Random) -> str:
    day, era = _day(rng, rng.choice([(1, 9999), (1900, 2100), (-4712, 290_000)]))
    return f"{day} {_time(rng)}{era}"


def _zone(rng: Random) -> str:
    seconds = rng.choice(["", "", ":07"])
    return f"{rng.choice('+-')}{rng.randrange(15):02}:{rng.choice([0, 30, 59]):02}{seconds}"


def _timestamptz(rng: Random) -> str:
    day, era = _day(rng, rng.choice([(2, 9998), (1900, 2100), (-4711, 290_000)]))
    return f"{day} {_time(rng)}{_zone(rng)}{era}"


def _interval(rng: Random) -> str:
    months, days = (rng.choice([0, rng.randrange(-99, 99)]) for _ in range(2))
    seconds = f"{rng.randrange(60):02}.{rng.choice([0, rng.randrange(10**6)]):06}"
    return f"{months} mons {days} days {rng.choice('+-')}{rng.choice([0, 7, 10**6])}:{rng.randrange(60)}:{seconds}"


_TIMESTAMP_EDGES = (
    *("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00"),
    *("infinity", "-infinity", "0001-12-31 23:59:59.999999 BC", "4714-11-24 00:00:00 BC"),
    *("294276-12-31 23:59:59.999999", "10000-01-01 00:00:00", "2020-02-29 24:00:00", "epoch"),
)


# --- texts

LETTERS = "abNUL \t\n\r\v\f\\\"'{}()[],;:&|!<>=-*üß☃😀\x01\x7f"


def text(rng: Random, longest: int = 8) -> str:
    """Return a text of letters, and of characters that have a special meaning in the syntax of some types."""
    return "".join(rng.choices(LETTERS, k=rng.randrange(longest + 1)))


_TEXT_EDGES = ("", "NULL", "null", " ", "\\N", "x" * 20, "größer ☃ 😀")


def _hex(rng: Random) -> str:
    return "\\x" + rng.randbytes(rng.randrange(20)).hex()


def _uuid(rng: Random) -> str:
    return rng.randbytes(16).hex()


def _json(rng: Random, depth: int = 3) -> str:
    kind = rng.randrange(6) if depth else rng.randrange(4)
    if kind == 4:
        return f"[{', '.join(_json(rng, depth - 1) for _ in range(rng.randrange(4)))}]"
    if kind == 5:
        return "{" + ",".join(f'"{rng.choice("abc")}" : {_json(rng, depth - 1)}' for _ in range(rng.randrange(4))) + "}"
    letters = "".join(rng.choices("ab ü☃😀'{}[],:/", k=rng.randrange(6)))
    return [rng.choice(["null", "true", "false"]), _numeric(20, 5)(rng), f'"{letters}"', '"\\u00fc\\n\\""'][kind]


def _xml(rng: Random) -> str:
    word = "".join(rng.choices("ab ü☃😀'\"{},", k=rng.randrange(6)))
    return rng.choice([f"<a>{word}</a>", f"<a b='1'/>{word}", word, f"<!--{word}--><a><![CDATA[<{word}]]></a>"])


def _address(rng: Random) -> str:
    if rng.randrange(2):
        return ".".join(str(rng.choice([0, 10, 255])) for _ in range(4)) + rng.choice(["", f"/{rng.randrange(33)}"])
    words = [rng.choice(["0", "0", "0", "1", "ffff", "abc"]) for _ in range(8)]
    return ":".join(words) + rng.choice([f"/{rng.randrange(129)}", ""])


def _network(rng: Random) -> str:
    bits, of = (rng.randrange(33), 32) if rng.randrange(2) else (rng.randrange(129), 128)
    address = rng.getrandbits(of) >> (of - bits) << (of - bits)
    if of == 32:
        return ".".join(str(part) for part in address.to_bytes(4, "big")) + f"/{bits}"
    return ":".join(f"{address >> 112 - 16 * word & 0xFFFF:x}" for word in range(8)) + f"/{bits}"


def _mac(length: int) -> Draw:
    return lambda rng: rng.randbytes(length).hex(":")


def _bits(length: int | None) -> Draw:
    return lambda rng: "".join(rng.choices("01", k=rng.randrange(40) if length is None else length))


def _lsn(rng: Random) -> str:
    return f"{int(_natural(32)(rng)):X}/{int(_natural(32)(rng)):X}"


def _snapshot(rng: Random) -> str:
    lowest = rng.randrange(3, 2**40)
    running = sorted({lowest + rng.randrange(20) for _ in range(rng.randrange(5))})
    return f"{lowest}:{lowest + 20}:{','.join(map(str, running))}"


def _quoted(word: str) -> str:
    return "'" + word.replace("\\", r"\\").replace("'", "''") + "'"


def _tsvector(rng: Random) -> str:
    def lexeme() -> str:
        return _quoted(text(rng) + "x") + rng.choice([":1", ":2A", ":3B,16383C", ""])

    return " ".join(lexeme() for _ in range(rng.randrange(5)))


def _tsquery(rng: Random, depth: int = 4) -> str:
    kind = rng.randrange(6) if depth else 0
    if kind <= 1:
        return _quoted(text(rng) + "x") + rng.choice(["", "", ":*", ":A", ":*BCD"])
    if kind == 2:
        return f"!({_tsquery(rng, depth - 1)})"
    operator = rng.choice(["&", "|", "<->", "<3>", "<0>"])
    return f"({_tsquery(rng, depth - 1)}) {operator} ({_tsquery(rng, depth - 1)})"


# --- shapes


def _coordinates(rng: Random, count: int) -> str:
    return ",".join(f"({rng.randrange(-99, 99) / 8},{rng.choice([1e300, -0.1, 0, 1e-9])})" for _ in range(count))


def _shape(begin: str, end: str, least: int, most: int) -> Draw:
    return lambda rng: f"{begin}{_coordinates(rng, rng.randrange(least, most + 1))}{end}"


def _path(rng: Random) -> str:
    return rng.choice([_shape("[", "]", 1, 4), _shape("(", ")", 1, 4)])(rng)


def _line(rng: Random) -> str:
    return f"{{{rng.randrange(1, 99) / 8},{rng.choice([1e300, -0.1, 0])},{rng.randrange(-9, 9)}}}"


def _cube(rng: Random) -> str:
    corners = [", ".join(str(rng.randrange(-99, 99) / 8) for _ in range(3)) for _ in range(rng.choice([1, 2]))]
    return ",".join(f"({corner})" for corner in corners)


# --- derived types


def _range(bounds: Draw, key: Callable[[str], Any]) -> Draw:
    def draw(rng: Random) -> str:
        lower, upper = sorted([bounds(rng), bounds(rng)], key=key)
        sides = (rng.choice(["", _item(lower), _item(lower)]), rng.choice(["", _item(upper), _item(upper)]))
        return rng.choice([f"{rng.choice('[(')}{sides[0]},{sides[1]}{rng.choice('])')}"] * 9 + ["empty"])

    return draw


def _number(low: int, high: int) -> Draw:
    return lambda rng: str(rng.randrange(low, high))


def _moment(suffix: str = "") -> Draw:
    return lambda rng: f"{_day(rng, (1000, 9998))[0]} {_time(rng)}{suffix}"


_RANGES: dict[str, Draw] = {
    "int4": _range(_number(-999, 999), int),
    "int8": _range(_number(-(2**40), 2**40), int),
    "num": _range(_numeric(12, 5), float),
    "date": _range(lambda rng: _day(rng, (1000, 9998))[0], str),
    "ts": _range(_moment(), str),
    "tstz": _range(_moment("+00"), str),
}
_RANGE_EDGES = ("empty", "(,)")


def _multirange(one: Draw) -> Draw:
    return lambda rng: "{" + ",".join(one(rng) for _ in range(rng.randrange(4))) + "}"


def _composite(*fields: Draw) -> Draw:
    return lambda rng: "(" + ",".join(rng.choice(["", _item(draw(rng)), _item(draw(rng))]) for draw in fields) + ")"


def _moods(rng: Random) -> str:
    return "{" + ",".join(rng.choice(["sad", '"not so, happy"', "NULL"]) for _ in range(rng.randrange(1, 4))) + "}"


def _mood(rng: Random) -> str:
    return rng.choice(["sad", "not so, happy"])


def _hstore(rng: Random) -> str:
    pairs = (f"{_item(text(rng))}=>{rng.choice(['NULL', _item(text(rng))])}" for _ in range(rng.randrange(4)))
    return ",".join(pairs)


def _path_of_labels(rng: Random) -> str:
    return ".".join("".join(rng.choices("abc_1", k=rng.randrange(1, 4))) for _ in range(rng.randrange(1, 4)))


def _lquery(rng: Random) -> str:
    return ".".join(rng.choice(["*", "*{1,2}", "a|b@*", "!c", "x%"]) for _ in range(rng.randrange(1, 4)))


def _ean(digits: int, begin: str) -> Draw:
    """Return a number with its check digit. From the last digit to the first, the weights are 1, 3, 1, 3, ..."""

    def draw(rng: Random) -> str:
        number = begin + "".join(rng.choices("0123456789", k=digits - len(begin) - 1))
        weights = [1, 3] if digits % 2 else [3, 1]
        total = sum(int(digit) * weights[place % 2] for place, digit in enumerate(number))
        return f"{number}{-total % 10}"

    return draw


def _vector(rng: Random) -> str:
    return "[" + ",".join(f"{rng.randrange(-99, 99) / 8:g}" for _ in range(rng.randrange(1, 9))) + "]"


SAMPLES: Sequence[Sample] = (
    Sample("bool", lambda rng: rng.choice("tf"), ["t", "f"]),
    Sample("int2", _whole(16), ["-32768", "32767", "0"]),
    Sample("int4", _whole(32), ["-2147483648", "2147483647", "0"]),
    Sample("int8", _whole(64), ["-9223372036854775808", "9223372036854775807", "0"]),
    *(Sample(name, _natural(32), ["0", "3", "4294967295"]) for name in ("oid", "xid", "cid")),
    Sample("xid8", _natural(64), ["0", "18446744073709551615"], since=13),
    Sample("float4", _float4, [*_FLOAT_EDGES, "3.4028235e38", "1e-45", "7.038531e-26", "1.1754944e-38"]),
    Sample("float8", _float8, [*_FLOAT_EDGES, "1.7976931348623157e308", "5e-324", "0.1"]),
    Sample(
        "numeric",
        lambda rng: rng.choice([_numeric(40, 40), _numeric(300, 1), _numeric(18, 4)])(rng),
        ["0", "0.000", "-1.50", "NaN", "1e-300", "1e300", "9" * 131_072 + "." + "9" * 16_383, "1e-16383"],
    ),
    Sample("numeric", None, _SPECIAL, since=14),
    Sample("numeric(10,2)", _numeric(8, 2), ["0", "-99999999.99", "99999999.99", "0.01", "NaN"]),
    Sample("numeric(38,10)", _numeric(28, 10), ["9999999999999999999999999999.9999999999", "NaN"]),
    Sample("numeric(38,38)", lambda rng: f"0.{rng.randrange(10**38):038}", ["0." + "9" * 38]),
    Sample("numeric(39,1)", _numeric(38, 1), ["99999999999999999999999999999999999999.9", "NaN"]),
    Sample("numeric(1000,500)", _numeric(499, 500), ["NaN"]),
    Sample("numeric(5)", _numeric(5, 0), ["-99999"]),
    Sample("numeric(5,-2)", _whole(20), ["1234567", "NaN"], since=15),
    Sample("numeric(3,5)", lambda rng: f"{rng.choice(['', '-'])}0.00{rng.randrange(1000):03}", ["NaN"], since=15),
    Sample("numeric(2,-40)", None, ["1e41", "-99e40", "0"], since=15),
    Sample("money", _money, ["0", "-0.05", "92233720368547758.07", "-92233720368547758.08"]),
    *(Sample(name, text, _TEXT_EDGES) for name in ("text", "varchar", "bpchar", "refcursor")),
    Sample("name", text, [*_TEXT_EDGES, "x" * 63]),
    Sample("varchar(5)", lambda rng: text(rng, 5), ["", "NULL"]),
    Sample("char(6)", lambda rng: text(rng, 6), ["", "ü"]),
    Sample('"char"', lambda rng: rng.choice(LETTERS[:26]), ["", "x", "\\", "\\377", "\\303", "ü"]),
    Sample("bytea", _hex, ["", "\\x00", "\\x" + "ab" * 3000, "\\\\", "abc\\001"]),
    Sample("uuid", _uuid, ["00000000-0000-0000-0000-000000000000", "FFFFFFFF-ffff-ffff-ffff-ffffffffffff"]),
    Sample("json", _json, ['{"a" : 1, "a": [null]}', "1e5", " [ ] "]),
    Sample("jsonb", _json, ['{"b": 1.50, "a": {"c": []}}', "1e5", "1.000"]),
    Sample("jsonpath", None, ["$.a[*] ? (@ > 1)", 'strict $."ü"', "$.**{2 to last}.b ? (exists (@.c))"], since=12),
    Sample("xml", _xml, ["", '<?xml version="1.0" encoding="UTF-8"?><a/>', '<?xml version="1.1"?>\n<a/>']),
    Sample("inet", _address, ["10.0.0.1/24", "::1", "::ffff:1.2.3.4", "::", "::1.2.3.4", "0.0.0.0/0"]),
    Sample("cidr", _network, ["10.0.0.0/8", "::/0", "2001:db8::/32"]),
    Sample("macaddr", _mac(6)),
    Sample("macaddr8", _mac(8), ["08:00:2b:01:02:03"]),
    Sample("bit(9)", _bits(9)),
    Sample("bit", _bits(1)),
    Sample("varbit", _bits(None), ["", "1" * 1000]),
    Sample("pg_lsn", _lsn, ["0/0", "FFFFFFFF/FFFFFFFF"]),
    Sample("tid", lambda rng: f"({_natural(32)(rng)},{_natural(16)(rng)})", ["(0,1)", "(4294967295,65535)"]),
    Sample("txid_snapshot", _snapshot, ["10:20:10,14", "5:5:"]),
    Sample("pg_snapshot", _snapshot, ["10:20:10,14", "5:5:"], since=13),
    Sample("date", _date, ["0001-01-01", "9999-12-31", "infinity", "-infinity", "10000-01-01", "0001-12-31 BC"]),
    Sample("date", None, ["4714-11-24 BC", "5874897-12-31", "1969-12-31", "2020-02-29"]),
    Sample("time", _time, ["00:00:00", "23:59:59.999999", "24:00:00"]),
    Sample("time(0)", _time, ["24:00:00"]),
    Sample(
        "timetz", lambda rng: _time(rng) + _zone(rng), ["24:00:00+00", "00:00:00.000001-15:59", "12:00:00+15:59:59"]
    ),
    Sample("timestamp", _timestamp, _TIMESTAMP_EDGES),
    Sample("timestamp(3)", _timestamp, ["2020-01-01 00:00:00.0005", "infinity"]),
    Sample("timestamptz", _timestamptz, ["0001-01-01 00:00:00+00", "1883-11-18 12:03:57.000001-04:56:02"]),
    Sample("timestamptz", None, ["infinity", "-infinity", "9999-12-31 23:59:59.999999+00", "1970-01-01 00:00:00+00"]),
    Sample(
        "timestamptz", None, ["4714-11-24 00:00:00+00 BC", "294276-12-31 23:59:59.999999+00", "10000-01-01 00:00+00"]
    ),
    Sample("timestamptz(3)", _timestamptz),
    Sample("interval", _interval, ["0", "-178000000 years", "-00:00:00.000001", "1 mon -1 day", "2147483647 days"]),
    Sample("interval", None, ["infinity", "-infinity"], since=17),
    Sample("interval(0)", _interval),
    Sample("interval year to month", _interval),
    Sample("abstime", lambda rng: f"{_day(rng, (1902, 2037))[0]} 12:34:56+00", ["infinity", "invalid"], until=11),
    Sample("reltime", lambda rng: f"{rng.randrange(-9999, 9999)} hours", ["0"], until=11),
    Sample("tinterval", None, ['["1973-02-01 12:00:00" "1973-02-02 12:00:00"]'], until=11),
    Sample("point", _shape("", "", 1, 1), ["(NaN,Infinity)"]),
    Sample("lseg", _shape("[", "]", 2, 2)),
    Sample("box", _shape("", "", 2, 2), delimiter=";"),
    Sample("line", _line),
    Sample("circle", lambda rng: f"<{_coordinates(rng, 1)},{rng.randrange(9)}>"),
    Sample("path", _path),
    Sample("polygon", _shape("(", ")", 1, 4)),
    Sample("tsvector", _tsvector, [""]),
    Sample("tsquery", _tsquery, [""]),
    Sample("int2vector", lambda rng: " ".join(_whole(16)(rng) for _ in range(rng.randrange(4))), [""]),
    Sample("oidvector", lambda rng: " ".join(_natural(32)(rng) for _ in range(rng.randrange(4))), [""]),
    *(Sample(f"{name}range", draw, _RANGE_EDGES) for name, draw in _RANGES.items()),
    *(Sample(f"{name}multirange", _multirange(draw), ["{}"], since=14) for name, draw in _RANGES.items()),
    Sample("daterange", None, ["[-infinity,2000-01-01)", "[2000-01-01,infinity]"]),
    Sample("tstzrange", None, ["[-infinity,infinity]"]),
    Sample("regclass", None, ["pg_catalog.pg_class", "12345"]),
    Sample("regtype", None, ["int4", "12345", 'pg_catalog."char"', "int4[]"]),
    Sample("regproc", None, ["pg_backend_pid"]),
    Sample("regprocedure", None, ["abs(int4)"]),
    Sample("regoper", None, ["pg_catalog.||/"]),
    Sample("regoperator", None, ["+(int4,int4)"]),
    Sample("regconfig", None, ["english"]),
    Sample("regdictionary", None, ["simple"]),
    Sample("regnamespace", None, ["pg_catalog"]),
    Sample("regrole", None, ["postgres"]),
    Sample("regcollation", None, ['"C"'], since=13),
    Sample("aclitem", None, ["postgres=r/postgres", "=arwdDxt/postgres", "postgres=r*w*/postgres"]),
)
"""Samples of built-in types. Some types have further samples, for newer versions or without random values."""

USERS: Sequence[Sample] = (
    Sample("public.mood", _mood),
    Sample("public.price", _numeric(8, 2), ["NaN"]),
    Sample("public.pair", _composite(text, text), ["(,)"]),
    Sample("public.nest", _composite(_composite(text, text), _moods, _numeric(8, 2), _RANGES["int4"]), ["(,,,)"]),
    Sample("public.words", _range(text, str.encode)),
    Sample("public.words_multirange", _multirange(_range(text, str.encode)), since=14),
    Sample("public.moods", _moods, ["{}", "{{sad}}"]),
    Sample("public.citext", text, _TEXT_EDGES),
    Sample("public.hstore", _hstore, ["", 'a=>1, "b c"=>NULL, "d\\"e"=>"f\\\\g"']),
    Sample("public.ltree", _path_of_labels, [""]),
    Sample("public.lquery", _lquery),
    Sample("public.ltxtquery", None, ["a & !b", "a@* | (b & c)"]),
    Sample("public.cube", _cube, ["()", "(1.5)", "(0.1, 1e300)"]),
    Sample("public.seg", None, ["1.5", "1 .. 2", "~3.00", "< 5"]),
    Sample("public.query_int", None, ["1&2", "1|(2&!3)"]),
    Sample("public.lo", _natural(32)),
    Sample("public.ean13", _ean(13, "4")),
    Sample("public.isbn13", _ean(13, "978")),
    Sample("public.isbn", None, ["0-393-04002-X", "978-0-393-04002-9"]),
    Sample("public.ismn13", _ean(13, "9790")),
    Sample("public.ismn", None, ["M-706257-21-1"]),
    Sample("public.issn13", _ean(13, "977")),
    Sample("public.issn", None, ["1436-4522"]),
    Sample("public.upc", _ean(12, "0")),
    Sample("public.vector", _vector, ["[1]"]),
    Sample("public.hidden", _whole(32)),
)
"""Samples of types from users and extensions."""

SETUP = """
CREATE EXTENSION hstore SCHEMA public;
CREATE EXTENSION citext SCHEMA public;
CREATE EXTENSION ltree SCHEMA public;
CREATE EXTENSION cube SCHEMA public;
CREATE EXTENSION isn SCHEMA public;
CREATE EXTENSION seg SCHEMA public;
CREATE EXTENSION intarray SCHEMA public;
CREATE EXTENSION lo SCHEMA public;
CREATE TYPE public.mood AS ENUM ('sad', 'not so, happy');
CREATE TYPE public.pair AS (a text, b text);
CREATE TYPE public.words AS RANGE (subtype = text, collation = "C");
CREATE DOMAIN public.price AS numeric(10,2);
CREATE DOMAIN public.moods AS public.mood[];
CREATE TYPE public.nest AS (a public.pair, b public.mood[], c public.price, d int4range);
CREATE TYPE public.hidden;
CREATE FUNCTION public.hidden_in(cstring) RETURNS public.hidden LANGUAGE internal IMMUTABLE STRICT AS 'int4in';
CREATE FUNCTION public.hidden_out(public.hidden) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'int4out';
CREATE TYPE public.hidden (INPUT = public.hidden_in, OUTPUT = public.hidden_out, LIKE = int4);
CREATE TYPE public.vector;
CREATE FUNCTION public.vector_in(cstring) RETURNS public.vector LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION public.vector_out(public.vector) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE TYPE public.vector (INPUT = public.vector_in, OUTPUT = public.vector_out, LIKE = text)
"""
"""``vector`` shares only the name and the text of pgvector's type.

``hidden`` has no binary format, like some types of extensions.
"""
