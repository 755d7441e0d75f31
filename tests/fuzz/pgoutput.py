"""Fuzzes the decoder of pgoutput: ``python -m tests.fuzz.pgoutput --count 1000000 --seed 1``.

Valid messages are damaged, then decoded. The decoder must either refuse an input with the documented error, or return
a message whose encoding is exactly the input. Memory must stay proportional to the input. The quick suite does not
include this fuzzer. The first input that breaks a rule is printed, and ends the run with exit code 1.
"""

import argparse
import re
import resource
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Protocol

from pgsluice.errors import ProtocolError
from pgsluice.pgoutput import messages
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.pgoutput.framing import MESSAGE_AT, parse_frame
from pgsluice.pgoutput.messages import UNCHANGED, BinaryValue, ColumnValue, Message, TupleData
from tests.support.pgoutput_encoder import encode, xlog_data

CORPUS_COUNT = 4_000
MUTATIONS_MAX = 3
ADDRESS_SPACE_BYTES = 1 << 30
"""The limit of the process's memory. The fuzzer needs far less, and a damaged length field can demand far more."""
PEAK_SHARE = 50
"""Peak memory is measured only for ``count / PEAK_SHARE`` additional inputs, because the measurement is slow."""
PEAK_BASE_BYTES = 16_384
PEAK_FACTOR = 64
"""How many bytes of memory a call may use for each byte of its input.

A column of a Relation takes 10 bytes on the wire, and about 250 bytes as objects. Python's lists also reserve room for
further items.
"""
RESIDENT_GROWTH_KIB = 2_048

DOCUMENTED = re.compile(r"(?P<name>[A-Za-z ]+)( \(('.'|\d+)\))? at offset (?P<at>\d+): expected .+", re.DOTALL)
EXTREMES = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**63,
    2**64 - 1,
)


class Broken(Exception):
    """Raised when an input breaks a rule."""


# -- valid messages ---------------------------------------------------------------------------------------


def _lsn(random: Random) -> int:
    return random.choice((0, 1, 2**64 - 1, random.getrandbits(64)))


def _time(random: Random) -> int:
    return random.getrandbits(64) - 2**63


def _uint32(random: Random) -> int:
    return random.choice((0, 1, 2**32 - 1, random.getrandbits(32)))


def _coin(random: Random) -> bool:
    return random.random() < 0.5


def _string(random: Random) -> str:
    return random.choice(("", "public", "größe", "表", "a" * random.randrange(60)))


def _value(random: Random) -> ColumnValue:
    content = random.randbytes(random.choice((0, 1, 2, 5, 40)))
    return random.choice((None, UNCHANGED, content, content, BinaryValue(content)))


def _tuple(random: Random) -> TupleData:
    return [_value(random) for _ in range(random.choice((0, 1, 3, 10, 40)))]


def _image(random: Random) -> tuple[TupleData | None, TupleData | None]:
    return random.choice(((_tuple(random), None), (None, _tuple(random))))


def _relation(random: Random, xid: int | None) -> messages.Relation:
    columns = tuple(
        messages.RelationColumn(random.random() < 0.5, _string(random), _uint32(random), random.randrange(-1, 99))
        for _ in range(random.choice((0, 1, 5, 30)))
    )
    identity = random.choice("dnfi")
    return messages.Relation(xid, _uint32(random), _string(random), _string(random), identity, columns)


def _truncated(random: Random, xid: int | None) -> messages.Truncate:
    oids = tuple(_uint32(random) for _ in range(random.choice((0, 1, 9))))
    return messages.Truncate(xid, _coin(random), _coin(random), oids)


def _change(random: Random, xid: int | None) -> Message:
    oid = _uint32(random)
    image = _image(random)
    row = random.choice(
        (
            messages.Insert(xid, oid, _tuple(random)),
            messages.Update(xid, oid, None, None, _tuple(random)),
            messages.Update(xid, oid, *image, _tuple(random)),
            messages.Delete(xid, oid, *image),
        )
    )
    text, content = _string(random), random.randbytes(20)
    return random.choice(
        (
            row,
            _relation(random, xid),
            messages.Type(xid, oid, text, _string(random)),
            _truncated(random, xid),
            messages.LogicalMessage(xid, _coin(random), _lsn(random), text, content),
        )
    )


