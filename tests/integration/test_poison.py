"""Tests what becomes of changes that Kafka or Avro cannot accept.

Such changes stop pgsluice with a message, or become dead letters.
"""

import random
import time
from typing import Any, ClassVar

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from sandbox.kafka import Kafka
from tests.support.kafka import admin, read_committed
from tests.support.weather import Pipeline, Start, wait_until

LIMIT = 20_000
MODES = ["exactly_once", "at_least_once"]
SMALL_TOPICS = {
    "topics": {"partitions": 1, "config": {"max.message.bytes": str(LIMIT)}},
    "client": {"batch.size": LIMIT},
}

INSERT = "INSERT INTO texts VALUES (%s, %s)"


def settings(mode: str, poison: str = "dead_letter", **delivery: str) -> dict[str, dict[str, Any]]:
    return {"delivery": {"mode": mode, "poison": poison, **delivery}, "kafka": SMALL_TOPICS}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def large() -> str:
    """Return a text that stays large even if it is compressed."""
    return random.randbytes(LIMIT).hex()


def with_texts(pipeline: Pipeline) -> Pipeline:
    with pipeline.database.connect() as connection:
        connection.execute("CREATE TABLE texts (n int PRIMARY KEY, t text)")
        connection.execute("ALTER TABLE texts ALTER t SET STORAGE EXTERNAL")
    return pipeline


def insert(pipeline: Pipeline, *rows: tuple[int, str]) -> None:
    """Insert rows in one transaction."""
    with pipeline.database.connect() as connection, connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(INSERT, rows)


def read(pipeline: Pipeline, name: str) -> list[tuple[Any, dict[str, Any], Message]]:
    """Return the decoded key, the decoded value and the message of each record in the topic ``<prefix>.<name>``."""
    topic = f"{pipeline.daemon.name}.{name}"
    with SchemaRegistryClient({"url": pipeline.daemon.url}) as registry:
        decode = AvroDeserializer(registry)

        def part(data: bytes | None, field: MessageField) -> Any:  # noqa: ANN401 - whatever the schema defines
            return decode(data, SerializationContext(topic, field))

        return [
            (part(one.key(), MessageField.KEY), part(one.value(), MessageField.VALUE), one)
            for one in read_committed(pipeline.kafka, topic)
        ]


def numbers(pipeline: Pipeline) -> list[int]:
    pipeline.wait_until_confirmed()
    return [value["after"]["n"] for _, value, _ in read(pipeline, "public.texts")]


def dead_letters(pipeline: Pipeline) -> list[dict[str, Any]]:
    found = read(pipeline, "dead_letters")
    assert all(key == value["topic"] for key, value, _ in found)
    return [value for _, value, _ in found]


def cut_with(pipeline: Pipeline, lsn: int) -> dict[str, Any]:
    """Return the last cut record whose cut contains the transaction at ``lsn``."""
    found = [value for _, value, _ in read(pipeline, "transactions") if value["first_lsn"] is not None]
    return [value for value in found if value["first_lsn"] <= lsn <= value["last_lsn"]][-1]


