"""Compares the Python and the compiled twin of ``rows``: ``python -m tests.fuzz.rows --count N --seed S``.

The tables have every type that has its own encoding. Rows contain values as servers write them, and invalid values.
Messages are intact or damaged. Both twins have to return the same records, byte for byte, or the same error.
"""

import argparse
import struct
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from types import ModuleType

from pgsluice.avro.choices import Choice, ColumnChoice
from pgsluice.avro.encoder import KeyEncoder, RowEncoder
from pgsluice.avro.schema import TableFields, key_fields
from pgsluice.avro.types import TypeOptions
from pgsluice.dead_letter import DeadLetter, Reason, SourceChange
from pgsluice.envelope import ChangeEncoder, DeadLetters, Stamp
from pgsluice.errors import PgsluiceError
from pgsluice.pgbinary.conversions import conversions
from pgsluice.pgoutput import messages
from pgsluice.pgoutput.framing import Keepalive
from pgsluice.pgoutput.messages import (
    UNCHANGED,
    Begin,
    BinaryValue,
    ColumnValue,
    Commit,
    Delete,
    Insert,
    Truncate,
    TupleData,
    Update,
)
from pgsluice.record import Pending, Record, Target
from pgsluice.relation import CATALOG, Column, PgType, Relation
from pgsluice.transaction import Transaction
from tests.support.pgoutput_encoder import encode, xlog_data
from tests.support.twins import TWINS, outcome
from tests.support.whole import Intake

DAY = ["2026-11-22", "0001-01-01", "9999-12-31", "2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "1969-12-31"]
ODD_DAY = [
    "0000-01-01",
    "2026-13-01",
    "2026-00-10",
    "2026-04-31",
    "2026-1-01",
    "0044-03-15 BC",
    "infinity",
    "10000-01-01",
]
TIME = ["00:00:00", "23:59:59.999999", "12:34:56.7", "12:34:56.000001", "01:02:03.12"]
ODD_TIME = ["24:00:00", "12:60:00", "12:00:60", "1:02:03", "12:34:56.", "12:34:56.1234567", "12:34", "12:34:5a"]
NUMBERS = [
    "0",
    "7",
    "-7",
    "32767",
    "-32768",
    "2147483647",
    "-2147483648",
    "9223372036854775807",
    "-9223372036854775808",
]
ODD_NUMBERS = [
    "000000000007",
    "-00000000007",
    "",
    "-",
    "+1",
    " 1",
    "1_0",
    "007",
    "-0",
    "99999999999999999999",
    "9223372036854775808",
    "1.0",
    "1e3",
    "0x1",
]
DECIMALS = ["0.00", "1.50", "-1.50", "99999999.99", "-99999999.99", "0.01", "-0.01", "-0.00", "123456789012345678.12"]
ODD_DECIMALS = [
    "1.5",
    "1",
    "1.500",
    "1.501",
    "NaN",
    "Infinity",
    "100000000.00",
    ".50",
    "1.",
    "1..0",
    "1.-5",
    "--1.50",
    "1.5x",
    "0000007.50",
    "00000007",
]
FLOATS = [
    "0",
    "-0",
    "1.5",
    "-1e-300",
    "3.4028235e+38",
    "1.17549435e-38",
    "16777217",
    "0.1",
    "1e23",
    "4.9e-324",
    "1.401298464324817e-45",
]
ODD_FLOATS = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "1e39",
    "3.40282354e38",
    "-3.40282354e38",
    "",
    ".",
    "e",
    "1e",
    "1-1",
    "0.1e",
    "1.00000017881393432617187499",
    "+1",
]

TEXTS = ["", "x", "Grüße", "x" * 127, "x" * 70_000, "a\x01b"]

