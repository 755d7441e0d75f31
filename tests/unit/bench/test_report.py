from bench import report
from tests.unit.bench.test_results import result


def test_a_line_for_each_contender() -> None:
    drain, slow = report.lines("orders", result())
    assert drain.split()[:5] == ["orders", "drain", "1,000", "1.00", "1.00"]
    assert slow.split()[:6] == ["orders", "slow", "250", "0.25", "0.50", "0.1"]
    assert slow.endswith("(200 to 500)")
    assert len(report.heading()) == len(drain.partition("   (")[0])