def counts(cut: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {entry["topic"].rpartition(".")[2]: entry["counts"] for entry in cut["topics"] if entry["counts"]}


def configure(pipeline: Pipeline, name: str, setting: str, value: str) -> None:
    """Change a setting of a topic while pgsluice runs."""
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    topic = f"{pipeline.daemon.name}.{name}"
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    client = admin(pipeline.kafka)
    client.incremental_alter_configs([resource])[resource].result(30)


class TestARecordTooLarge:
    def test_a_record_too_large_stops_the_daemon_with_a_sentence(self, start: Start, mode: str) -> None:
        pipeline = with_texts(start(settings(mode, "stop")))
        insert(pipeline, (1, "small"))
        pipeline.wait_until_confirmed()
        text = large()
        insert(pipeline, (2, "small"), (3, text), (4, "small"))
        assert pipeline.daemon.wait() == 65
        log = pipeline.daemon.log_text()
        assert f"{pipeline.daemon.name}.public.texts [0] (key 6 bytes, value " in log
        assert "a change of table public.texts (key: n; epoch 1, LSN " in log
        assert f", seq 1): it is larger than the topic's max.message.bytes ({LIMIT}), even after compression" in log
        assert text[:20] not in log

    def test_a_dead_letter_replaces_a_record_too_large_in_the_same_cut(self, start: Start, mode: str) -> None:
        pipeline = with_texts(start(settings(mode)))
        insert(pipeline, (1, "small"))
        insert(pipeline, (2, "small"), (3, large()), (4, "small"))
        insert(pipeline, (5, "small"))
        found = numbers(pipeline)
        assert list(dict.fromkeys(found)) == [1, 2, 4, 5]
        assert len(found) == 4 or mode == "at_least_once"
        (letter,) = dead_letters(pipeline)
        sent = {value["after"]["n"]: value for _, value, _ in read(pipeline, "public.texts")}
        position = {name: sent[2][name] for name in ("epoch", "lsn", "xid", "ts")}
        assert letter["key"][-1] == 3 * 2  # Avro encodes the integer 3 as the byte 6
        assert letter["size"] > 2 * LIMIT
        del letter["key"], letter["size"]
        assert letter == {
            "schema": "public",
            "table": "texts",
            "op": "c",
            "topic": f"{pipeline.daemon.name}.public.texts",
            "limit": LIMIT,
            "reason": "record_too_large",
            "detail": "larger than the topic's max.message.bytes, even after compression",
            "seq": 1,
            **position,
        }
        assert sent[4]["seq"] == 2
        cut = cut_with(pipeline, letter["lsn"])
        assert counts(cut)["dead_letters"] == {"dead_letter": 1}
        assert pipeline.daemon.metric("pgsluice_dead_letters_total") == 1
        assert "dead letter" in pipeline.daemon.log_text()

    def test_many_records_too_large_become_dead_letters(self, start: Start, mode: str) -> None:
        pipeline = with_texts(start(settings(mode)))
        insert(pipeline, *((n, large() if n % 5 == 0 else "small") for n in range(1, 31)))
        insert(pipeline, (31, "small"))
        assert list(dict.fromkeys(numbers(pipeline))) == [n for n in range(1, 32) if n % 5]
        assert [letter["seq"] for letter in dead_letters(pipeline)][-6:] == [4, 9, 14, 19, 24, 29]

    def test_a_large_transaction_may_contain_a_dead_letter(self, start: Start, mode: str) -> None:
        pipeline = with_texts(start(settings(mode, cut_bytes="64KiB")))
        rows = [(n, large() if n == 1500 else "small" * 10) for n in range(1, 3001)]
        insert(pipeline, *rows)
        insert(pipeline, (3001, "small"))
        found = numbers(pipeline)
        assert sorted(set(found)) == [n for n in range(1, 3002) if n != 1500]
        assert len(found) == 3000 or mode == "at_least_once"
        letter = dead_letters(pipeline)[-1]
        cut = cut_with(pipeline, letter["lsn"])
        assert cut["transactions"] == 1
        assert counts(cut) == {"dead_letters": {"dead_letter": 1}, "texts": {"c": 2999}}

    def test_a_dead_letter_replaces_a_delete_and_its_tombstone(self, start: Start) -> None:
        given = settings("exactly_once") | {"tables": {"tombstones": True}}
        pipeline = with_texts(start(given))
        with pipeline.database.connect() as connection:
            connection.execute("ALTER TABLE texts REPLICA IDENTITY FULL")
        insert(pipeline, (1, large()))
        with pipeline.database.connect() as connection:
            connection.execute("DELETE FROM texts")
        insert(pipeline, (2, "small"))
        assert numbers(pipeline) == [2]
        assert [letter["op"] for letter in dead_letters(pipeline)] == ["c", "d"]

    def test_small_records_that_kafka_refuses_in_large_batches_are_a_wrong_setting(self, start: Start) -> None:
        given = settings("exactly_once")
        given["kafka"] = {"topics": SMALL_TOPICS["topics"], "client": {"compression.type": "none"}}
        pipeline = with_texts(start(given))
        insert(pipeline, *((n, "small" * 200) for n in range(50)))
        assert pipeline.daemon.wait() == 78
        assert "set batch.size under kafka.client to 20000 or less" in pipeline.daemon.log_text()

    def test_dead_letters_are_written_once_in_spite_of_kills(self, start: Start) -> None:
        pipeline = with_texts(start(settings("exactly_once")))
        for n in range(1, 41, 4):
            insert(pipeline, (n, "small"), (n + 1, large()), (n + 2, "small"))
            insert(pipeline, (n + 3, "small"))
            if n % 3 == 0:
                pipeline.daemon.kill()
                pipeline.daemon.start()
        assert numbers(pipeline) == [n for n in range(1, 41) if n % 4 != 2]
        assert len(dead_letters(pipeline)) == 10


def test_a_record_larger_than_the_requests_that_a_broker_accepts_is_not_sent(start: Start) -> None:
    with Kafka(settings={"socket.request.max.bytes": "200000"}) as kafka:
        given = settings("exactly_once")
        given["kafka"] = {"topics": {"partitions": 1, "config": {"max.message.bytes": "10000000"}}}
        pipeline = with_texts(start(given, broker=kafka))
        insert(pipeline, (1, "small"), (2, "x" * 300_000), (3, "small"))
        assert numbers(pipeline) == [1, 3]
        (letter,) = dead_letters(pipeline)
        assert (letter["reason"], letter["limit"]) == ("record_too_large", 200_000 - 1024)
        assert "socket.request.max.bytes" in letter["detail"]


def test_a_timestamp_that_the_topic_does_not_accept_is_refused(start: Start, mode: str) -> None:
    given = settings(mode)
    given["kafka"] = {**SMALL_TOPICS, "timestamp": "commit"}
    pipeline = with_texts(start(given))
    insert(pipeline, (1, "small"))
    pipeline.wait_until_confirmed()
    assert pipeline.daemon.stop() == 0
    insert(pipeline, (2, "small"), (3, "small"))
    time.sleep(1.5)
    configure(pipeline, "public.texts", "message.timestamp.before.max.ms", "1000")
    pipeline.daemon.start()
    assert numbers(pipeline) == [1]
    letters = dead_letters(pipeline)
    assert {(one["seq"], one["reason"], one["limit"]) for one in letters} == {
        (0, "refused", None),
        (1, "refused", None),
    }
    assert all("INVALID_" in one["detail"] for one in letters)


def test_a_table_whose_topic_was_made_compacted_goes_into_quarantine_in_the_next_session(start: Start) -> None:
    """Every row of the table would be refused because of the topic's setting, although the rows are valid."""
    pipeline = start(settings("exactly_once"))
    with pipeline.database.connect() as connection:
        connection.execute("CREATE TABLE keyless (n int)")
        connection.execute("INSERT INTO keyless VALUES (1)")
        pipeline.wait_until_confirmed()
        configure(pipeline, "public.keyless", "cleanup.policy", "compact")
        connection.execute("INSERT INTO keyless VALUES (2)")
    wait_until(lambda: pipeline.daemon.status()["quarantined"], "the table to be in quarantine")
    (entry,) = pipeline.daemon.status()["quarantined"]
    assert entry["table"] == "public.keyless"
    assert "keyless has cleanup.policy=compact, but truncates or rows without a key go to it" in entry["reason"]


class TestAKeyThatAvroCannotHold:
    SQL = "CREATE TABLE amounts (n int PRIMARY KEY, amount numeric(10,2)); ALTER TABLE amounts REPLICA IDENTITY FULL"
    KEYS: ClassVar = {"tables": {"rules": [{"match": "public.amounts", "keys": ["amount"]}]}}

    def test_a_key_that_avro_cannot_hold_stops_the_daemon_with_a_sentence(self, start: Start) -> None:
        pipeline = start(settings("exactly_once", "stop") | self.KEYS)
        with pipeline.database.connect() as connection:
            connection.execute(self.SQL)
            connection.execute("INSERT INTO amounts VALUES (1, 1.50), (2, NULL)")
        assert pipeline.daemon.wait() == 65
        log = pipeline.daemon.log_text()
        assert "A change of table public.amounts (key: amount; epoch 1, LSN " in log
        assert ", seq 1) cannot be written: key column amount is null." in log

    def test_a_dead_letter_replaces_a_key_that_avro_cannot_hold(self, start: Start) -> None:
        pipeline = start(settings("exactly_once") | self.KEYS)
        with pipeline.database.connect() as connection:
            connection.execute(self.SQL)
            connection.execute("INSERT INTO amounts VALUES (1, 1.50), (2, 'NaN'), (3, NULL), (4, 4)")
            connection.execute("UPDATE amounts SET amount = NULL WHERE n = 1")
            connection.execute("UPDATE amounts SET amount = 3 WHERE n = 3")
        pipeline.wait_until_confirmed()
        ops = [(value["op"], value["seq"]) for _, value, _ in read(pipeline, "public.amounts")]
        assert ops == [("c", 0), ("c", 3), ("d", 0), ("c", 1)]
        letters = dead_letters(pipeline)
        assert [(one["op"], one["seq"], one["reason"]) for one in letters] == [
            ("c", 1, "key_not_representable"),
            ("c", 2, "key_not_representable"),
            ("c", 1, "key_not_representable"),
            ("d", 0, "key_not_representable"),
        ]
        assert letters[0]["detail"].startswith("key column amount has a value outside its Avro type")
        assert (letters[0]["key"], letters[0]["size"], letters[0]["limit"]) == (None, None, None)
        cut = cut_with(pipeline, letters[0]["lsn"])
        assert counts(cut)["dead_letters"]["dead_letter"] >= 2


UNFIT = {
    "numeric(10,2)": ("1.50", "NaN"),
    "date": ("2020-01-01", "0001-12-31 BC"),
    "time": ("12:00", "24:00"),
    "timestamp": ("2020-01-01 00:00", "10000-01-01 00:00"),
    "timestamptz": ("2020-01-01 00:00+00", "4714-11-24 00:00+00 BC"),
    "int[]": ("{1,NULL}", "{{1}}"),
    "date[]": ("{2020-01-01}", "{infinity}"),
    "interval": ("1 day", "1 month"),
}
"""Maps each type of a key to a value that an Avro key can represent, and a value that it cannot represent."""


@pytest.mark.parametrize("binary", [False, True])
def test_every_value_that_a_key_cannot_represent_becomes_a_dead_letter(start: Start, *, binary: bool) -> None:
    """An update that changes the key consists of a delete and an insert.

    If the old key cannot be represented, the delete is a dead letter. If the new key cannot be represented, the insert
    is a dead letter. An update that keeps a key that cannot be represented is itself a dead letter.
    """
    rules = [{"match": f"public.t{len(UNFIT) - 1}", "types": {"k": "interval-micros"}}]
    given = settings("exactly_once") | {"tables": {"rules": rules}, "postgres": {"binary": binary}}
    pipeline = start(given)
    with pipeline.database.connect() as connection:
        for number, (kind, (good, bad)) in enumerate(UNFIT.items()):
            connection.execute(f"CREATE TABLE t{number} (k {kind} PRIMARY KEY, v int)".encode())
            connection.execute(f"INSERT INTO t{number} VALUES ('{good}'), ('{bad}')".encode())
            connection.execute(f"UPDATE t{number} SET v = 1 WHERE k = '{bad}'".encode())
            connection.execute(f"DELETE FROM t{number} WHERE k = '{bad}'".encode())
            connection.execute(f"UPDATE t{number} SET k = '{bad}'".encode())
            connection.execute(f"UPDATE t{number} SET k = '{good}'".encode())
    pipeline.wait_until_confirmed()
    letters: dict[str, list[str]] = {}
    for letter in dead_letters(pipeline):
        assert letter["reason"] == "key_not_representable"
        letters.setdefault(letter["table"], []).append(letter["op"])
    for number in range(len(UNFIT)):
        assert letters[f"t{number}"] == ["c", "u", "d", "c", "d"], UNFIT
        ops = [(value["op"], value["flags"]) for _, value, _ in read(pipeline, f"public.t{number}")]
        assert ops == [("c", []), ("d", ["key_change"]), ("c", ["key_change"])]


def test_a_refused_dead_letter_stops_the_daemon(start: Start) -> None:
    pipeline = with_texts(start(settings("exactly_once")))
    configure(pipeline, "dead_letters", "max.message.bytes", "100")
    insert(pipeline, (1, "small"), (2, large()))
    assert pipeline.daemon.wait() == 65
    assert "A dead letter was refused as well." in pipeline.daemon.log_text()
