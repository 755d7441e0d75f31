"""Types of columns that the settings choose: where one cannot be, pgsluice stops, and the way out loses nothing."""

from typing import Any

from tests.support.kafka import read_committed
from tests.support.weather import Start


def rules(**types: str) -> dict[str, dict[str, Any]]:
    return {"tables": {"rules": [{"match": "public.orders", "types": types}]}}


def test_a_choice_that_is_not_possible_any_more_stops_until_it_is_changed(start: Start) -> None:
    pipeline = start(rules(amount="decimal(20,4)"))
    with pipeline.database.connect() as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, amount numeric)")
        connection.execute("INSERT INTO orders VALUES (1, 1.5)")
        pipeline.wait_until_confirmed()
        connection.execute("ALTER TABLE orders ALTER amount TYPE text")
        connection.execute("INSERT INTO orders VALUES (2, 'two')")
    assert pipeline.daemon.wait() == 78
    log = pipeline.daemon.log_text()
    assert "table public.orders: column amount of type text cannot be decimal(20,4), as `types`" in log
    assert "write one of string, or leave it out" in log
    pipeline.daemon.settings |= rules(**{"amoun?": "decimal(20,4)"})
    pipeline.daemon.start()
    pipeline.wait_until_confirmed()
    assert len(list(read_committed(pipeline.kafka, f"{pipeline.daemon.name}.public.orders"))) == 2
