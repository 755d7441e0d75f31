import pytest

from bench.contenders import pause_s


@pytest.mark.parametrize(
    ("elapsed_s", "done", "seconds"),
    [
        (1.0, 0, 0.06),  # nothing is known of how long it will take
        (10.0, 0, 0.15),
        (1.0, 500, 0.25),  # far from the end
        (1.0, 900, 1 / 18),  # half of what is left
        (1.0, 999, 0.01),
    ],
)
def test_questions_are_rare_until_the_end_is_near(elapsed_s: float, done: int, seconds: float) -> None:
    assert pause_s(elapsed_s, done, 1000) == pytest.approx(seconds)
