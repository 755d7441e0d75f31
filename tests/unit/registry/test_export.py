from collections.abc import Iterator

import pytest

from pgsluice.errors import ConfigError, UnavailableError
from pgsluice.registry.export import Exported, export
from pgsluice.registry.rest import RestOptions
from pgsluice.registry.schema_record import Registered
from pgsluice.registry.store import SchemaStore
from pgsluice.registry.subjects import Strategy
from tests.support.registry_server import Fault, RegistryServer

KEY = '{"fields":[{"name":"id","type":"int"}],"name":"Key","namespace":"shop.public.orders","type":"record"}'
WIDE = KEY.replace('"int"}', '"int"},{"name":"tenant","type":"int"}')
RECORDS = (
    Registered("shop.public.orders-key", 1, 2_000_000_000, KEY),
    Registered("shop.public.orders-key", 2, 5, WIDE),
    Registered("shop.transactions-key", 1, 70, '"string"'),
)


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        yield running


@pytest.fixture
def store() -> SchemaStore:
    filled = SchemaStore()
    for record in RECORDS:
        filled.add(record)
    return filled


async def run(server: RegistryServer, store: SchemaStore, strategy: Strategy = "topic") -> dict[str, Exported]:
    return await export(store, RestOptions(server.url), strategy)


async def test_every_schema_keeps_its_id(server: RegistryServer, store: SchemaStore) -> None:
    """All schemas are exported, even one that the registry would consider incompatible."""
    server.level = "FULL"
    assert await run(server, store) == {"shop.public.orders-key": (2, 0), "shop.transactions-key": (1, 0)}
    assert server.subjects["shop.public.orders-key"].schemas == {1: (2_000_000_000, KEY), 2: (5, WIDE)}
    assert server.ids == {2_000_000_000: KEY, 5: WIDE, 70: '"string"'}
    assert {one.mode for one in server.subjects.values()} == {None}


async def test_an_export_can_be_repeated(server: RegistryServer, store: SchemaStore) -> None:
    await run(server, store)
    assert await run(server, store) == {"shop.public.orders-key": (0, 2), "shop.transactions-key": (0, 1)}
    store.add(Registered("shop.transactions-key", 2, 71, '"long"'))
    assert (await run(server, store))["shop.transactions-key"] == (1, 1)
    assert server.subjects["shop.transactions-key"].schemas == {1: (70, '"string"'), 2: (71, '"long"')}


async def test_an_export_can_use_other_strategies(server: RegistryServer, store: SchemaStore) -> None:
    await run(server, store, "record")
    assert set(server.subjects) == {"shop.public.orders.Key", "shop.transactions-key"}


async def test_topics_of_one_table_share_a_subject_by_record(server: RegistryServer, store: SchemaStore) -> None:
    """If a rule has renamed a topic, the old and the new topic have the same schema. This schema is exported once."""
    store.add(Registered("shop.renamed-key", 1, 5, WIDE))
    assert (await run(server, store, "record"))["shop.public.orders.Key"] == (2, 0)
    assert server.subjects["shop.public.orders.Key"].schemas == {1: (2_000_000_000, KEY), 2: (5, WIDE)}


async def test_the_mode_of_a_subject_is_restored(server: RegistryServer, store: SchemaStore) -> None:
    server._subject("shop.transactions-key").mode = "READONLY"
    server.faults = [Fault("POST /subjects/shop.transactions-key/versions", status=403, body={"error_code": 403})]
    with pytest.raises(Exception, match="HTTP 403"):
        await run(server, store)
    assert server.subjects["shop.transactions-key"].mode == "READONLY"


async def test_an_id_that_the_server_uses_for_another_schema_is_reported(
    server: RegistryServer, store: SchemaStore
) -> None:
    server._place(server._subject("theirs"), 1, 5, '"int"')
    with pytest.raises(UnavailableError, match="uses id 5 for a schema of subject theirs"):
        await run(server, store)
    assert set(server.subjects) == {"theirs"}


@pytest.mark.parametrize("text", ['syntax = "proto3"; message A {}', '{"type":"object"}'])
async def test_an_id_that_the_server_uses_for_another_type_of_schema_is_reported(
    server: RegistryServer, store: SchemaStore, text: str
) -> None:
    """The registry may use the id for another type of schema, such as Protobuf or JSON Schema."""
    server._place(server._subject("theirs"), 1, 5, text)
    with pytest.raises(UnavailableError, match="uses id 5 for a schema of subject theirs"):
        await run(server, store)


async def test_a_server_that_does_not_import_is_reported(server: RegistryServer, store: SchemaStore) -> None:
    server.faults = [Fault("POST /subjects/.*/versions", status=200, body={"id": 1})]
    with pytest.raises(UnavailableError, match="gave id 1 to a schema that has id 2000000000 in messages"):
        await run(server, store)


async def test_a_server_that_does_not_change_its_mode_is_reported(server: RegistryServer, store: SchemaStore) -> None:
    refusal = {"error_code": 42205, "message": "Mode changes are not allowed"}
    server.faults = [Fault("PUT /mode", status=422, body=refusal)]
    with pytest.raises(ConfigError, match="Mode changes are not allowed"):
        await run(server, store)
