"""Answers that many want at the same time."""

import asyncio

import pytest

from tidemark.foundation.gathering import AskedOnce


class Source:
    def __init__(self) -> None:
        self.asked = 0
        self.error: Exception | None = None
        self.going_on = asyncio.Event()
        self.going_on.set()

    async def __call__(self) -> int:
        self.asked += 1
        await self.going_on.wait()
        if self.error is not None:
            raise self.error
        return self.asked


async def test_all_who_ask_at_once_get_one_answer_and_it_is_kept_for_a_while():
    once, source = AskedOnce(lambda _: 60.0), Source()

    answers = await asyncio.gather(*(once.get("a", source, now=0.0, age=10.0) for _ in range(100)))

    assert set(answers) == {1}
    assert await once.get("a", source, now=9.9, age=10.0) == 1
    assert await once.get("b", source, now=9.9, age=10.0) == 2
    assert await once.get("a", source, now=10.0, age=10.0) == 3
    assert await once.get("a", source, now=-3600.0, age=10.0) == 4


async def test_an_error_is_the_answer_for_as_long_as_it_says_but_not_for_who_wants_to_know_now():
    once, source = AskedOnce(lambda _: 60.0), Source()
    source.error = ValueError("no")

    for now in (0.0, 10.0, 59.0):
        with pytest.raises(ValueError, match="no"):
            await once.get("a", source, now=now, age=10.0)
    assert source.asked == 1
    source.error = None
    assert await once.get("a", source, now=59.0, age=0.0) == 2


async def test_who_gives_up_ends_the_asking_for_nobody_else():
    once, source = AskedOnce(lambda _: 60.0), Source()
    source.going_on.clear()
    first, second = (asyncio.create_task(once.get("a", source, now=0.0, age=10.0)) for _ in range(2))
    await asyncio.sleep(0)

    first.cancel()
    await asyncio.sleep(0)
    source.going_on.set()

    assert (await second, source.asked) == (1, 1)


async def test_closing_ends_what_is_being_asked():
    once, source = AskedOnce(lambda _: 60.0), Source()
    source.going_on.clear()
    waiting = asyncio.create_task(once.get("a", source, now=0.0, age=10.0))
    await asyncio.sleep(0)

    await once.aclose()

    with pytest.raises(asyncio.CancelledError):
        await waiting
