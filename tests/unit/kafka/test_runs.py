"""Runs of records: the partitions and the counts of the records, and where a run ends."""

from types import ModuleType
from typing import Any

import pytest

from pgsluice.cut import Cut
from pgsluice.kafka.partitioner import partition_for
from pgsluice.kafka.runs import LONGEST
from pgsluice.record import Record, Target
from tests.support.twins import RUNS

ORDERS = Target("shop.public.orders", 11, 12)
LATER = Target("shop.public.orders", 13, 12)
ITEMS = Target("shop.public.items", 21, None)
PARTITIONS = {ORDERS.topic: 3, ITEMS.topic: 7}


@pytest.fixture(params=RUNS, ids=lambda twin: str(twin.__name__))
def twin(request: pytest.FixtureRequest) -> ModuleType:
    found: ModuleType = request.param
    return found


class Queue:
    """A producer that collects records. It accepts ``capacity`` records, and then raises ``error``."""

    def __init__(self, capacity: int = 1000, error: type[Exception] = BufferError) -> None:
        self.taken: list[tuple[Any, ...]] = []
        self._capacity = capacity
        self._error = error

    def produce(self, *arguments: Any) -> None:  # noqa: ANN401 - any arguments
        if len(self.taken) == self._capacity:
            raise self._error
        self.taken.append(arguments)


def run(  # noqa: PLR0913 - the parameters of the function
    twin: ModuleType,
    records: list[Record],
    queue: Queue | None = None,
    cut: Cut | None = None,
    *,
    at: int = 0,
    room: int = 1_000_000,
    largest: int = 1_000_000,
) -> tuple[int, int]:
    found: tuple[int, int] = twin.produce_run(
        (queue or Queue()).produce,
        records,
        at,
        PARTITIONS.__getitem__,
        cut if cut is not None else Cut(),
        room=room,
        largest=largest,
    )
    return found


def record(
    target: Target = ORDERS, op: str | None = "c", key: bytes | None = b"k", value: bytes | None = b"v"
) -> Record:
    return Record(target, op, key, value, 5)


@pytest.mark.parametrize("key", [b"", b"1", b"12", b"123", b"1234", b"12345", bytes(range(256)), b"\xff" * 7])
def test_a_key_has_the_partition_that_java_clients_choose(twin: ModuleType, key: bytes) -> None:
    queue = Queue()
    assert run(twin, [record(key=key)], queue) == (1, 999_999)
    assert queue.taken == [(ORDERS.topic, b"v", key, partition_for(key, 3), None, None, 5)]


def test_without_a_key_the_partition_is_the_first(twin: ModuleType) -> None:
    queue = Queue()
    run(twin, [record(ITEMS, key=None)], queue)
    assert queue.taken[0][3] == 0


def test_produced_records_are_counted(twin: ModuleType) -> None:
    cut = Cut()
    places = [b"a", b"b", b"c", b"a", b"b"]
    records = [record(key=key, op=op) for key, op in zip(places, ("c", "c", "d", "u", None), strict=True)]
    run(twin, [*records, record(ITEMS, key=None), record(op="c", key=b"a")], cut=cut)
    assert cut.topics[ORDERS.topic].counts == {"c": 3, "d": 1, "u": 1}
    produced: dict[int, int] = {}
    for key in [*places, b"a"]:
        produced[partition_for(key, 3)] = produced.get(partition_for(key, 3), 0) + 1
    assert cut.topics[ORDERS.topic].produced == produced
    assert (cut.topics[ITEMS.topic].counts, cut.topics[ITEMS.topic].produced) == ({"c": 1}, {0: 1})


def test_the_schema_used_last_is_named_last(twin: ModuleType) -> None:
    cut = Cut()
    run(twin, [record(ORDERS), record(LATER), record(ORDERS)], cut=cut)
    assert list(cut.topics[ORDERS.topic].schema_ids) == [13, 11]
    run(twin, [record(LATER)], cut=cut)
    assert list(cut.topics[ORDERS.topic].schema_ids) == [11, 13]


def test_a_run_begins_at_the_given_record(twin: ModuleType) -> None:
    queue = Queue()
    assert run(twin, [record(), record(), record()], queue, at=2)[0] == 3
    assert len(queue.taken) == 1


def test_a_run_ends_before_a_record_for_all_partitions(twin: ModuleType) -> None:
    cut = Cut()
    assert run(twin, [record(), record(op="t", key=None), record()], cut=cut)[0] == 1
    assert cut.topics[ORDERS.topic].counts == {"c": 1}


def test_a_run_ends_before_a_value_that_is_too_large(twin: ModuleType) -> None:
    assert run(twin, [record(value=b"12"), record(value=None, op=None), record(value=b"123")], largest=2)[0] == 2


def test_a_run_ends_when_there_is_no_room(twin: ModuleType) -> None:
    assert run(twin, [record(value=b"12")] * 5, room=3) == (2, -1)
    assert run(twin, [record()], room=0) == (0, 0)


@pytest.mark.parametrize("error", [BufferError, ValueError])
def test_a_run_ends_before_a_record_that_is_refused(twin: ModuleType, error: type[Exception]) -> None:
    cut = Cut()
    assert run(twin, [record()] * 5, Queue(3, error), cut)[0] == 3
    assert cut.topics[ORDERS.topic].counts == {"c": 3}


def test_a_run_has_a_maximum_number_of_records(twin: ModuleType) -> None:
    assert run(twin, [record()] * (LONGEST + 5), Queue(LONGEST + 5))[0] == LONGEST


def test_if_the_first_record_is_refused_nothing_is_counted(twin: ModuleType) -> None:
    cut = Cut()
    assert run(twin, [record()], Queue(0), cut)[0] == 0
    assert cut.topics == {}


def test_a_run_may_contain_a_thousand_tables(twin: ModuleType) -> None:
    targets = [Target(f"t{number}", number, 1) for number in range(1000)]
    cut = Cut()
    records = [record(target) for _ in range(3) for target in targets]
    queue, once = Queue(10_000), 1500
    at, _ = twin.produce_run(queue.produce, records, 0, lambda _topic: 2, cut, room=once, largest=10)
    assert at == once
    at, _ = twin.produce_run(queue.produce, records, at, lambda _topic: 2, cut, room=10_000, largest=10)
    assert at == 3000
    assert {(use.counts["c"], sum(use.produced.values())) for use in cut.topics.values()} == {(3, 3)}
