import json
from typing import Any
from urllib.parse import quote

import pytest

from pgsluice.avro.wire import Schema, normalise, schema_id
from pgsluice.registry.api import Answer, answer
from pgsluice.registry.schema_record import Registered
from pgsluice.registry.store import SchemaStore

KEY: Schema = {"type": "record", "name": "Key", "namespace": "s.p.orders", "fields": [{"name": "id", "type": "int"}]}
VALUES: list[Schema] = [
    {"type": "record", "name": "Envelope", "namespace": "s.p.orders", "fields": [{"name": "op", "type": kind}]}
    for kind in ("string", "bytes")
]
SUBJECTS: dict[str, list[Schema]] = {
    "s.p.orders-key": [KEY],
    "s.p.orders-value": VALUES,
    "s.p.copy-value": VALUES[:1],
    "s.p.Über größe/50 % + more-value": [KEY],
}
ODD = "s.p.Über größe/50 % + more-value"
V1, V2 = (schema_id(normalise(schema)) for schema in VALUES)


@pytest.fixture(scope="module")
def store() -> SchemaStore:
    store = SchemaStore()
    for subject, schemas in SUBJECTS.items():
        for schema in schemas:
            store.add(store.propose(subject, schema, {"kept": "to ourselves"})[0])
    store.complete = True
    return store


def get(store: SchemaStore, target: str, method: str = "GET") -> Answer:
    path, _, query = target.partition("?")
    return answered(store, method, path, dict(part.split("=") for part in query.split("&") if part), b"")


def post(store: SchemaStore, path: str, schema: object, **fields: object) -> Answer:
    body = json.dumps({"schema": schema if isinstance(schema, str) else json.dumps(schema), **fields})
    return answered(store, "POST", path, {"normalize": "False", "deleted": "False"}, body.encode())


def answered(store: SchemaStore, method: str, path: str, query: dict[str, str], body: bytes) -> Answer:
    found = answer(store, method, path, query, body)
    return found if isinstance(found, Answer) else found()


def error(status: int, code: int, message: str) -> Answer:
    return Answer(status, {"error_code": code, "message": message})


