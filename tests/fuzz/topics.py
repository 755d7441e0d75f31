"""Fuzzes the readers of service topics: ``python -m tests.fuzz.topics --count 1000000 --seed 1``.

Valid records are damaged, as JSON or as bytes, and then read as checkpoints, schemas, cut records, commands and records
of changes. A reader must either refuse a record with a documented error, or return something usable, and must not take
long. The quick suite does not include this fuzzer. The first input that breaks a rule is printed, and ends the run with
exit code 1.
"""

import argparse
import faulthandler
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict
from io import BytesIO
from random import Random
from typing import Any, Final

import fastavro

from pgsluice.avro.wire import header
from pgsluice.cut import Cut, cut_records
from tests.fuzz.pgoutput import MUTATIONS, MUTATIONS_MAX, Broken
from tests.support import hostile_records as hostile

INPUT_S: Final = 1.0
"""How long one input may take on a busy machine. Most inputs take less than a millisecond."""
HANG_S: Final = 60.0
"""If ``BATCH`` inputs take longer than this, the stack is printed, to show where an input hangs, and the run ends."""
BATCH: Final = 1_000
CORPUS_COUNT: Final = 500

NUMBERS: Final = (0, 1, -1, 2**30, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**4000)
TEXTS: Final = ("", "public", "größe", "\ud800", "\x00", "_xFFFFFF_", "_xD800_", "null", "string", "Value", "a" * 300)
TYPES: Final = (
    "null",
    "long",
    "Value",
    ["null", "string"],
    {"type": "array", "items": "null"},
    {"type": "record", "name": "A", "fields": [{"name": "a", "type": ["null", "A"]}]},
    {"type": "bytes", "logicalType": "decimal", "precision": "38"},
)
OTHERS: Final[tuple[Any, ...]] = (None, True, 0.5, float("nan"), float("inf"), [], {}, [[]], {"a": {}})


def _cut(random: Random) -> bytes:
    offsets = {(f"shop.t{number}", number): (0, random.getrandbits(20)) for number in range(random.randrange(4))}
    identity = {"pipeline": "shop", "cut": random.getrandbits(40), "epoch": random.randrange(1, 9)}
    (record,) = cut_records(Cut(end_lsn=random.getrandbits(40)), identity, offsets, {}, full=random.random() < 0.5)
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(hostile.CUT), record)
    return header(hostile.CUT_ID) + out.getvalue()


def _change(random: Random) -> bytes:
    envelope = {
        "op": "u",
        "before": None,
        "after": None,
        "epoch": random.getrandbits(30),
        "lsn": random.getrandbits(62),
        "seq": random.getrandbits(40),
    }
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(hostile.ENVELOPE), envelope)
    return header(7) + out.getvalue()


def _nested(random: Random) -> Any:  # noqa: ANN401 - any JSON
    value: Any = 1
    for _ in range(random.choice((10, 100, 130, 300))):
        value = random.choice(([value], {"type": value}, ["null", value]))
    return value


def _other(random: Random) -> Any:  # noqa: ANN401 - any JSON
    choices = (NUMBERS, TEXTS, TYPES, OTHERS)
    return _nested(random) if random.random() < 0.02 else deepcopy(random.choice(random.choice(choices)))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401 - any JSON
    """Yield every part of ``value``: its container, and its key or index in this container."""
    names: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    for name in names:
        yield value, name
        if isinstance(value[name], dict | list):
            yield from _places(value[name])


