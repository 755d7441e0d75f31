import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.avro.wire import Schema, header, normalise, schema_id
from pgsluice.registry.schema_record import MAX_ID, Registered, parse
from pgsluice.registry.store import SchemaStore

TEXT: Schema = {"type": "string"}
LONG: Schema = {"type": "long"}
INT: Schema = {"type": "int"}


def registered(store: SchemaStore, subject: str, schema: Schema, **postgres: object) -> Registered:
    """Register a schema as a writer does, but without writing to the topic."""
    record, new = store.propose(subject, schema, postgres or None)
    if new:
        store.add(record)
    return record


def entry(subject: str, version: int, identifier: int, schema: Schema) -> Registered:
    return Registered(subject, version, identifier, normalise(schema))


class TestPropose:
    def test_the_id_is_the_hash_of_the_schema(self) -> None:
        record, new = SchemaStore().propose("a", TEXT, None)
        assert new
        assert record == Registered("a", 1, schema_id(normalise(TEXT)), '{"type":"string"}', None)

    def test_a_proposal_changes_nothing(self) -> None:
        store = SchemaStore()
        store.propose("a", TEXT, None)
        assert store.subjects() == []

    def test_versions_count_up_within_a_subject(self) -> None:
        store = SchemaStore()
        versions = [registered(store, "a", schema).version for schema in (TEXT, LONG, INT)]
        assert versions == [1, 2, 3]
        assert registered(store, "b", INT).version == 1

    def test_a_known_schema_keeps_its_version(self) -> None:
        store = SchemaStore()
        first = registered(store, "a", TEXT)
        registered(store, "a", LONG)
        assert store.propose("a", TEXT, None) == (first, False)

    def test_the_notation_of_a_schema_does_not_matter(self) -> None:
        store = SchemaStore()
        first = registered(store, "a", {"type": "bytes", "logicalType": "decimal", "precision": 4})
        again = {"precision": 4, "logicalType": "decimal", "type": "bytes"}
        assert store.propose("a", again, None) == (first, False)

    def test_the_same_schema_has_the_same_id_in_every_subject(self) -> None:
        store = SchemaStore()
        assert registered(store, "a", TEXT).id == registered(store, "b", TEXT).id

    def test_another_description_of_the_table_does_not_make_a_new_version(self) -> None:
        store = SchemaStore()
        first = registered(store, "a", TEXT, typmod=24)
        record, new = store.propose("a", TEXT, {"typmod": 54})
        assert new
        assert (record.version, record.id, record.postgres) == (first.version, first.id, {"typmod": 54})
        store.add(record)
        assert store.propose("a", TEXT, {"typmod": 54}) == (record, False)
        assert store.versions("a") == [record]

    def test_the_description_is_kept_if_none_is_given(self) -> None:
        store = SchemaStore()
        first = registered(store, "a", TEXT, typmod=24)
        assert store.propose("a", TEXT, None) == (first, False)

    def test_descriptions_are_compared_as_they_are_read_back(self) -> None:
        store = SchemaStore()
        registered(store, "a", TEXT, typmods=[("name", 24)])
        assert not store.propose("a", TEXT, {"typmods": [["name", 24]]})[1]


class TestIdsOfAServer:
    def test_ids_of_a_server_are_recorded_as_they_are(self) -> None:
        store = SchemaStore()
        record, new = store.propose("a", TEXT, {"typmod": 1}, 17)
        assert new
        assert record == Registered("a", 1, 17, '{"type":"string"}', {"typmod": 1})
        store.add(record)
        assert store.propose("a", TEXT, {"typmod": 1}, 17) == (record, False)
        assert store.propose("a", TEXT, {"typmod": 2}, 17)[1]

    def test_another_id_is_another_version(self) -> None:
        """Both ids are kept, because earlier messages have the first id, and later messages have the second."""
        store = SchemaStore()
        first = registered(store, "a", TEXT)
        store.add(store.propose("a", TEXT, None, 17)[0])
        assert [(known.version, known.id) for known in store.versions("a")] == [(1, first.id), (2, 17)]
        assert store.propose("a", TEXT, None, first.id) == (first, False)
        assert store.propose("a", TEXT, None)[0].id == 17


