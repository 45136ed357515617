"""The loop of blocking callers: it runs in the first one's thread, and goes on without it."""

import asyncio
import os
import signal
import threading
import time

import pytest

from tidemark.publisher.event_hubs.sync_producer import SharedLoop


@pytest.fixture
def loop():
    loop = SharedLoop()
    yield loop
    loop.close()


async def thread_of(seconds=0.0):
    await asyncio.sleep(seconds)
    return threading.current_thread()


def test_a_call_runs_in_the_thread_of_its_caller(loop):
    assert loop.run(thread_of()) is threading.current_thread()


def test_calls_of_several_threads_overlap_and_outlive_the_one_that_ran_the_loop(loop):
    begun, found = time.monotonic(), []
    threads = [
        threading.Thread(target=lambda seconds=seconds: found.append(loop.run(thread_of(seconds))))
        for seconds in (0.05, 0.2, 0.2, 0.2, 0.2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 5
    assert time.monotonic() - begun < 0.8  # one after the other they take 0.85 s, and one thread ran them all


def test_tasks_go_on_while_nobody_calls(loop):
    async def begin():
        done = threading.Event()
        asyncio.get_running_loop().call_later(0.001, done.set)
        return done

    assert loop.run(begin()).wait(5)


def test_within_a_running_loop_another_thread_runs_the_call(loop):
    async def within():
        return loop.run(thread_of())

    assert asyncio.run(within()) is not threading.current_thread()


def test_an_interrupt_cancels_the_call_and_is_raised_once_that_has_ended(loop):
    ended = []

    async def work():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.01)
            ended.append("in order")

    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    assert ended == ["in order"]
    assert loop.run(thread_of()) is threading.current_thread()


def test_an_exception_of_the_programs_own_handler_ends_the_call_too(loop):
    ended = threading.Event()

    def handler(*_):
        raise RuntimeError("the program's own")

    async def work():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(30)
        finally:
            ended.set()

    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(RuntimeError, match="own"):
            loop.run(work())
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.wait(5)