class TestById:
    def test_a_schema_is_returned_as_a_text(self, store: SchemaStore) -> None:
        assert get(store, f"/schemas/ids/{V1}") == Answer(200, {"schema": normalise(VALUES[0])})

    @pytest.mark.parametrize(
        "query",
        [
            "fetchMaxId=false",
            "fetchMaxId=false&subject=s.p.orders-value",
            "subject=unheard-of",
            "format=resolved",
            "format=&reference_format=&findTags=true",
            "deleted=true",
        ],
    )
    def test_parameters_that_clients_add_to_a_schema_request_are_accepted(self, store: SchemaStore, query: str) -> None:
        assert get(store, f"/schemas/ids/{V1}?{query}") == Answer(200, {"schema": normalise(VALUES[0])})

    def test_the_largest_id_is_returned_on_request(self, store: SchemaStore) -> None:
        body = get(store, f"/schemas/ids/{V1}?fetchMaxId=true").body
        assert body == {"schema": normalise(VALUES[0]), "maxId": store.max_id()}

    def test_a_bare_schema_can_be_requested(self, store: SchemaStore) -> None:
        assert get(store, f"/schemas/ids/{V1}/schema") == Answer(200, VALUES[0])

    def test_subjects_and_versions_of_a_schema_are_returned(self, store: SchemaStore) -> None:
        copy, orders = {"subject": "s.p.copy-value", "version": 1}, {"subject": "s.p.orders-value", "version": 1}
        assert get(store, f"/schemas/ids/{V1}/versions") == Answer(200, [copy, orders])
        assert get(store, f"/schemas/ids/{V1}/subjects") == Answer(200, ["s.p.copy-value", "s.p.orders-value"])

    def test_versions_of_a_schema_can_be_limited_to_a_subject(self, store: SchemaStore) -> None:
        query = "subject=s.p.orders-value"
        assert get(store, f"/schemas/ids/{V1}/versions?{query}").body == [{"subject": "s.p.orders-value", "version": 1}]
        assert get(store, f"/schemas/ids/{V1}/subjects?{query}").body == ["s.p.orders-value"]
        assert get(store, f"/schemas/ids/{V1}/subjects?subject=unheard-of").body == []

    def test_nothing_was_ever_deleted(self, store: SchemaStore) -> None:
        assert get(store, f"/schemas/ids/{V1}/subjects?deletedOnly=true").body == []

    def test_a_subject_chooses_between_schemas_that_share_an_id(self) -> None:
        store = SchemaStore()
        store.add(Registered("a", 1, 7, '"int"'), "one")
        store.add(Registered("b", 1, 7, '"long"'), "other")
        store.complete = True
        assert get(store, "/schemas/ids/7?subject=b").body == {"schema": '"long"'}
        assert get(store, "/schemas/ids/7/schema?subject=a").body == "int"
        for unclear in ("", "/schema", "?subject=c"):
            refused = get(store, f"/schemas/ids/7{unclear}")
            assert refused.status == 409
            assert "different schemas in the subjects a, b: add ?subject=" in str(refused.body)
        assert get(store, "/schemas/ids/7/subjects").body == ["a", "b"]

    @pytest.mark.parametrize("part", ["", "/schema", "/versions", "/subjects"])
    def test_an_unknown_schema_id_is_not_found_yet(self, store: SchemaStore, part: str) -> None:
        """The client knows the id, probably from a message, so the schema may still arrive."""
        body = {"error_code": 40403, "message": "Schema 1 not found"}
        assert get(store, f"/schemas/ids/1{part}") == Answer(404, body, early=True)

    @pytest.mark.parametrize("wanted", ["0", "-1", "x", "٣", "99999999999", "2147483648"])
    @pytest.mark.parametrize("part", ["", "/schema", "/versions", "/subjects"])
    def test_an_impossible_schema_id_is_not_found(self, store: SchemaStore, wanted: str, part: str) -> None:
        found = get(store, f"/schemas/ids/{quote(wanted)}{part}")
        assert found == error(404, 40403, f"Schema {wanted} not found")

    @pytest.mark.parametrize("part", ["", "/ids"])
    def test_schemas_have_no_guids(self, store: SchemaStore, part: str) -> None:
        guid = "89791762-2336-4186-9674-299b90a802e2"
        assert get(store, f"/schemas/guids/{guid}{part}") == error(404, 40403, f"Schema {guid} not found")

    def test_all_schemas_are_avro(self, store: SchemaStore) -> None:
        assert get(store, "/schemas/types") == Answer(200, ["AVRO"])


class TestSubjects:
    def test_subjects_are_listed(self, store: SchemaStore) -> None:
        assert get(store, "/subjects") == Answer(200, sorted(SUBJECTS))

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("deleted=true", sorted(SUBJECTS)),
            ("deletedOnly=true", []),
            ("subjectPrefix=:*:", sorted(SUBJECTS)),
            ("subjectPrefix=:*:s.p.c", ["s.p.copy-value"]),
            ("subjectPrefix=:.:s.p.orders", ["s.p.orders-key", "s.p.orders-value"]),
            ("subjectPrefix=s.p.orders-v", ["s.p.orders-value"]),
            ("subjectPrefix=:other:", []),
            ("offset=0&limit=-1", sorted(SUBJECTS)),
            ("offset=1&limit=2", sorted(SUBJECTS)[1:3]),
            ("offset=9", []),
            ("limit=many", sorted(SUBJECTS)),
        ],
    )
    def test_subjects_are_listed_by_prefix_and_page(self, store: SchemaStore, query: str, expected: list[str]) -> None:
        assert get(store, f"/subjects?{query}").body == expected