VALUES: dict[str, list[str]] = {
    "bool": ["t", "f", "true", ""],
    "int2": NUMBERS + ODD_NUMBERS,
    "int4": NUMBERS + ODD_NUMBERS,
    "int8": NUMBERS + ODD_NUMBERS,
    "oid": [*NUMBERS, *ODD_NUMBERS, "4294967295", "4294967296"],
    "float4": FLOATS + ODD_FLOATS,
    "float8": FLOATS + ODD_FLOATS,
    "numeric": DECIMALS + ODD_DECIMALS + NUMBERS,
    "date": DAY + ODD_DAY,
    "time": TIME + ODD_TIME,
    "timestamp": [f"{day} {time}" for day in DAY + ODD_DAY for time in TIME + ODD_TIME],
    "timestamptz": [
        f"{day} {time}{zone}"
        for day in DAY + ODD_DAY
        for time in TIME + ODD_TIME
        for zone in ("+00", "", "+01", "+00:30", "+00 BC")
    ],
    "text": TEXTS,
    "json": TEXTS,
    "citext": TEXTS,
    "ltree": TEXTS,
    "char": ["a", "", "é", "\\351"],
    "uuid": [
        "6b3d8e1c-7f1a-4a53-9d5e-0f7c3a1b2c4d",
        "6B3D8E1C-7F1A-4A53-9D5E-0F7C3A1B2C4D",
        "6b3d8e1c7f1a4a539d5e0f7c3a1b2c4d",
        "6b3d8e1c-7f1a-4a53-9d5e-0f7c3a1b2c4g",
    ],
    "bytea": ["\\x", "\\x00ff", "\\xAbCd", "\\x0", "\\xzz", "abc\\000", "\\\\", "x", ""],
    "_int4": ["{}", "{1,NULL,3}", "{{1},{2}}", "[0:0]={1}", "{x}", ""],
    "interval": ["P1D", "PT1.5S", "P1M", "x"],
    "jsonb": ['{"a": 1}'],
}
CHOICES = {
    "numeric": ["decimal(38,2)", "decimal(18,0)", "double", "long", "string"],
    "timestamp": ["timestamp-millis", "local-timestamp-millis"],
    "timestamptz": ["timestamp-millis"],
    "time": ["time-millis"],
    "float4": ["double"],
    "interval": ["interval-micros"],
}
EXTENSIONS = ("citext", "ltree")

EXPECTED_LSN = 1000
"""The commit LSN of a transaction whose first record is replaced by a dead letter, if the table has dead letters."""

KEY_TYPES = [name for name in VALUES if name not in ("_int4", "jsonb")]


_DAY_US = 86_400_000_000
_EDGES = {
    4: (-730_119, 2_921_940, 2**31 - 1 - 10_957),
    8: (-730_119 * _DAY_US, 2_921_940 * _DAY_US, 2**63 - 1 - 10_957 * _DAY_US),
}
"""Limits of dates (4 bytes, in days since 2000) and of timestamps (8 bytes, in microseconds since 2000).

The limits are the beginning of year 1, the beginning of year 10000, and the last value that can be converted to days or
microseconds since 1970 without an overflow.
"""


def _whole(size: int) -> Callable[[Random], bytes]:
    """Return a function that draws integers of ``size`` bytes: large ones, small ones, and some near a limit."""
    bits = 8 * size
    ends = (0, 0, 0, 2**bits - 1, 2 ** (bits - 1), *_EDGES.get(size, ()))

    def make(random: Random) -> bytes:
        away = random.choice((0, 1, random.randrange(1 << random.randrange(1, bits))))
        number: int = (random.choice(ends) + random.choice((1, -1)) * away) % 2**bits
        return number.to_bytes(size, "big")

    return make


def _time(random: Random) -> bytes:
    return random.choice((0, 1000, _DAY_US - 1, _DAY_US, random.randrange(_DAY_US), *_seldom(random, -1))).to_bytes(
        8, "big", signed=True
    )


def _seldom(random: Random, *odd: int) -> tuple[int, ...]:
    """Return ``odd`` in one of five calls, and otherwise nothing.

    The values in ``odd`` cause an error, which hides the row's other values.
    """
    return odd if random.random() < 0.2 else ()


def _float(code: str) -> Callable[[Random], bytes]:
    ordinary = (0.0, -0.0, 1.5, -0.1, 1e-40, float("inf"), float("-inf"), float("nan"))

    def make(random: Random) -> bytes:
        if random.random() < 0.5:  # arbitrary bits
            return random.randbytes(struct.calcsize(code))
        return struct.pack(code, random.choice(ordinary))

    return make


def _numeric(random: Random) -> bytes:
    groups = [random.choice((0, 1, 50, 1200, 9999, random.randrange(10_000))) for _ in range(random.randrange(7))]
    if groups and random.random() < 0.02:
        groups[-1] = random.randrange(10_000, 65_536)
    last = len(groups) - 1
    weight = random.choice((last, last - 1, last - 1, random.randrange(-6, 9), random.randrange(-(2**15), 2**15)))
    sign = random.choice((0, 0x4000, *random.choice(((), (), (0xC000, 0xD000, 0xF000))), *_seldom(random, 0x8000)))
    dscale = random.choice((0, 2, 2, 2, random.randrange(24), *_seldom(random, 0x3FFF, 0x4000)))
    count = len(groups) if random.random() < 0.98 else random.randrange(2**16)
    return struct.pack(f">HhHH{len(groups)}H", count, weight, sign, dscale, *groups)


