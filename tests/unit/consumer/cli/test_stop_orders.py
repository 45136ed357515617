"""What SIGTERM and Ctrl-C order, once and again."""

import asyncio
import signal
import subprocess
import sys

import pytest

from consumer.cli.consume import SAME_ORDER, StopOrders
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