class TestVersions:
    def test_versions_are_listed(self, store: SchemaStore) -> None:
        assert get(store, "/subjects/s.p.orders-value/versions") == Answer(200, [1, 2])

    def test_parameters_that_clients_add_to_a_version_request_are_accepted(self, store: SchemaStore) -> None:
        query = "deleted=false&deleted_only=false&offset=0&limit=-1"
        assert get(store, f"/subjects/s.p.orders-value/versions?{query}").body == [1, 2]

    @pytest.mark.parametrize(("wanted", "version"), [("1", 1), ("2", 2), ("latest", 2), ("-1", 2)])
    def test_a_version_is_returned(self, store: SchemaStore, wanted: str, version: int) -> None:
        assert get(store, f"/subjects/s.p.orders-value/versions/{wanted}?deleted=true") == Answer(
            200,
            {
                "subject": "s.p.orders-value",
                "version": version,
                "id": [V1, V2][version - 1],
                "schema": normalise(VALUES[version - 1]),
            },
        )

    @pytest.mark.parametrize("encoded", [quote(ODD, safe=""), quote(ODD, safe="+").replace("%2F", "%2f")])
    def test_subject_names_are_percent_encoded(self, store: SchemaStore, encoded: str) -> None:
        body: Any = get(store, f"/subjects/{encoded}/versions/latest").body
        assert body["subject"] == ODD

    @pytest.mark.parametrize("part", ["", "/1", "/latest"])
    def test_an_unknown_subject_has_no_versions(self, store: SchemaStore, part: str) -> None:
        found = get(store, f"/subjects/a%2Fb/versions{part}")
        assert found == error(404, 40401, "Subject 'a/b' not found.")

    def test_an_unknown_version_is_not_found(self, store: SchemaStore) -> None:
        found = get(store, "/subjects/s.p.orders-value/versions/3")
        assert found == error(404, 40402, "Version 3 not found.")

    @pytest.mark.parametrize("wanted", ["0", "-2", "first", "1.0", "2147483648"])
    def test_an_invalid_version_is_refused(self, store: SchemaStore, wanted: str) -> None:
        found = get(store, f"/subjects/s.p.orders-value/versions/{wanted}")
        message = (
            f"The specified version '{wanted}' is not a valid version id. "
            'Allowed values are between [1, 2^31-1] and the string "latest"'
        )
        assert found == error(422, 42202, message)


class TestLookUp:
    def test_a_look_up_finds_the_version_of_a_schema(self, store: SchemaStore) -> None:
        assert post(store, "/subjects/s.p.orders-value", VALUES[1], schemaType="AVRO", references=[]) == Answer(
            200, {"subject": "s.p.orders-value", "version": 2, "id": V2, "schema": normalise(VALUES[1])}
        )

    def test_a_look_up_finds_a_schema_that_another_library_printed(self, store: SchemaStore) -> None:
        printed = (
            '{"type":"record","name":"Envelope","namespace":"s.p.orders",'
            '"fields":[{"name":"op","type":{"type":"bytes"}}]}'
        )
        body: Any = post(store, "/subjects/s.p.orders-value", printed).body
        assert body["version"] == 2

    def test_a_look_up_in_an_unknown_subject_fails(self, store: SchemaStore) -> None:
        found = post(store, "/subjects/unheard-of", VALUES[0])
        assert found == error(404, 40401, "Subject 'unheard-of' not found.")

    def test_a_look_up_of_an_unknown_schema_fails(self, store: SchemaStore) -> None:
        found = post(store, "/subjects/s.p.copy-value", VALUES[1])
        assert found == error(404, 40403, "Schema not found")

    @pytest.mark.parametrize(
        ("schema", "fields", "complaint"),
        [
            ("", {}, "Expecting value"),
            ("{", {}, "Expecting property name"),
            ("string", {}, "Expecting value"),
            ('"text"', {}, "unknown type 'text'"),
            ('{"type":"record"}', {}, "None is not a name"),
            ("[" * 100_000, {}, "it is nested too deeply"),
            ('"string"', {"schemaType": "PROTOBUF"}, "type 'PROTOBUF'; all schemas here are AVRO"),
        ],
    )
    @pytest.mark.parametrize("path", ["/subjects/s.p.copy-value", "/subjects/unheard-of/versions"])
    def test_a_look_up_of_an_invalid_schema_is_refused(
        self, store: SchemaStore, path: str, schema: str, fields: dict[str, object], complaint: str
    ) -> None:
        found = post(store, path, schema, **fields)
        body: Any = found.body
        assert (found.status, body["error_code"]) == (422, 42201)
        assert complaint in body["message"]

    def test_a_schema_that_is_not_sent_as_a_text_is_refused(self, store: SchemaStore) -> None:
        found = answered(store, "POST", "/subjects/s.p.copy-value", {}, b'{"schema":{"type":"string"}}')
        assert found == error(422, 42201, "Invalid schema: not a string")

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b"{}", b'"schema"', b"\xff", b"[" * 100_000])
    def test_a_broken_look_up_is_refused(self, store: SchemaStore, body: bytes) -> None:
        found = answered(store, "POST", "/subjects/s.p.copy-value", {}, body)
        assert found == error(400, 400, 'The body is not a JSON object with a "schema"')