def _text(random: Random) -> bytes:
    return random.choice((*(text.encode() for text in TEXTS), b"\xff", b"a\0b"))


def _version_1(random: Random) -> bytes:
    return bytes((random.choice((1, 1, 1, 1, *_seldom(random, 0, 2))),)) + _text(random)


SENT: dict[str, Callable[[Random], bytes]] = {
    "bool": lambda random: bytes((random.choice((0, 1, *_seldom(random, 2))),)),
    "int2": _whole(2),
    "int4": _whole(4),
    "int8": _whole(8),
    "oid": _whole(4),
    "float4": _float(">f"),
    "float8": _float(">d"),
    "numeric": _numeric,
    "date": _whole(4),
    "time": _time,
    "timestamp": _whole(8),
    "timestamptz": _whole(8),
    "text": _text,
    "json": _text,
    "citext": _text,
    "ltree": _version_1,
    "char": lambda random: random.randbytes(1),
    "uuid": lambda random: random.randbytes(16),
    "bytea": lambda random: random.randbytes(random.choice((0, 1, 63, 64, 9000))),
    "_int4": lambda random: struct.pack(">6i", 1, 0, 23, 1, random.randrange(3), 4) + random.randbytes(4),
    "interval": lambda random: random.choice((bytes(16), random.randbytes(16))),
    "jsonb": _version_1,
}
"""Functions that draw values in binary format. Most of these values could come from the types' send functions."""


class Differ(AssertionError):
    """The twins have different results."""


def table(random: Random) -> tuple[Relation, ChangeEncoder]:
    """Return a table of random types, and its encoder."""
    names = [random.choice(list(VALUES)) for _ in range(random.randrange(1, 9))]
    names[0] = random.choice(("int8", "text", *KEY_TYPES))
    identity = random.choice("ddfn")
    keys = [
        f"c{place}" for place, name in enumerate(names) if name in KEY_TYPES and (not place or random.random() < 0.05)
    ]
    columns = tuple(
        Column(f"c{place}", _type(name), _typmod(random, name), identity == "f" or f"c{place}" in keys)
        for place, name in enumerate(names)
    )
    relation = Relation(7, "public", "t", identity, columns)
    choices = tuple(
        ColumnChoice(f"c{place}", Choice.parse(random.choice(CHOICES[name])))
        for place, name in enumerate(names)
        if name in CHOICES and random.random() < 0.3
    )
    options = TypeOptions(time_range=random.choice(("common", "full")), choices=choices)
    fields = TableFields(options).assign(relation)
    sent = conversions(relation, []) if random.random() < 0.9 else None
    key = None if identity == "n" else KeyEncoder(relation, key_fields(relation, fields, keys, options), sent)
    return relation, ChangeEncoder(
        relation,
        Target("t", 11, None if key is None else 12),
        RowEncoder(relation, fields, sent),
        key,
        tombstones=random.random() < 0.5,
        truncate=random.random() < 0.5,
        dead_letters=_dead_letters(random),
        insert_op=random.choice("cr"),  # type: ignore[arg-type]  # "c" or "r"
    )


def _dead_letters(random: Random) -> DeadLetters | None:
    """Return None, or dead letters that replace the first record at ``EXPECTED_LSN``, as if Kafka had refused it."""
    if random.random() < 0.5:
        return None
    found = DeadLetters(Target("dead", 21, 22), lambda _letter: None)
    origin = SourceChange("public", "t", "u", 1, EXPECTED_LSN, 0, 700, 0, ("c0",))
    found.expect([DeadLetter(origin, "t", Reason.REFUSED, "")])
    return found


def _type(name: str) -> PgType:
    return PgType(0, "public" if name in EXTENSIONS else CATALOG, name)


def _typmod(random: Random, name: str) -> int:
    if name != "numeric" or random.random() < 0.2:
        return -1
    precision, scale = random.choice(((10, 2), (18, 0), (2, 2), (38, 2), (20, 2), (5, 0)))
    return (precision << 16 | scale) + 4


def _value(random: Random, name: str, *, is_binary: bool) -> ColumnValue:
    dice = random.random()
    if dice < 0.08:
        return None
    if dice < 0.12:
        return UNCHANGED
    found = SENT[name](random) if is_binary else random.choice(VALUES[name]).encode()
    if found and dice < (0.15 if is_binary else 0.2):
        place = random.randrange(len(found))
        found = found[:place] + bytes((random.randrange(256),)) + found[place + random.randrange(2) :]
    return BinaryValue(found) if is_binary else found


