"""Tests all types of the servers with hundreds of values. `python -m tests.types` tests more values."""

from collections.abc import Callable

import psycopg
import pytest

from pgsluice.avro import text
from pgsluice.avro.binary import encode_bytes
from sandbox.postgres import Database
from tests.support.versions import long
from tests.types.proof import prove

COUNT = 40


@pytest.mark.parametrize("version", [10, *long(14), 18])
async def test_values_arrive_as_the_servers_text(new_database: Callable[[int], Database], version: int) -> None:
    outcome = await prove(new_database(version), seed=1, count=COUNT)
    assert outcome.problems == []


@pytest.mark.parametrize("version", [10, 18])
def test_both_output_formats_of_bytea_are_read(new_database: Callable[[int], Database], version: int) -> None:
    with psycopg.connect(new_database(version).conninfo()) as connection:
        for output in ("hex", "escape"):
            connection.execute(f"SET bytea_output = {output}".encode())
            for value in (b"", bytes(range(256)), b"\\\\'\n", "größer".encode()):
                result = connection.execute("SELECT %s::bytea", [value]).pgresult
                assert result is not None
                assert text.bytea(result.get_value(0, 0) or b"") == encode_bytes(value)
