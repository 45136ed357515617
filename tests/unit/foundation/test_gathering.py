"""Rounds: one place that does not answer costs its own answer, and nobody else's; in virtual time."""

import asyncio

import pytest

from tests.support.virtual_time import virtual_time
from tidemark.foundation.gathering import TRUST_AGAIN, NoAnswer, Rounds

HUNG = float("inf")


def everybody_at(key, item):
    return "one endpoint"


class Places:
    """Places that answer after a time each (`HUNG`: never), and the rounds that ask them."""

    def __init__(self, seconds, endpoint=lambda key, item: key, **options):
        self.seconds = dict(seconds)
        self.rounds = Rounds(20.0, endpoint, **options)
        self.began = []

    async def answer(self, key, seconds):
        self.began.append(key)
        await (asyncio.Event().wait() if seconds == HUNG else asyncio.sleep(seconds))
        return key

    async def ask(self):
        """What was answered, who was not, and how long the round took."""
        loop, self.began = asyncio.get_running_loop(), []
        begun = loop.time()
        found = await self.rounds.ask(self.seconds, self.answer)
        silent = {key: answer.why for key, answer in found.items() if isinstance(answer, NoAnswer)}
        return sorted(set(found) - set(silent)), silent, loop.time() - begun


def test_a_round_ends_with_what_is_there_and_says_what_is_not():
    places = Places({"quick": 1.0, "slow": 19.0, "hung": HUNG})
    with virtual_time() as run:
        answered, silent, took = run(places.ask())

    assert answered == ["quick", "slow"]
    assert silent == {"hung": "no answer within 20 s"}
    assert took == pytest.approx(20.0)


def test_who_did_not_answer_is_waited_for_less_until_it_answers_again():
    places = Places({"quick": 1.0, "hung": HUNG})

    async def rounds():
        took = [round((await places.ask())[2]) for _ in range(TRUST_AGAIN + 2)]
        places.seconds["hung"] = 10.0  # slow, and alive again: found out in a round that waits for it
        later = [await places.ask() for _ in range(TRUST_AGAIN)]
        return took, later

    with virtual_time() as run:
        took, later = run(rounds())

    assert took == [20, 5, 5, 5, 5, 20, 5]
    assert [len(silent) for _, silent, _ in later] == [1, 1, 1, 0, 0]


def test_many_that_hang_at_one_endpoint_hold_up_no_other_endpoint():
    seconds = {f"hung {i}": HUNG for i in range(300)} | {f"quick {i}": 0.1 for i in range(50)}
    places = Places(seconds, lambda key, item: key.split()[0])

    with virtual_time() as run:
        answered, silent, took = run(places.ask())

    assert len(answered) == 50
    assert len(silent) == 300
    assert took == pytest.approx(20.0)


def test_those_of_one_endpoint_who_were_not_asked_come_first_and_who_hang_come_last():
    seconds = {f"hung {i}": HUNG for i in range(3)} | {f"quick {i}": 0.1 for i in range(9)}
    places = Places(seconds, everybody_at, at_once=3)

    async def twice():
        return await places.ask(), await places.ask()

    with virtual_time() as run:
        (first, silent, _), (second, _, took) = run(twice())

    assert first == []
    assert silent["hung 0"] == "no answer within 20 s"
    assert "not asked" in silent["quick 0"]
    assert len(second) == 9
    assert [key.split()[0] for key in places.began] == ["quick"] * 9 + ["hung"] * 3
    assert took == pytest.approx(5.0)


def test_of_those_who_were_not_asked_the_longest_neglected_come_first():
    """Nine answer in a round, of thirty, and a tenth is cut off: soon all have answered, the last ones configured, too."""
    places = Places({f"p{number:02}": 2.1 for number in range(30)}, everybody_at, at_once=1)
    answered = set()
    with virtual_time() as run:
        for _ in range(5):
            answered |= set(run(places.ask())[0])

    assert answered == set(places.seconds)


def test_a_call_that_cannot_be_cancelled_is_left_behind_and_its_place_not_asked_again_meanwhile():
    released = asyncio.Event()
    begun = []

    async def stubborn(key, _item):
        begun.append(key)
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return key

    async def rounds():
        ask = Rounds(20.0, everybody_at).ask
        found = [await ask({"stubborn": 0}, stubborn) for _ in range(3)]
        released.set()
        await asyncio.sleep(1.0)
        return [*found, await ask({"stubborn": 0}, stubborn)]

    with virtual_time() as run:
        first, second, third, last = run(rounds())

    assert first["stubborn"] == NoAnswer("no answer within 20 s")
    assert "has not ended" in second["stubborn"].why
    assert second == third
    assert last == {"stubborn": "stubborn"}
    assert len(begun) == 2


@pytest.mark.parametrize("error", [ValueError("odd"), asyncio.CancelledError()])
def test_what_a_call_raises_is_its_own_answer(error):
    async def call(key, _item):
        if key == "odd":
            raise error
        return key

    with virtual_time() as run:
        found = run(Rounds(20.0, everybody_at).ask(dict.fromkeys(("odd", "even")), call))

    assert found["even"] == "even"
    assert type(error).__name__ in found["odd"].why


def test_the_end_of_the_process_is_no_answer_and_passes_through():
    class Killed(BaseException):
        pass

    async def call(key, _item):
        raise Killed

    with virtual_time() as run, pytest.raises(Killed):
        run(Rounds(20.0, everybody_at).ask({"one": 0}, call))


def test_a_round_that_is_cancelled_leaves_no_call_running():
    ended = []

    async def call(key, _item):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(key)

    async def cancelled():
        asking = asyncio.create_task(Rounds(20.0, everybody_at).ask({"one": 0, "two": 0}, call))
        await asyncio.sleep(1.0)
        asking.cancel()
        await asyncio.wait([asking])
        await asyncio.sleep(0.0)
        return asking.cancelled()

    with virtual_time() as run:
        assert run(cancelled())
    assert sorted(ended) == ["one", "two"]