class TestCollision:
    def test_a_collision_takes_the_next_free_id(self) -> None:
        store = SchemaStore()
        taken = schema_id(normalise(TEXT))
        store.add(entry("other", 1, taken, "int"))
        store.add(entry("other", 2, taken + 1, "long"))
        assert registered(store, "a", TEXT).id == taken + 2

    def test_the_last_id_is_followed_by_the_first(self) -> None:
        class Taken(dict[int, dict[str, Registered]]):
            """Claims that the last thousand ids are taken."""

            def __contains__(self, identifier: object) -> bool:
                return isinstance(identifier, int) and identifier >= MAX_ID - 1000

        store = SchemaStore()
        store._by_id = Taken()
        assert store._next_free(MAX_ID - 1000) == 1

    def test_an_id_that_was_chosen_after_a_collision_is_used_again(self) -> None:
        store = SchemaStore()
        store.add(entry("other", 1, schema_id(normalise(TEXT)), "int"))
        first = registered(store, "a", TEXT)
        reader = SchemaStore()
        reader.add(first)
        assert registered(reader, "b", TEXT).id == first.id

    @pytest.mark.parametrize(("subject", "topic"), [("b", "one"), ("a", "other")])
    def test_one_id_for_two_schemas_of_a_topic_or_a_subject_is_refused(self, subject: str, topic: str) -> None:
        store = SchemaStore()
        store.add(entry("a", 1, 5, "int"), "one")
        with pytest.raises(ValueError, match=f"id 5, here of subject '{subject}', stands for two schemas"):
            store.add(entry(subject, 2, 5, "long"), topic)

    def test_two_subjects_may_have_one_schema_with_one_id(self) -> None:
        store = SchemaStore()
        store.add(entry("a", 1, 5, "int"))
        store.add(entry("b", 1, 5, "int"))
        assert store.ambiguous() == []

    def test_the_subject_tells_schemas_of_several_prefixes_apart(self) -> None:
        store = SchemaStore()
        mine, theirs = entry("m", 1, 5, "int"), entry("t", 1, 5, "long")
        store.add(mine, "m.schemas")
        store.add(theirs, "t.schemas")
        assert store.ambiguous() == [5]
        assert store.uses(5) == [mine, theirs]
        assert store.uses(5, "t") == [theirs, mine]
        assert store.uses(5, "unknown") == [mine, theirs]


class TestTwoWriters:
    """Each writer took version 1 before it saw the other's record. The order in the topic decides."""

    FIRST, SECOND = entry("a", 1, 10, TEXT), entry("a", 1, 20, LONG)

    def conflict(self) -> SchemaStore:
        store = SchemaStore()
        store.add(self.FIRST)
        store.add(self.SECOND)
        return store

    def test_both_schemas_are_kept(self) -> None:
        store = self.conflict()
        assert [(known.version, known.id) for known in store.versions("a")] == [(1, 10), (2, 20)]
        assert [store.uses(10)[0].schema, store.uses(20)[0].schema] == [
            self.FIRST.schema,
            self.SECOND.schema,
        ]

    def test_reading_again_changes_nothing(self) -> None:
        store = self.conflict()
        before = store.versions("a")
        store.add(self.FIRST)
        store.add(self.SECOND)
        assert store.versions("a") == before

    def test_the_second_schema_has_to_be_recorded_again_under_its_new_version(self) -> None:
        store = SchemaStore()
        first, _ = store.propose("a", TEXT, None)
        second, _ = store.propose("a", LONG, None)
        store.add(first)
        store.add(second)
        assert store.propose("a", TEXT, None)[1] is False
        again, new = store.propose("a", LONG, None)
        assert new
        assert (again.version, again.id) == (2, second.id)
        store.add(again)
        assert store.propose("a", LONG, None) == (again, False)

    def test_after_compaction_every_reader_agrees(self) -> None:
        store = SchemaStore()
        store.add(self.FIRST)
        store.add(entry("a", 2, 20, LONG))
        assert store.versions("a") == self.conflict().versions("a")

    def test_the_version_of_a_schema_can_change(self) -> None:
        store = self.conflict()
        store.add(entry("a", 7, 20, LONG))
        assert [known.version for known in store.versions("a")] == [1, 7]
        assert store.propose("a", LONG, None)[1] is False


