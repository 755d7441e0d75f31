"""Explains why Kafka refused records for their content. The error names the change, the limit, and what to do.

The producers use this module, because Kafka reports refusals to them. The sink gives each producer a RecordInspector.
If a batch is too large, Kafka refuses all its records. Only the topic's limit shows which of them are too large.

https://kafka.apache.org/documentation/#messageformat
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError, Message

from pgsluice.avro.binary import encode_long
from pgsluice.dead_letter import MAX_KEY_BYTES, DeadLetter, Reason, Refused, SourceChange
from pgsluice.errors import ConfigError, PgsluiceError, PoisonError
from pgsluice.kafka.client import failure

_TOO_LARGE: Final = frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE))

FOR_CONTENT: Final = _TOO_LARGE | {KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP}
"""The errors that the content of a record causes. They occur again whenever the record is sent again."""

REFUSALS_MAX: Final = 1000
"""At most this many refused records are kept. Kafka will refuse the other records again in the next session."""

_BATCH_OVERHEAD_BYTES: Final = 61
_FIXED_FIELDS_BYTES: Final = 4
"""The size of four fields of a record that is alone in its batch: attributes, timestamp delta, offset delta,
and the number of headers."""

_WAY_OUT: Final = 'exclude the table, or set delivery.poison = "dead_letter"'


@dataclass(frozen=True, slots=True)
class RecordInspector:
    """Looks up the change in a refused record, and the limit of its topic.

    ``origin_of`` takes a record's key and value, and returns the change that they come from. ``limit_of`` takes a
    topic, and returns its max.message.bytes. Each returns None if it cannot find the change or the limit.
    """

    origin_of: Callable[[bytes | None, bytes], SourceChange | None]
    limit_of: Callable[[str], int | None]
    dead_letters_topic: str | None = None


@dataclass(frozen=True, slots=True)
class _Record:
    topic: str
    partition: int
    key: bytes | None
    sizes: tuple[int, int]
    """The sizes of key and value."""
    origin: SourceChange | None
    error: KafkaError | None = None

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def batch_bytes(self) -> int:
        """The size, before compression, of a batch with only this record. Kafka's limit applies to whole batches."""
        lengths = sum(len(encode_long(size)) for size in self.sizes)
        body = _FIXED_FIELDS_BYTES + lengths + self.size
        return _BATCH_OVERHEAD_BYTES + len(encode_long(body)) + body

    def __str__(self) -> str:
        change = f", a change of {self.origin}" if self.origin is not None else ""
        sizes = "key {} bytes, value {} bytes".format(*self.sizes)
        return f"a record for {self.topic} [{self.partition}] ({sizes}){change}"


@dataclass(slots=True)
class Refusals:
    """The refusals of one producer, from the first refusal to the verdict that ends the producer."""

    inspector: RecordInspector
    _found: list[_Record] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, error: KafkaError, message: Message) -> None:
        """Add a record that was refused for its content."""
        if len(self._found) < REFUSALS_MAX:
            self._found.append(
                self._record(message.topic(), message.partition(), message.key(), message.value(), error)
            )

    def verdict(self) -> PgsluiceError:
        """Return the error that follows from the refusals."""
        culprits, limits = self._culprits()
        if not culprits:
            one = max(self._found, key=lambda record: record.size)
            limit = limits[one.topic]
            return ConfigError(
                f"Kafka refuses a batch of records for {one.topic} [{one.partition}] as too large, although each "
                f"record is within the topic's max.message.bytes ({limit}). Set batch.size under kafka.client to "
                f"{limit} or less."
            )
        letters = [self._letter(record, limits.get(record.topic)) for record in culprits]
        return self._refused(culprits[0], _sentence(culprits[0], limits.get(culprits[0].topic)), letters)

    def too_large(
        self, partition: tuple[str, int], key: bytes | None, value: bytes, limit: int, what: str
    ) -> PgsluiceError:
        """Return the error for a record that is too large to be sent.

        ``what`` describes the limit that the record exceeds, with a remedy.
        """
        record = self._record(*partition, key, value)
        detail = f"larger than {what.format(limit=limit)}"
        letter = self._dead(record, Reason.RECORD_TOO_LARGE, detail, limit)
        return self._refused(record, f"Kafka cannot take {record}: it is {detail}, {_WAY_OUT}.", [letter])

    def _record(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, error: KafkaError | None = None
    ) -> _Record:
        origin = self.inspector.origin_of(key, value) if value is not None else None
        kept = key if key is not None and len(key) <= MAX_KEY_BYTES else None
        return _Record(topic, partition, kept, (len(key or b""), len(value or b"")), origin, error)

    def _culprits(self) -> tuple[list[_Record], dict[str, int | None]]:
        """Return the records that caused the refusal, and the limits of topics whose records were too large.

        The records that are too large come first, sorted by size, with the largest first.
        """
        large = sorted(filter(_is_too_large, self._found), key=lambda record: record.size, reverse=True)
        limits = {topic: self.inspector.limit_of(topic) for topic in {record.topic for record in large}}
        named: set[str] = set()
        culprits = []
        for record in large:
            limit = limits[record.topic]
            # If the limit is unknown, take the largest record of the topic, because at least one record is too large.
            if record.batch_bytes > limit if limit is not None else record.topic not in named:
                culprits.append(record)
                named.add(record.topic)
        return [*culprits, *(record for record in self._found if not _is_too_large(record))], limits

    def _refused(self, first: _Record, sentence: str, letters: Sequence[DeadLetter | None]) -> PgsluiceError:
        found = [letter for letter in letters if letter is not None]
        if first.topic == self.inspector.dead_letters_topic:
            return PoisonError(f"A dead letter was refused as well. {sentence}")
        return Refused(sentence, found) if found else PoisonError(sentence)

    def _letter(self, record: _Record, limit: int | None) -> DeadLetter | None:
        if _is_too_large(record):
            return self._dead(
                record,
                Reason.RECORD_TOO_LARGE,
                "larger than the topic's max.message.bytes, even after compression",
                limit,
            )
        assert record.error is not None, "Kafka's report has an error"
        return self._dead(record, Reason.REFUSED, f"{record.error.str()} ({record.error.name()})", None)

    def _dead(self, record: _Record, reason: Reason, detail: str, limit: int | None) -> DeadLetter | None:
        if record.origin is None:
            return None
        return DeadLetter(record.origin, record.topic, reason, detail, record.key, record.size, limit)


def _is_too_large(record: _Record) -> bool:
    return record.error is not None and record.error.code() in _TOO_LARGE


def _sentence(record: _Record, limit: int | None) -> str:
    assert record.error is not None, "Kafka's report has an error"
    if limit is None or not _is_too_large(record):
        return str(failure(record.error, f"Writing {record}"))
    return (
        f"Kafka cannot take {record}: it is larger than the topic's max.message.bytes ({limit}), even after "
        f"compression. Raise max.message.bytes, {_WAY_OUT}."
    )