def _transaction_message(random: Random) -> Message:
    xid, first, second, time = _uint32(random), _lsn(random), _lsn(random), _time(random)
    gid = _string(random)
    return random.choice(
        (
            messages.Begin(first, time, xid),
            messages.Commit(first, second, time),
            messages.Origin(first, gid),
            messages.StreamStart(xid, _coin(random)),
            messages.StreamStop(),
            messages.StreamCommit(xid, first, second, time),
            messages.StreamAbort(xid, _uint32(random), None, None),
            messages.StreamAbort(xid, _uint32(random), first, time),
            messages.BeginPrepare(first, second, time, xid, gid),
            messages.Prepare(first, second, time, xid, gid),
            messages.StreamPrepare(first, second, time, xid, gid),
            messages.CommitPrepared(first, second, time, xid, gid),
            messages.RollbackPrepared(first, second, time, _time(random), xid, gid),
        )
    )


def _payload(random: Random) -> bytes:
    if random.random() < 0.3:
        return encode(_transaction_message(random), flags=random.choice((0, 0, 0, 1, 128)))
    return encode(_change(random, random.choice((None, _uint32(random)))))


# -- damage -----------------------------------------------------------------------------------------------

Mutation = Callable[[Random, bytes, list[bytes]], bytes]


def _flip_bits(random: Random, data: bytes, _corpus: list[bytes]) -> bytes:
    damaged = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(damaged)


def _truncate(random: Random, data: bytes, _corpus: list[bytes]) -> bytes:
    return data[: random.randrange(len(data))]


def _insert(random: Random, data: bytes, _corpus: list[bytes]) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.randbytes(random.randrange(1, 9)) + data[at:]


def _remove(random: Random, data: bytes, _corpus: list[bytes]) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + data[at + random.randrange(1, 9) :]


def _splice(random: Random, data: bytes, corpus: list[bytes]) -> bytes:
    other = random.choice(corpus)
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other)) :]


def _extreme(random: Random, data: bytes, _corpus: list[bytes]) -> bytes:
    """Overwrite 1, 2, 4 or 8 bytes anywhere with an extreme value. The bytes may be a length or a count."""
    size = random.choice((1, 2, 4, 4, 8))
    at = random.randrange(len(data))
    value = random.choice((*EXTREMES, len(data) - at, len(data) - at - size)) % (1 << 8 * size)
    return data[:at] + value.to_bytes(size, "big") + data[at + size :]


def _relabel(random: Random, data: bytes, _corpus: list[bytes]) -> bytes:
    kinds = b"BCORYIUDTMSEcAbPpKr" if random.random() < 0.9 else bytes(range(256))
    return bytes([random.choice(kinds)]) + data[1:]


def _keep(_random: Random, data: bytes, _corpus: list[bytes]) -> bytes:
    return data


MUTATIONS: tuple[Mutation, ...] = (
    _flip_bits,
    _truncate,
    _insert,
    _remove,
    _splice,
    _extreme,
    _extreme,
    _relabel,
    _keep,
)


def _damaged(random: Random, corpus: list[bytes]) -> bytes:
    data = random.choice(corpus)
    for _ in range(random.randrange(1, MUTATIONS_MAX + 1)):
        if data:
            data = random.choice(MUTATIONS)(random, data, corpus)
    return data


def _framed(random: Random, payload: bytes) -> bytes:
    whole = xlog_data(payload)
    return random.choice((whole, payload, whole[: random.randrange(len(whole))]))


# -- rules ------------------------------------------------------------------------------------------------