def _row(random: Random, relation: Relation) -> TupleData:
    # A server uses binary format for the types that have it, so a row may mix both formats.
    binary_part = random.choice((0, 0, 0.9, 1))
    values = [_value(random, column.type.name, is_binary=random.random() < binary_part) for column in relation.columns]
    if random.random() < 0.8 - 0.6 * binary_part:  # a valid key
        values[0] = VALUES[relation.columns[0].type.name][0].encode()
    return values


def message(random: Random, relation: Relation, xid: int | None) -> bytes:
    """Return a message about the table. One message in ten is damaged."""
    row, old = _row(random, relation), _row(random, relation)
    if random.random() < 0.5:
        old = list(row)  # so that the old and the new key are equal
    found = encode(
        random.choice(
            (
                Insert(xid, 7, row),
                Insert(xid, 7, row),
                Update(xid, 7, None, None, row),
                Update(xid, 7, None, old, row),
                Update(xid, 7, old, None, row),
                Delete(xid, 7, old, None),
                Delete(xid, 7, None, old),
                Truncate(xid, False, True, (7,)),  # noqa: FBT003 - the message's fields
            )
        )
    )
    return found if random.random() < 0.9 else _damaged(random, found)


def _damaged(random: Random, found: bytes) -> bytes:
    place = random.randrange(1, len(found))
    return random.choice(
        (
            found[:place],
            found[:place] + bytes((random.randrange(256),)) + found[place + 1 :],
            found[:place] + found[place + 1 :],
            found + bytes((random.randrange(256),)),
            found[:place] + b"\xff\xff\xff\xff" + found[place + 4 :],
        )
    )


def run(count: int, seed: int) -> Counter[str]:
    """Give both twins ``count`` messages. The same seed gives the same messages. Raise Differ if the results differ."""
    random = Random(seed)
    found: Counter[str] = Counter()
    relation, encoder = table(random)
    for number in range(count):
        if number % 20 == 0:
            relation, encoder = table(random)
        is_streamed = random.random() < 0.3
        data = message(random, relation, 700 if is_streamed else None)
        transaction = Transaction(
            700, random.choice((EXPECTED_LSN, 2**63 - 1, random.randrange(2**40))), random.randrange(2**50)
        )
        epoch, seq = 1, random.choice((0, random.randrange(100_000)))
        outcomes = [
            outcome(twin, relation, encoder, data, transaction, is_streamed=is_streamed, epoch=epoch, seq=seq)
            for twin in TWINS
        ]
        if any(one != outcomes[0] for one in outcomes):
            raise Differ(f"input {number} of seed {seed}: {relation} {data.hex()}\n{outcomes}")
        records = outcomes[0][0]
        found[records.partition(":")[0] if isinstance(records, str) else f"{chr(data[0])}: {len(records)} records"] += 1
    return found


def _at(message: bytes, oid: int) -> bytes:
    return message[:1] + oid.to_bytes(4, "big") + message[5:] if message[:1] in (b"I", b"U", b"D") else message


Tables = Mapping[int, tuple[Relation, ChangeEncoder | None]]


def run_runs(count: int, seed: int) -> Counter[str]:
    """Give both twins ``count`` runs: rows of two tables, and other frames. A table may be unpublished."""
    random = Random(seed)
    found: Counter[str] = Counter()
    tables: Tables = {}
    for number in range(count):
        if number % 10 == 0:
            tables = {oid: _some_table(random, oid) for oid in (7, 8)}
        frames = [_frame(random, tables) for _ in range(random.randrange(1, 8))]
        transaction = Transaction(700, random.choice((EXPECTED_LSN, 2**40)), 5, random.choice((None, "elsewhere")))
        limit, timestamps = random.choice((1, 300, 10**9)), random.random() < 0.5
        outcomes = [
            _run_outcome(twin, tables, frames, Stamp(transaction, 1, commit_timestamps=timestamps), limit)
            for twin in TWINS
        ]
        if any(one != outcomes[0] for one in outcomes):
            raise Differ(f"run {number} of seed {seed}: {tables} {frames}\n{outcomes}")
        found["runs that end with an error" if isinstance(outcomes[0][0], str) else "runs"] += 1
    return found


def _some_table(random: Random, oid: int) -> tuple[Relation, ChangeEncoder | None]:
    relation, encoder = table(random)
    return replace(relation, oid=oid), encoder if random.random() < 0.9 else None