class TestRegister:
    def test_registering_a_known_schema_returns_its_id(self, store: SchemaStore) -> None:
        assert post(store, "/subjects/s.p.orders-value/versions", VALUES[1]) == Answer(200, {"id": V2})

    def test_any_other_schema_is_refused_as_in_read_only_mode(self, store: SchemaStore) -> None:
        found = post(store, "/subjects/s.p.copy-value/versions", VALUES[1])
        body: Any = found.body
        assert (found.status, body["error_code"]) == (422, 42205)
        assert body["message"].startswith("Subject 's.p.copy-value' does not have this schema, and only pgsluice can")
        assert body["message"].endswith("(this registry is in READONLY mode).")


class TestSettings:
    def test_the_registry_has_settings(self, store: SchemaStore) -> None:
        assert get(store, "/config") == Answer(200, {"compatibilityLevel": "NONE"})
        assert get(store, "/mode") == Answer(200, {"mode": "READONLY"})

    def test_a_subject_has_no_settings(self, store: SchemaStore) -> None:
        message = "Subject 'a b' does not have subject-level compatibility configured"
        assert get(store, "/config/a%20b") == error(404, 40408, message)
        assert get(store, "/config/a%20b?defaultToGlobal=false") == error(404, 40408, message)
        message = "Subject 'a b' does not have subject-level mode configured"
        assert get(store, "/mode/a%20b") == error(404, 40409, message)

    def test_the_settings_of_the_registry_apply_to_subjects(self, store: SchemaStore) -> None:
        assert get(store, "/config/a?defaultToGlobal=true") == Answer(200, {"compatibilityLevel": "NONE"})
        assert get(store, "/mode/a?defaultToGlobal=True") == Answer(200, {"mode": "READONLY"})


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/config"),
        ("PUT", "/config/a"),
        ("DELETE", "/config/a"),
        ("PUT", "/mode"),
        ("PUT", "/mode/a"),
        ("DELETE", "/subjects/s.p.orders-value"),
        ("DELETE", "/subjects/s.p.orders-value/versions/1"),
    ],
)
def test_nothing_can_be_changed(store: SchemaStore, method: str, path: str) -> None:
    found = get(store, path, method)
    body: Any = found.body
    assert (found.status, body["error_code"]) == (422, 42205)
    assert "cannot be changed or deleted" in body["message"]


@pytest.mark.parametrize("path", ["/subjects", "/subjects/", "subjects"])
def test_slashes_around_a_path_do_not_matter(store: SchemaStore, path: str) -> None:
    assert get(store, path).status == 200


def test_the_root_is_an_empty_object(store: SchemaStore) -> None:
    assert get(store, "/") == Answer(200, {})


def test_head_is_answered_as_get(store: SchemaStore) -> None:
    assert get(store, "/subjects", "HEAD") == get(store, "/subjects")


@pytest.mark.parametrize("path", ["/nothing", "/subjects/a/b", "/schemas", "/schemas/ids", "/contexts", "/livez"])
def test_unknown_paths_are_not_found(store: SchemaStore, path: str) -> None:
    assert get(store, path) == error(404, 404, "HTTP 404 Not Found")


@pytest.mark.parametrize("path", ["/schemas/ids/1", "/subjects", "/subjects/a/versions/1"])
def test_until_all_schemas_are_read_the_answer_is_503(path: str) -> None:
    """Clients try again after a 503, but not after a 404."""
    found = get(SchemaStore(), path)
    assert found == error(503, 503, "The schemas have not been read from Kafka yet: try again")


def test_the_answer_to_a_wrong_method_names_the_allowed_methods(store: SchemaStore) -> None:
    refusal = {"error_code": 405, "message": "HTTP 405 Method Not Allowed"}
    assert get(store, "/subjects", "POST") == Answer(405, refusal, ("GET",))
    assert get(store, "/subjects/a", "GET") == Answer(405, refusal, ("POST", "DELETE"))
    assert get(store, "/", "OPTIONS") == Answer(405, refusal, ("GET",))
