"""What SIGTERM and Ctrl-C order, once and again."""

import asyncio
import signal
import subprocess
import sys

import pytest

from consumer.cli.consume import SAME_ORDER, StopOrders
from tests.support.virtual_time import Clock


@pytest.fixture
def clock():
    return Clock(100.0)


@pytest.fixture
def left():
    return []


@pytest.fixture
def stop():
    return asyncio.Event()


@pytest.fixture
def orders(stop, clock, left):
    return StopOrders(stop, 25.0, clock=clock, leave=left.append)


def test_the_first_signal_stops_in_order(orders, stop, left):
    orders.heard("SIGTERM")

    assert stop.is_set()
    assert not left


def test_a_signal_heard_twice_at_once_is_one_order(orders, clock, left):
    orders.heard("SIGINT")
    clock.now += SAME_ORDER - 0.01
    orders.heard("SIGTERM")

    assert not left


def test_a_later_signal_leaves_at_once(orders, clock, left):
    orders.heard("SIGTERM")
    clock.now += SAME_ORDER
    orders.heard("SIGTERM")

    assert left == [130]


def test_a_stop_for_another_reason_is_no_signal_heard(orders, stop, left):
    stop.set()
    orders.heard("SIGTERM")

    assert not left


def test_a_parent_that_is_gone_stops_in_order_and_hurries_no_stop(orders, stop, clock, left):
    orders.orphaned()
    clock.now += SAME_ORDER - 0.01
    orders.heard("SIGTERM")
    orders.orphaned()

    assert (stop.is_set(), orders.is_orphan, left) == (True, True, [])
    clock.now += SAME_ORDER
    orders.heard("SIGTERM")  # somebody's own
    assert left == [130]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("name", "command", "module", "status"),
    [
        ("consume", "consumer.__main__", "consumer.cli.consume", 0),
        ("consume", "tidemark.__main__", "spark_jobs.cli", 0),
        ("publish", "tidemark.__main__", "spark_jobs.cli", 130),
        ("send", "tidemark.__main__", "spark_jobs.cli", 130),
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