def test_an_empty_store_knows_nothing() -> None:
    store = SchemaStore()
    assert (store.subjects(), store.versions("a"), store.version("a", 1), store.uses(1)) == ([], [], None, [])
    assert store.max_id() == 0


def test_subjects_are_sorted_and_versions_oldest_first() -> None:
    store = SchemaStore()
    store.add(entry("b", 2, 4, "int"))
    store.add(entry("b", 1, 3, "long"))
    store.add(entry("a", 1, 9, "bytes"))
    assert store.subjects() == ["a", "b"]
    assert [known.id for known in store.versions("b")] == [3, 4]
    assert store.version("b", 2) == entry("b", 2, 4, "int")
    assert store.max_id() == 9


SCHEMAS: list[Schema] = [TEXT, LONG, INT, {"type": "bytes"}]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_a_reader_of_the_topic_knows_what_its_writers_know(
    steps: list[tuple[str, int, int]],
) -> None:
    """The writers have not read all earlier records, so versions collide, but no schema is lost.

    Each step gives the number of records that its writer has not read yet.
    """
    log: list[Registered] = []
    for subject, schema, behind in steps:
        writer = SchemaStore()
        for record in log[: max(0, len(log) - behind)]:
            writer.add(record)
        record, new = writer.propose(subject, SCHEMAS[schema], None)
        if new:
            log.append(record)
    reader, compacted = SchemaStore(), SchemaStore()
    for record in log:
        reader.add(record)
    for record in {record.key(): record for record in log}.values():
        compacted.add(record)
    for subject, schema, _ in steps:
        (known,) = (one for one in reader.versions(subject) if one.schema == normalise(SCHEMAS[schema]))
        assert known.id == schema_id(known.schema)
        assert compacted.uses(known.id, subject)[0].schema == known.schema


def test_the_schema_of_a_message_is_found_by_its_id() -> None:
    store = SchemaStore()
    record, _ = store.propose("a-value", {"type": "record", "name": "A", "fields": []}, None)
    text, _ = store.propose("a-key", "string", None)
    store.add(record)
    store.add(text)
    assert store.schema_of(header(record.id) + b"body") == {"type": "record", "name": "A", "fields": []}
    assert store.schema_of(header(text.id)) is None
    assert store.schema_of(header(record.id + 1)) is None
    assert store.schema_of(None) is None


def test_after_the_highest_version_the_lowest_free_one_is_used() -> None:
    """Another program may have written the highest possible version, and no version can follow it."""
    store = SchemaStore()
    store.add(Registered("a", MAX_ID, 7, '"long"'))
    store.add(Registered("a", 1, 8, '"int"'))
    record, _ = store.propose("a", "string", None)
    assert record.version == 2
    assert parse(record.value()) == record
    store.add(record)
    assert store.propose("a", "bytes", None)[0].version == 3


def test_the_versions_after_a_given_one_are_found() -> None:
    store = SchemaStore()
    assert (store.last("a"), store.ids_of("a", '"long"'), store.rearranged("a")) == (None, [], 0)
    for schema in ("int", "long", "string"):
        record, _ = store.propose("a", schema, None)
        store.add(record)
    assert [known.schema for known in store.versions("a", 1)] == ['"long"', '"string"']
    assert store.last("a") == record
    assert store.ids_of("a", '"long"') == [schema_id('"long"')]
    store.add(record)
    assert store.rearranged("a") == 0


@pytest.mark.parametrize(("version", "identifier"), [(1, 5), (7, 2)])
def test_versions_that_are_inserted_before_others_are_noticed(version: int, identifier: int) -> None:
    store = SchemaStore()
    for number in (2, 3):
        store.add(Registered("a", number, number, f'"{number}"'))
    before = store.rearranged("a")
    store.add(Registered("a", version, identifier, f'"{identifier}"'))
    assert store.rearranged("a") == before + 1
