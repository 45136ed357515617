"""What is shown while Spark works."""

import io
import types

import pytest
from rich.console import Console

from spark_jobs.platform import progress
from spark_jobs.platform.classic import running_tasks


def fake_spark(*stages: tuple[int, int, int]):
    """A session whose running stages are (id, tasks done, tasks)."""
    known = {
        stage: types.SimpleNamespace(stageId=stage, numCompletedTasks=done, numTasks=total)
        for stage, done, total in stages
    }
    tracker = types.SimpleNamespace(getActiveStageIds=lambda: [*known, 99], getStageInfo=known.get)
    return types.SimpleNamespace(sparkContext=types.SimpleNamespace(statusTracker=lambda: tracker))


def test_where_there_is_no_terminal_each_end_is_one_line(monkeypatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(progress, "console", Console(file=written, force_terminal=False))

    with progress.watch(fake_spark(), "reading [x]"):
        assert written.getvalue() == "reading [x]\n"

    begin, end = written.getvalue().splitlines()
    assert begin == "reading [x]"
    assert end.startswith("reading [x]: ")
    assert end.endswith(" s")


def test_a_failure_goes_through(monkeypatch) -> None:
    for terminal in (False, True):
        monkeypatch.setattr(progress, "console", Console(file=io.StringIO(), force_terminal=terminal))
        with pytest.raises(KeyError), progress.watch(fake_spark(), "reading"):
            raise KeyError


def test_a_terminal_shows_the_running_tasks(monkeypatch) -> None:
    assert running_tasks(fake_spark((3, 1, 4), (4, 2, 6))) == "stage 4: 3 of 10 tasks"
    assert running_tasks(fake_spark()) == ""
    assert running_tasks(types.SimpleNamespace()) == ""  # a session that does not tell