def _changed(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    """Return a copy in which some parts are changed or removed."""
    found: dict[str, Any] = json.loads(json.dumps(value))
    for _ in range(random.randrange(1, MUTATIONS_MAX + 1)):
        places = list(_places(found))
        if not places:
            break
        container, name = random.choice(places)
        if random.random() < 0.2:
            del container[name]
        elif random.random() < 0.1 and isinstance(container, dict):
            container[random.choice(TEXTS)] = container.pop(name)
        else:
            container[name] = _other(random)
    return found


def _damaged(random: Random, data: bytes, corpus: list[bytes]) -> bytes:
    for _ in range(random.randrange(1, MUTATIONS_MAX + 1)):
        if data:
            data = random.choice(MUTATIONS)(random, data, corpus)
    return data


def _text(random: Random, value: dict[str, Any]) -> bytes:
    """Return a record as JSON, damaged as a value or as bytes."""
    if random.random() < 0.3:
        whole = json.dumps(value, ensure_ascii=False).encode()
        return _damaged(random, whole, [whole])
    return json.dumps(_changed(random, value)).encode()


class Inputs:
    """The inputs. The same seed always gives the same inputs."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._cuts = [_cut(self._random) for _ in range(CORPUS_COUNT)]
        self._changes = [_change(self._random) for _ in range(CORPUS_COUNT)]
        self._schema = json.loads(hostile.RECORD.value())
        self._kinds = (
            self._a_checkpoint,
            self._a_schema,
            self._a_cut,
            self._a_cut_of,
            self._a_message,
            self._a_command,
        )

    def next(self) -> tuple[Callable[..., str], tuple[Any, ...]]:
        """Return a function of ``hostile_records`` and its arguments."""
        return self._random.choice(self._kinds)()

    def _a_checkpoint(self) -> tuple[Callable[..., str], tuple[Any, ...]]:
        return hostile.take_checkpoint, (_text(self._random, {"version": 1, **asdict(hostile.CHECKPOINT)}),)

    def _a_schema(self) -> tuple[Callable[..., str], tuple[Any, ...]]:
        if self._random.random() < 0.3:
            return hostile.take_schema, (_text(self._random, self._schema),)
        schema = _changed(self._random, self._random.choice((hostile.ENVELOPE, hostile.KEY)))
        return hostile.take_schema, (json.dumps({**self._schema, "schema": json.dumps(schema)}).encode(),)

    def _a_cut(self) -> tuple[Callable[..., str], tuple[Any, ...]]:
        return hostile.take_cut, (_damaged(self._random, self._random.choice(self._cuts), self._cuts),)

    def _a_cut_of(self) -> tuple[Callable[..., str], tuple[Any, ...]]:
        schema, body = _changed(self._random, hostile.CUT), self._random.choice(self._cuts)[5:]
        return hostile.take_cut_of, (json.dumps(schema), _damaged(self._random, body, self._cuts))

    def _a_command(self) -> tuple[Callable[..., str], tuple[Any, ...]]:
        valid = self._random.choice((hostile.COMMAND, hostile.ANSWER))
        return hostile.take_command, (_text(self._random, json.loads(valid.to_json())),)

    def _a_message(self) -> tuple[Callable[..., str], tuple[Any, ...]]:
        return hostile.take_message, (_damaged(self._random, self._random.choice(self._changes), self._changes),)


def check(take: Callable[..., str], values: tuple[Any, ...]) -> str:
    """Return the outcome of one input. Raise Broken if the outcome breaks a rule."""
    began = time.perf_counter()
    try:
        outcome = take(*values)
    except Exception as error:
        raise Broken(f"undocumented {error!r}") from error
    took = time.perf_counter() - began
    if took > INPUT_S:
        raise Broken(f"it took {took:.1f} s")
    return outcome


def run(count: int, seed: int) -> Counter[str]:
    """Check ``count`` inputs. The same seed gives the same inputs."""
    inputs, outcomes = Inputs(seed), Counter[str]()
    for number in range(count):
        if number % BATCH == 0:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
        take, values = inputs.next()
        try:
            outcomes[check(take, values)] += 1
        except Broken as broken:
            sys.stdout.write(f"input {number} of seed {seed}, {take.__name__}: {values!r}\n{broken}\n")
            raise
    faulthandler.cancel_dump_traceback_later()
    return outcomes


def main() -> None:
    """Run, and print the outcomes of the inputs."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.topics", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="inputs to check")
    parser.add_argument("--seed", type=int, default=1, help="selects the inputs")
    options = parser.parse_args()
    outcomes = run(options.count, options.seed)
    for outcome, seen in sorted(outcomes.items()):
        sys.stdout.write(f"{seen:>10}  {outcome}\n")
    sys.stdout.write(f"{outcomes.total():>10}  inputs, none of which broke a rule\n")


if __name__ == "__main__":
    main()
