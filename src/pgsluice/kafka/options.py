"""The options of a sink, and the format of its cut records. ``app.wiring`` and ``app.daemon`` create them.

``tests/unit/kafka/test_sink.py`` covers this module.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pgsluice.dead_letter import SourceChange
from pgsluice.kafka.ledger import OffsetPrediction
from pgsluice.kafka.producer import ProducerOptions
from pgsluice.kafka.topic_spec import TopicSpec

Mode = Literal["exactly_once", "at_least_once"]


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a sink.

    The sink writes and reads the checkpoints of ``pipeline``. ``snapshots_topic`` is None if no tables are loaded, and
    ``commands_topic`` is None if no commands are accepted. If ``accept_changed_topics`` is set, a session continues
    with topics that have changed since the last session. All sessions of the process share ``prediction``.

    If there are already ``topics_max`` topics besides the service topics, no further topic of a table is created.
    ``reserved_topics`` are the topics of tables that the settings name. They are counted even before they are created.
    """

    producer: ProducerOptions
    transactions_topic: TopicSpec
    checkpoint_topic: TopicSpec
    pipeline: str
    mode: Mode = "exactly_once"
    dead_letters_topic: TopicSpec | None = None
    snapshots_topic: TopicSpec | None = None
    commands_topic: TopicSpec | None = None
    accept_changed_topics: bool = False
    topics_max: int = 10_000
    reserved_topics: frozenset[str] = frozenset()
    prediction: OffsetPrediction = field(default_factory=OffsetPrediction)


@dataclass(frozen=True, slots=True)
class CutFormat:
    """The format of cut records: their key, their encoder and their decoder.

    The decoder raises ValueError for a record that is not a cut record. ``origin_of`` takes the key and the value of
    a record with a change, and returns the change, or None if the record cannot be read.
    """

    key: bytes
    encode: Callable[[dict[str, Any]], bytes]
    decode: Callable[[bytes], Mapping[str, Any]]
    origin_of: Callable[[bytes | None, bytes], SourceChange | None] = lambda _key, _value: None