def check(payload: bytes, *, in_stream: bool) -> str:
    """Decode ``payload``, and return the outcome. Raise Broken if the outcome breaks a rule."""
    decoder = Decoder()
    decoder.in_stream = in_stream
    try:
        message = decoder.decode(payload)
    except ProtocolError as error:
        return "refused " + _documented(str(error), payload)
    except Exception as error:
        raise Broken(f"undocumented {error!r}") from error
    if encode(message) != payload:
        raise Broken(f"taken for {message!r}")
    return f"accepted {type(message).__name__}"


def _documented(error: str, payload: bytes) -> str:
    match = DOCUMENTED.fullmatch(error)
    if match is None or int(match["at"]) > len(payload):
        raise Broken(f"not a documented error: {error}")
    return match["name"]


def check_frame(payload: bytes, *, in_stream: bool) -> str:
    """Unpack ``payload`` as CopyData, then check the message in it as :func:`check` does."""
    try:
        frame = parse_frame(payload)
    except ProtocolError as error:
        return "refused frame of " + _documented(str(error), payload)
    except Exception as error:
        raise Broken(f"undocumented {error!r}") from error
    return check(frame[MESSAGE_AT:], in_stream=in_stream) if isinstance(frame, bytes) else "accepted frame"


def check_peak(payload: bytes, *, in_stream: bool) -> str:
    """Run :func:`check` under tracemalloc, and check the memory that it used."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    outcome = check(payload, in_stream=in_stream)
    peak = tracemalloc.get_traced_memory()[1] - before
    if peak > PEAK_BASE_BYTES + PEAK_FACTOR * len(payload):
        raise Broken(f"{peak} bytes of memory for {len(payload)} bytes of input")
    return outcome


class Checker(Protocol):
    """One of the checks above."""

    def __call__(self, payload: bytes, *, in_stream: bool) -> str: ...


def run(count: int, seed: int, checker: Checker) -> Counter[str]:
    """Check ``count`` inputs, a tenth of them as frames. The same seed gives the same inputs."""
    random = Random(seed)
    corpus = [_payload(random) for _ in range(CORPUS_COUNT)]
    outcomes: Counter[str] = Counter()
    for number in range(count):
        payload, in_stream = _damaged(random, corpus), _coin(random)
        framed = number % 10 == 0
        payload = _framed(random, payload) if framed else payload
        try:
            outcomes[(check_frame if framed else checker)(payload, in_stream=in_stream)] += 1
        except Broken as broken:
            sys.stdout.write(f"input {number} of seed {seed}, in_stream={in_stream}: {payload.hex()}\n{broken}\n")
            raise
    return outcomes


def _resident_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run_without_growth(count: int, seed: int) -> Counter[str]:
    """Check the inputs, then check that the process did not grow."""
    run(min(count, CORPUS_COUNT), seed, check)  # after this, the interpreter's own memory is resident
    before = _resident_kib()
    outcomes = run(count, seed, check)
    growth = _resident_kib() - before
    sys.stdout.write(f"{growth:>10}  KiB of growth of the resident memory\n")
    if growth > RESIDENT_GROWTH_KIB:
        raise Broken(f"memory grew by {growth} KiB, more than {RESIDENT_GROWTH_KIB}")
    return outcomes


def main() -> None:
    """Run, and print the outcomes of the inputs."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.pgoutput", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="inputs to check")
    parser.add_argument("--seed", type=int, default=1, help="selects the inputs")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    outcomes = run_without_growth(options.count, options.seed)
    tracemalloc.start()
    outcomes += run(options.count // PEAK_SHARE, options.seed + 1, check_peak)
    for outcome, seen in sorted(outcomes.items()):
        sys.stdout.write(f"{seen:>10}  {outcome}\n")
    accepted = sum(seen for outcome, seen in outcomes.items() if outcome.startswith("accepted"))
    total = outcomes.total()
    sys.stdout.write(f"{total:>10}  inputs: {accepted} accepted, {total - accepted} refused as documented\n")


if __name__ == "__main__":
    main()
