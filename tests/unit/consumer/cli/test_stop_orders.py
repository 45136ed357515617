"""What SIGTERM and Ctrl-C order, once and again."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

import tidemark.__main__ as tidemark_main
from consumer.cli import consume
from consumer.cli.consume import SAME_ORDER, LastResort, StopOrders
from consumer.errors import ShutdownError
from tests.support.virtual_time import Clock


@pytest.fixture
def orders():
    return StopOrders(asyncio.Event(), 25.0, clock=Clock(100.0), leave=[].append)


def left(orders):
    return orders.leave.__self__


@pytest.mark.parametrize(
    ("waits", "status"),
    [((), []), ((SAME_ORDER - 0.01,), []), ((SAME_ORDER,), [130])],
    ids=["once", "twice", "later"],
)
def test_the_first_signal_stops_in_order_and_a_later_one_leaves_at_once(orders, waits, status):
    orders.heard("SIGINT")
    for wait in waits:
        orders.clock.now += wait
        orders.heard("SIGTERM")

    assert (orders.stop.is_set(), left(orders)) == (True, status)


def test_a_stop_for_another_reason_is_no_signal_heard(orders):
    orders.stop.set()
    orders.heard("SIGTERM")

    assert left(orders) == []


def test_a_parent_that_is_gone_stops_in_order_and_hurries_no_stop(orders):
    orders.orphaned()
    orders.clock.now += SAME_ORDER - 0.01
    orders.heard("SIGTERM")
    orders.orphaned()

    assert (orders.stop.is_set(), orders.is_orphan, left(orders)) == (True, True, [])
    orders.clock.now += SAME_ORDER
    orders.heard("SIGTERM")  # somebody's own
    assert left(orders) == [130]


STUCK = """
import asyncio, os, time
from consumer.cli import consume
async def main():
    orders = consume.StopOrders(asyncio.Event(), 0.0, clock=time.monotonic, leave=print)
    consume._listen(orders, consume.LastResort(0.1, leave=os._exit), None, within=0.1)
    print("listening", flush=True)
    while True:  # code of the user's that does not return
        pass
asyncio.run(main())
"""


def test_a_process_whose_loop_is_held_up_leaves_all_the_same():
    started = subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout.readline() == "listening\n"
        started.send_signal(signal.SIGTERM)
        _, said = started.communicate(timeout=30)
    finally:
        started.kill()

    assert started.returncode == ShutdownError.exit_status
    assert "the shutdown did not end within 0.1 s, as where a transform does not return: leaving" in said


def test_a_process_whose_loop_is_held_up_leaves_soon_after_a_second_signal(monkeypatch):
    clock, waits = Clock(100.0), []
    monkeypatch.setattr(consume.time, "monotonic", clock)
    monkeypatch.setattr(consume.threading, "Timer", lambda wait, *_: waits.append(wait) or Mock())
    orders = LastResort(45.0, leave=print)
    for at in (100.0, 100.9, 102.0):
        clock.now = at
        orders.heard()

    assert waits == [45.0, SAME_ORDER]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("name", "command", "module", "status"),
    [
        ("consume", "consumer.__main__", "consumer.cli.consume", 0),
        ("consume", "tidemark.__main__", "tidemark.foundation.log.process", 0),
        ("publish", "tidemark.__main__", "tidemark.foundation.log.process", 130),
        ("send", "tidemark.__main__", "tidemark.foundation.log.process", 130),
    ],
)
def test_a_command_that_is_stopped_while_it_loads_says_so_and_ends_with_its_status(
    number, name, command, module, status
):
    """What it would load next waits for ever; nothing slow is loaded before."""
    program = f"""
import sys, types
class Slow(types.ModuleType):
    def __getattr__(self, name):
        print([each for each in ("typer", "rich", "azure", "sqlalchemy") if each in sys.modules], flush=True)
        import time
        for _ in range(600):
            time.sleep(0.1)  # a signal between two lines is heard after the call that follows
sys.modules["{module}"] = Slow("{module}")
sys.argv = ["tidemark", "{name}"]
import {command} as main
(main.run if hasattr(main, "run") else main.main)()
"""
    started = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout.readline() == "[]\n"
        started.send_signal(number)
        _, said = started.communicate(timeout=30)
    finally:
        started.kill()

    assert (started.returncode, said) == (status, "stopped before anything was begun\n")


LOADING = """
import sys, types
class Slow(types.ModuleType):
    def __getattr__(self, name):
        print("loading", flush=True)
        import time
        for _ in range(600):
            time.sleep(0.1)
sys.modules["tidemark.foundation.log.process"] = Slow("tidemark.foundation.log.process")
sys.argv = ["tidemark", "status"]
import tidemark.__main__ as main
main.main()
"""


@pytest.mark.parametrize("ignored", [False, True], ids=["heeded", "ignored"])
def test_ctrl_c_ends_a_command_that_still_loads_without_a_traceback_unless_it_is_ignored(ignored):
    """As a shell lets what it starts in the background ignore it."""
    program = (
        f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{LOADING}" if ignored else LOADING
    )
    started = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout.readline() == "loading\n"
        started.send_signal(signal.SIGINT)
        if ignored:
            with pytest.raises(subprocess.TimeoutExpired):
                started.wait(timeout=0.5)
            started.send_signal(signal.SIGTERM)
        _, said = started.communicate(timeout=30)
    finally:
        started.kill()

    assert (started.returncode, said) == (-signal.SIGTERM if ignored else 130, "")


@pytest.mark.parametrize("command", ["schema", "--help"])
def test_an_output_that_finds_no_room_is_one_line(command):
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "tidemark", command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert ended.returncode == 1
    assert ended.stderr == "error: what the command writes finds no room: No space left on device\n"


def test_ctrl_c_interrupts_a_command_that_has_loaded(monkeypatch):
    """`history pull` says then where it goes on."""
    heard = []
    monkeypatch.setattr("sys.argv", ["tidemark", "history"])
    monkeypatch.setattr(
        "tidemark.__main__.command_line", lambda _: lambda: heard.append(signal.getsignal(signal.SIGINT))
    )
    # A process starts so. A worker of the tests may have a Spark session, which has its own.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        tidemark_main.main()
    finally:
        signal.signal(signal.SIGINT, before)

    assert heard == [signal.default_int_handler]