def _frame(random: Random, tables: Tables) -> bytes | Keepalive:
    oid = random.choice((7, 8, 8, 9))
    if random.random() < 0.03:
        return Keepalive(1, 2, reply_requested=False)
    frame = xlog_data(_at(message(random, tables.get(oid, tables[7])[0], None), oid))
    return frame if random.random() < 0.97 else frame[: random.randrange(25, len(frame))]


def _run_outcome(
    twin: ModuleType, tables: Tables, frames: list[bytes | Keepalive], stamp: Stamp, limit: int
) -> tuple[int | str, list[Record], int, int, int]:
    relations = {oid: relation for oid, (relation, _) in tables.items()}
    ready = {oid: twin.Rows(relation, encoder) for oid, (relation, encoder) in tables.items()}
    pending = Pending(limit)
    try:
        ended: int | str = twin.add_run(frames, 0, relations, ready, stamp, pending)
    except PgsluiceError as error:
        ended = f"{type(error).__name__}: {error}"
    return ended, pending.records, pending.size, pending.events, stamp.next_seq


def run_whole(count: int, seed: int) -> Counter[str]:
    """Process ``count`` streams of small transactions, as whole transactions and message by message.

    Raise Differ if the results differ.
    """
    random = Random(seed)
    found: Counter[str] = Counter()
    tables: Tables = {}
    common: list[bytes | Keepalive] = []
    for number in range(count):
        if number % 10 == 0:
            tables = {oid: _some_table(random, oid) for oid in (7, 8)}
            common = [frame for frame in (_frame(random, tables) for _ in range(40)) if _is_common(frame, tables)]
        frames = _transactions(random, tables, common if random.random() < 0.8 else [])
        limit, room, timestamps = random.choice((300, 10**9)), random.choice((1, 900, 10**9)), random.random() < 0.5
        intakes = [
            Intake(twin, tables, limit, room, timestamps, has_shortcut)
            for twin, has_shortcut in ((TWINS[0], False), (TWINS[-1], False), (TWINS[-1], True))
        ]
        outcomes = [one.take(list(frames)) for one in intakes]
        if any(one != outcomes[0] for one in outcomes):
            raise Differ(f"stream {number} of seed {seed}: {tables} {frames}\n{outcomes}")
        found["transactions taken as a whole"] += intakes[-1].whole
        found["streams that end with an error" if intakes[-1].error else "streams"] += 1
    return found


def _is_common(frame: bytes | Keepalive, tables: Tables) -> bool:
    """Return whether a transaction that has only this row can be processed as a whole."""
    begin, commit = (xlog_data(encode(one)) for one in (Begin(2**40, 5, 700), Commit(2**40, 2**40 + 40, 5)))
    intake = Intake(TWINS[-1], tables, 10**9, 10**9, commit_timestamps=False, has_shortcut=True)
    intake.take([begin, frame, commit])
    return intake.whole > 0


def _transactions(random: Random, tables: Tables, common: list[bytes | Keepalive]) -> list[bytes | Keepalive]:
    """Return the frames of some transactions, mostly as a server sends them.

    The rows are from ``common``, unless it is empty.
    """
    frames: list[bytes | Keepalive] = []
    lsn = random.choice((900, 1000, EXPECTED_LSN, 2**40, 2**62 - 200))
    for xid in range(700, 700 + random.randrange(1, 8)):
        end_lsn = lsn + random.choice((40, 40, 40, 0))
        begin = encode(Begin(lsn, random.choice((5, 5, -5, 2**62)) if random.random() < 0.1 else 5, xid))
        commit = encode(Commit(lsn if random.random() < 0.97 else lsn + 1, end_lsn, 5))
        count = random.choice((0, 1, 1, 1, 2, 3, 70 if common else 4))
        rows = [random.choice(common) if common else _frame(random, tables) for _ in range(count)]
        if random.random() < 0.1:
            rows.insert(0, xlog_data(encode(messages.Origin(0, "elsewhere"))))
        ends = [xlog_data(one if random.random() < 0.97 else _damaged(random, one)) for one in (begin, commit)]
        frames += [ends[0], *rows, ends[1]]
        lsn += random.choice((50, 50, 50, 0, -50))
    return frames


def main() -> None:
    """Run, and print the outcomes."""
    parser = argparse.ArgumentParser(description="Compare both twins of rows.")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if len(TWINS) == 1:
        sys.exit("the compiled modules were not built here, so there is nothing to compare")
    found = run(options.count, options.seed) + run_runs(options.count // 5, options.seed)
    found += run_whole(options.count // 10, options.seed)
    for what, count in found.most_common():
        sys.stdout.write(f"{count:>9} {what}\n")


if __name__ == "__main__":
    main()
