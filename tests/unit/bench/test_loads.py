import pytest

from bench.loads import LOADS, ORDERS_COLUMNS, Load, columns


def test_each_load_is_found_by_its_key() -> None:
    assert [key for key, load in LOADS.items() if key != load.key] == []
    assert [load.key for load in LOADS.values() if load.rows % load.per_transaction] == []


def test_a_table_has_the_requested_number_of_columns_with_different_names() -> None:
    for count in (5, ORDERS_COLUMNS, 200):
        names = ["id", *(name for name, _, _ in columns(count))]
        assert len(set(names)) == count


def test_columns_of_orders_are_the_first_ones() -> None:
    assert [name for name, _, _ in columns(12)][-3:] == ["tag", "customer_1", "amount_1"]


@pytest.mark.parametrize(("factor", "rows", "per"), [(1.0, 1000, 20), (0.1, 100, 20), (0.001, 1, 1), (2.0, 2000, 20)])
def test_scaled_loads_have_whole_transactions(factor: float, rows: int, per: int) -> None:
    scaled = Load("x", "", 1000, 20, columns(5)).scaled(factor)
    assert (scaled.rows, scaled.per_transaction) == (rows, per)


def test_a_load_with_one_transaction_still_has_one_when_it_is_scaled() -> None:
    scaled = LOADS["million"].scaled(0.01)
    assert scaled.rows == scaled.per_transaction == 10_000


def test_opening_has_one_row_for_each_table() -> None:
    load = LOADS["tables-10"]
    tables = [statement.split()[2] for statement in load.opening()]
    assert tables == ["orders", *(f"orders_{number}" for number in range(1, 10))]
    assert all(f" {table} (" in "".join(load.setup()) for table in tables)


def test_rows_are_written_to_the_tables_in_turn_in_several_transactions() -> None:
    lines = LOADS["tables-10"].write().splitlines()[1:-1]
    assert [line.split()[2] for line in lines[:2]] == ["orders", "orders_1"]
    assert len(lines) == 10
    assert "IF g % 20 = 0 THEN COMMIT" in lines[0]


def test_a_load_of_updates_first_creates_its_rows_with_replica_identity_full() -> None:
    setup = " ".join(LOADS["update-full"].setup())
    assert "REPLICA IDENTITY FULL" in setup
    assert "generate_series(1, 150000)" in setup
    assert LOADS["update-full"].write().count("UPDATE orders") == 1


def test_a_table_is_filled_by_one_statement() -> None:
    load = LOADS["orders-20"]
    assert load.fill("orders", 5) == load.row(1).replace("generate_series(1, 1)", "generate_series(1, 5)")


def test_long_texts_are_stored_without_compression() -> None:
    assert "ALTER TABLE orders ALTER body SET STORAGE EXTERNAL" in LOADS["text-100k"].setup()
