from sandbox.demo.shop import ACTS, Transaction


def test_a_single_statement_is_shown_without_begin() -> None:
    assert str(Transaction(["TRUNCATE carts"])) == "TRUNCATE carts;"


def test_transactions_are_shown_as_they_are_typed() -> None:
    assert str(Transaction(["TRUNCATE a", "TRUNCATE b"])) == "BEGIN;\nTRUNCATE a;\nTRUNCATE b;\nCOMMIT;"
    assert str(Transaction(["TRUNCATE a"], rolled_back=True)) == "BEGIN;\nTRUNCATE a;\nROLLBACK;"


def test_no_act_ends_with_a_rollback_so_its_end_can_be_awaited() -> None:
    assert not any(act.transactions[-1].rolled_back for act in ACTS)
