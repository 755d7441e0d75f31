"""The errors that follow when Kafka refuses records. tests/integration/test_poison.py makes Kafka refuse records."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, Message

from pgsluice.dead_letter import MAX_KEY_BYTES, DeadLetter, Reason, Refused, SourceChange
from pgsluice.errors import ConfigError, PgsluiceError, PoisonError
from pgsluice.kafka import refusals as module
from pgsluice.kafka.refusals import RecordInspector, Refusals

TOPIC, OTHER = "shop.public.orders", "shop.public.logs"
TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large")
NO_KEY = KafkaError(KafkaError.INVALID_RECORD, "no key")
ORIGIN = SourceChange("public", "orders", "c", 1, 16, 0, 700, 0, ("id",))
KEY = b"row data"


def origin(key: bytes | None, value: bytes) -> SourceChange | None:
    """Return the change whose seq is the value's first character, or None if this character is not a digit."""
    return replace(ORIGIN, seq=int(value[:1]), key_columns=("id",) if key else ()) if value[:1].isdigit() else None


def refusals(limits: Mapping[str, int | None] | None = None) -> Refusals:
    known = limits or {}
    return Refusals(RecordInspector(origin, known.get, "shop.dead_letters"))


def message(seq: object, size: int, topic: str = TOPIC, key: bytes | None = KEY) -> Message:
    return Message(topic=topic, partition=2, key=key, value=str(seq).encode().ljust(size, b"x"))


def verdict(*reports: tuple[KafkaError, Message], limits: Mapping[str, int | None] | None = None) -> PgsluiceError:
    found = refusals(limits)
    assert not found
    for report in reports:
        found.add(*report)
    assert found
    error = found.verdict()
    assert KEY.decode() not in str(error)
    return error


def letters(error: PgsluiceError) -> dict[int, DeadLetter]:
    """Return the dead letters in an error of refused records. The keys are the seqs of the changes."""
    assert isinstance(error, Refused)
    return {letter.origin.seq: letter for letter in error.letters}


class TestTooLarge:
    def test_the_message_names_the_record_its_size_and_the_remedy(self) -> None:
        error = verdict((TOO_LARGE, message(0, 2000)), limits={TOPIC: 1000})
        assert str(error) == (
            "Kafka cannot take a record for shop.public.orders [2] (key 8 bytes, value 2000 bytes), a change of table "
            "public.orders (key: id; epoch 1, LSN 0/10, seq 0): it is larger than the topic's max.message.bytes "
            "(1000), even after compression. "
            'Raise max.message.bytes, exclude the table, or set delivery.poison = "dead_letter".'
        )
        detail = "larger than the topic's max.message.bytes, even after compression"
        assert letters(error) == {
            0: DeadLetter(ORIGIN, TOPIC, Reason.RECORD_TOO_LARGE, detail, KEY, 2008, 1000),
        }

    def test_a_batch_is_refused_with_all_its_records(self) -> None:
        sizes = {0: 10, 1: 2000, 2: 30, 3: 1500}
        error = verdict(*((TOO_LARGE, message(*one)) for one in sizes.items()), limits={TOPIC: 1000})
        assert set(letters(error)) == {1, 3}
        assert "value 2000 bytes" in str(error)

    def test_the_limit_applies_to_the_whole_batch(self) -> None:
        """A batch takes 61 bytes in addition to its records.

        Besides key and value, the record contains its own length, four more bytes, and the lengths of key and value.
        """
        whole = 61 + 2 + 4 + 1 + 2 + len(KEY) + 500
        assert set(letters(verdict((TOO_LARGE, message(0, 500)), limits={TOPIC: whole - 1}))) == {0}
        assert type(verdict((TOO_LARGE, message(0, 500)), limits={TOPIC: whole})) is ConfigError

    def test_if_no_record_is_too_large_the_batch_is(self) -> None:
        error = verdict(*((TOO_LARGE, message(n, 400)) for n in range(5)), limits={TOPIC: 1000})
        assert type(error) is ConfigError
        assert "shop.public.orders [2]" in str(error)
        assert "Set batch.size under kafka.client to 1000 or less" in str(error)

    def test_with_an_unknown_limit_the_largest_record_is_named(self) -> None:
        reports = [(TOO_LARGE, message(0, 10)), (TOO_LARGE, message(1, 2000)), (TOO_LARGE, message(2, 30, OTHER))]
        error = verdict(*reports)
        assert {seq: letter.limit for seq, letter in letters(error).items()} == {1: None, 2: None}
        assert "Raise the topic's max.message.bytes" in str(error)

    def test_a_record_that_is_too_large_is_found_before_it_is_sent(self) -> None:
        what = "the {limit} bytes that the producer may hold: raise delivery.inflight_max"
        error = refusals().too_large((TOPIC, 2), None, b"0".ljust(2000), 1000, what)
        assert str(error) == (
            "Kafka cannot take a record for shop.public.orders [2] (key 0 bytes, value 2000 bytes), a change of table "
            "public.orders (epoch 1, LSN 0/10, seq 0): it is larger than the 1000 bytes that the producer may hold: "
            'raise delivery.inflight_max, exclude the table, or set delivery.poison = "dead_letter".'
        )
        (letter,) = letters(error).values()
        assert (letter.reason, letter.key, letter.size, letter.limit) == (Reason.RECORD_TOO_LARGE, None, 2000, 1000)

    def test_a_very_large_key_is_not_kept(self) -> None:
        error = verdict((TOO_LARGE, message(0, 1, key=bytes(MAX_KEY_BYTES + 1))), limits={TOPIC: 1000})
        assert letters(error)[0].key is None
        assert letters(error)[0].size == MAX_KEY_BYTES + 2


def test_the_reason_of_a_refusal_is_named() -> None:
    error = verdict((NO_KEY, message(0, 10, key=None)))
    assert "no key (INVALID_RECORD). A topic with cleanup.policy=compact takes no record without key" in str(error)
    assert "a change of table public.orders (epoch 1, LSN 0/10, seq 0)" in str(error)
    (letter,) = letters(error).values()
    assert (letter.reason, letter.detail, letter.key) == (Reason.REFUSED, "no key (INVALID_RECORD)", None)


def test_records_that_are_too_large_or_invalid_become_dead_letters() -> None:
    error = verdict((NO_KEY, message(0, 10)), (TOO_LARGE, message(1, 2000)), limits={TOPIC: 1000})
    assert {seq: letter.reason for seq, letter in letters(error).items()} == {
        0: Reason.REFUSED,
        1: Reason.RECORD_TOO_LARGE,
    }


@pytest.mark.parametrize("refused", [message("cut record", 2000, "shop.transactions"), Message(TOPIC, key=KEY)])
def test_a_refused_record_that_is_not_a_change_stops_the_process(refused: Message) -> None:
    assert type(verdict((TOO_LARGE, refused))) is PoisonError


def test_a_refused_dead_letter_stops_the_process() -> None:
    error = verdict((TOO_LARGE, message(0, 2000, "shop.dead_letters")), limits={"shop.dead_letters": 1000})
    assert type(error) is PoisonError
    assert str(error).startswith("A dead letter was refused as well. Kafka cannot take a record for shop.dead_letters")


def test_the_number_of_dead_letters_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFUSALS_MAX", 2)
    error = verdict(*((NO_KEY, message(n, 10)) for n in range(5)))
    assert set(letters(error)) == {0, 1}
