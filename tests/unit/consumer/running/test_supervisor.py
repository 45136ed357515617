"""The parent of worker processes, on processes that are none."""

import io
import itertools
import signal
import subprocess

import pytest

from consumer.running.supervisor import _Fleet
from consumer.running.worker import Worker


class FakeProcess:
    started = ()

    def __init__(self, command, stdin):
        assert stdin == subprocess.PIPE
        self.worker = Worker.parse(command[command.index("--worker") + 1])
        self.pid, self.status, self.heard = 100 + len(FakeProcess.started), None, []
        self.stdin = io.BytesIO()
        FakeProcess.started.append(self)

    def poll(self):
        return self.status

    def send_signal(self, number):
        self.heard.append(number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


@pytest.fixture
def started(monkeypatch):
    monkeypatch.setattr(FakeProcess, "started", [])
    monkeypatch.setattr(subprocess, "Popen", FakeProcess)
    return FakeProcess.started


def test_a_killed_worker_s_successor_has_its_part_of_the_rate_and_its_pipe_is_closed(started):
    fleet = _Fleet(["consume"], 3)
    fleet.poll(0.0)
    started[1].status = -9

    fleet.poll(10.0)
    fleet.poll(11.0)

    assert [each.worker.index for each in started] == [0, 1, 2, 1]
    assert {each.worker.count for each in started} == {3}
    assert [each.stdin.closed for each in started] == [False, True, False, False]


def test_a_worker_that_dies_again_and_again_is_replaced_ever_more_seldom_with_a_line_each(started, caplog):
    fleet = _Fleet(["consume"], 1)
    starts, now = [], 0.0
    while now < 100.0:
        before = len(started)
        fleet.poll(now)
        if len(started) > before:
            starts.append(now)
            started[-1].status = -9
        now += 0.5
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert [round(pause) for pause in pauses] == [2, 2, 4, 8, 16, 30, 30]
    assert sum("was killed (SIGKILL)" in record.getMessage() for record in caplog.records) == len(starts)

    started[-1].status = None
    fleet.poll(150.0)
    fleet.poll(250.0)
    started[-1].status = -64  # a real-time signal has no name everywhere
    fleet.poll(300.0)
    count = len(started)
    fleet.poll(301.0)
    assert len(started) == count + 1


def test_a_worker_that_cannot_be_started_is_tried_again_and_ends_no_other(started, monkeypatch):
    fleet = _Fleet(["consume"], 2)
    fleet.poll(0.0)
    started[0].status = -9

    def refused(*_arguments, **_options):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refused)
    assert fleet.poll(10.0)
    assert fleet.poll(11.0)
    monkeypatch.setattr(subprocess, "Popen", FakeProcess)
    assert fleet.poll(11.5)
    assert len(started) == 2
    assert fleet.poll(12.0)

    assert [each.worker.index for each in started] == [0, 1, 0]
    assert started[1].heard == []


def test_an_order_to_stop_that_comes_while_a_worker_is_started_reaches_it(started, monkeypatch):
    fleet = _Fleet(["consume"], 1)

    def interrupted(*arguments, **options):
        fleet.stop("SIGTERM")
        return FakeProcess(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    fleet.poll(0.0)

    assert started[0].heard == [signal.SIGTERM]


@pytest.mark.parametrize(("ended", "status"), [(-15, 0), (0, 0), (-9, 137), (6, 6)])
def test_a_worker_that_ends_by_the_order_to_stop_itself_had_begun_nothing(started, ended, status):
    fleet = _Fleet(["consume"], 2)
    fleet.poll(0.0)
    fleet.stop("SIGTERM")
    for worker in started:
        worker.status = ended
    fleet.poll(1.0)

    assert (fleet.status or 0) == status
