"""Signs of life of a session, and the times that count as silence."""

import asyncio

from pgsluice.pipeline.vitals import Vitals

SHORT_S = 0.02


async def test_silence_lasts_until_the_next_sign_of_life() -> None:
    vitals = Vitals()
    await asyncio.sleep(SHORT_S)
    assert vitals.silent_s >= SHORT_S
    before = vitals.silent_s
    vitals.beat()
    assert vitals.silent_s < before


async def test_waiting_for_others_is_not_silence_and_ends_with_a_sign_of_life() -> None:
    vitals = Vitals()
    await asyncio.sleep(SHORT_S)
    before = vitals.silent_s
    with vitals.waiting():
        with vitals.waiting():
            pass
        assert vitals.silent_s == 0.0
    assert vitals.silent_s < before
