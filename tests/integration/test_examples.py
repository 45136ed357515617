"""Each example is run as its README says, compares what is there with what must be, and prints what the README shows."""

import os
import subprocess
import sys

import pytest

from examples import __main__ as runner
from examples.__main__ import HERE, names
from tests.support.transcripts import differs, steps

pytestmark = [pytest.mark.wire, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def ran():
    """All of them on one stack, which takes longer to start than most of them take: what each printed, and what went wrong. The
    environment has settings of a consumer that writes elsewhere, as that of a person may have.
    """
    command = [sys.executable, "-m", "examples", "all"]
    theirs = {
        "CONSUMER_SINK": "sql",
        "CONSUMER_SQL_URL": "sqlite:////nowhere/theirs.db",
        "COSMOS_DATABASE": "theirs",
    }
    found = subprocess.run(
        command, cwd=HERE.parent, capture_output=True, text=True, check=False, env={**os.environ, **theirs}
    )
    sections = [part.partition("\n") for part in ("\n" + found.stdout).split("\n== ")[1:]]
    return {name: text for name, _, text in sections}, found


@pytest.mark.parametrize("name", names())
def test_the_example_ends_as_it_must_and_prints_what_its_page_shows(ran, name):
    printed, found = ran
    (step,) = steps((HERE / name / "README.md").read_text())

    assert "\nas it must be, after" in "\n" + printed[name], printed[name] + found.stderr[-3000:]
    assert step.command == f".venv/bin/python -m examples {name}"
    assert differs(step.shown, printed[name]) == ""
    assert f"[{name}](" in (HERE / "README.md").read_text()


def test_ctrl_c_ends_the_examples_in_one_line(monkeypatch, capsys):
    async def interrupted(chosen):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", interrupted)
    monkeypatch.setattr("sys.argv", ["examples", "hub_into_sql"])

    with pytest.raises(SystemExit) as ended:
        runner.main()

    assert (ended.value.code, capsys.readouterr().err) == (130, "stopped; its local stack has ended\n")
