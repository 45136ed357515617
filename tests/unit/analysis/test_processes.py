"""The replays of one command: in the order of the tasks, and with how far they are on standard error."""

from threading import Event

import pytest

from tidemark.analysis import processes


def test_the_results_are_in_the_order_of_the_tasks_and_the_dearest_task_is_begun_first():
    begun = []

    def work(task):
        begun.append(task)
        return -task

    assert processes.run_all(work, [1, 3, 2], 1, "replaying", cost=float) == [-1, -3, -2]
    assert begun == [3, 2, 1]


def test_without_a_terminal_a_line_says_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(processes, "SAID_EVERY", 0.001)
    said = Event()
    lines = []

    class Console(processes.Console):
        def print(self, text, **_):
            lines.append(text)
            if "1 of 2" in text:
                said.set()

    monkeypatch.setattr(processes, "Console", Console)

    def work(task):
        if task == 2:
            assert said.wait(30)
        return task

    assert processes.run_all(work, [1, 2], 1, "2 policies over 1 d") == [1, 2]
    assert lines[-1].startswith("2 policies over 1 d: 1 of 2 done after ")


def test_what_is_done_at_once_says_nothing(capsys):
    assert processes.run_all(abs, [-1, 2], 1, "replaying") == [1, 2]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("count", [1, 2])
def test_the_first_error_ends_it(count):
    with pytest.raises(ZeroDivisionError):
        processes.run_all(_divide, [1, 0, 2], count, "replaying")


def _divide(number):
    return 1 / number
