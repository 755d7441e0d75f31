from sandbox.demo.shop import ACTS, Transaction


def test_a_statement_alone_needs_no_begin() -> None:
    assert str(Transaction(["TRUNCATE carts"])) == "TRUNCATE carts;"


def test_transactions_are_shown_as_they_are_typed() -> None:
    assert str(Transaction(["TRUNCATE a", "TRUNCATE b"])) == "BEGIN;\nTRUNCATE a;\nTRUNCATE b;\nCOMMIT;"
    assert str(Transaction(["TRUNCATE a"], rolled_back=True)) == "BEGIN;\nTRUNCATE a;\nROLLBACK;"


def test_the_end_of_every_act_can_be_awaited() -> None:
    assert not any(act.transactions[-1].rolled_back for act in ACTS)
