"""Work that a cancelled caller waits for."""

import asyncio

import pytest

from tidemark.publisher.cancellation import cancel_count, finish_before_cancelling


class Work:
    def __init__(self):
        self.began, self.may_end = asyncio.Event(), asyncio.Event()
        self.ended = None

    async def do(self):
        self.began.set()
        try:
            await self.may_end.wait()
            self.ended = "by itself"
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # it tidies up
            self.ended = "cancelled"
            raise
        return 7


async def begun(work, grace):
    seen = []

    async def caller():
        before = cancel_count()
        seen.append(await finish_before_cancelling(work.do(), grace))
        seen.append(cancel_count() - before)

    task = asyncio.create_task(caller())
    await work.began.wait()
    return task, seen


async def test_a_cancelled_caller_gets_the_result_and_can_tell_that_it_was_cancelled():
    work = Work()
    task, seen = await begun(work, 60.0)

    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    work.may_end.set()
    await task

    assert seen == [7, 1]


async def test_nobody_cancelled_means_a_count_of_nothing():
    work = Work()
    task, seen = await begun(work, 60.0)

    work.may_end.set()
    await task

    assert seen == [7, 0]


@pytest.mark.parametrize(("grace", "times"), [(0.0, 1), (60.0, 2)])
async def test_after_the_grace_or_a_second_cancellation_the_work_is_cancelled_and_has_ended(grace, times):
    work = Work()
    task, seen = await begun(work, grace)

    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (work.ended, seen) == ("cancelled", [])


async def test_what_the_work_raises_is_raised():
    async def fail():
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await finish_before_cancelling(fail())
