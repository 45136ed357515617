"""The pages with transcripts are run on a local stack, from top to bottom, and print what they show.

A page has a folder that looks like a clone, and one shell: variables and `cd` carry over. The stack is there already, so `make start` only starts the functions, where
the page has written a policy; they live 20 times as fast. The examples' pages are compared in test_examples.py, which runs them.
"""

import os
import re
import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from devstack.function_host.clock import HostClock
from devstack.local import local_settings
from devstack.stack.supervisor import FunctionsProcess, Stack
from tests.support.servers.threaded import running_in_thread
from tests.support.transcripts import ELSEWHERE, differs, steps

pytestmark = [pytest.mark.wire, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for page in (ROOT / "docs").rglob("*.md")
    if any(step.command for step in steps(page.read_text(encoding="utf-8")))
)
SPEED = 20.0  # seconds of the functions in one of ours: a command takes seconds to start, and they go on meanwhile
WITHIN = 60.0  # seconds until a decision is in the log
ENDS_WITHIN = 300.0  # seconds for a command; most take two
AGAIN = re.compile(r"\S*tidemark (?:log|status|shadow|consumer status)\b")
"""What is asked again until it is there: these change nothing."""

COPIED = {"tidemark.toml", "local.settings.json"}
SLOW = {"spark.md"}  # Spark starts twice; examples/reconciliation_and_cost runs one of its jobs in every run


class Shell:
    """One page's terminal."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self.folder = folder
        self._settings = {**os.environ, **settings, "COLUMNS": "110", "PYTHONPATH": str(ROOT)}
        self._state = folder / ".shell"
        self._state.write_text(f"cd '{folder}'\n")
        for path in ROOT.iterdir():
            if path.name in COPIED:
                shutil.copy(path, folder)
            elif not path.name.startswith(".") or path.name in {".venv", ".devstack"}:
                (folder / path.name).symlink_to(path)

    def run(self, command: str) -> tuple[int, str]:
        """Exit status and output. What it sets is there for the next one."""
        command = re.sub(r"\bsleep (\d+)", lambda found: f"sleep {int(found[1]) / SPEED}", command)
        script = f". '{self._state}'\nset -a\n{command}\nstatus=$?\n{{ export -p; echo cd \"'$PWD'\"; }} > '{self._state}'\nexit $status"
        ran = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self._settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=ENDS_WITHIN,
            check=False,
        )
        return ran.returncode, ran.stdout


@pytest.fixture(scope="module")
def settings():
    """Of a local stack, which the pages share as the commands of a reader do."""
    with running_in_thread(Stack) as found:
        plan = found.call(lambda: found.server.add_workload(capacity=1, start_delay=0.5))
        yield local_settings() | found.call(found.server.settings) | {"ORDERS_PLAN_ID": plan}


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.torture if page.name in SLOW else ()) for page in PAGES],
    ids=lambda page: page.name,
)
def test_a_page_prints_what_it_shows(page, settings, tmp_path):
    shell, policy = Shell(tmp_path, settings), False
    with ExitStack() as running:
        for step in steps(page.read_text(encoding="utf-8")):
            if step.file:
                (tmp_path / step.file).unlink(missing_ok=True)
                (tmp_path / step.file).write_text(step.text)
                policy = policy or step.file == "tidemark.toml"
            elif step.command == "make start":
                if policy:
                    running.enter_context(functions(settings, tmp_path))
            elif not ELSEWHERE.match(step.command):
                show(shell, step)


def show(shell, step):
    """Runs a command and compares; what only has to come is waited for."""
    until = time.monotonic() + WITHIN
    tried = []
    while True:
        status, printed = shell.run(step.command)
        problem = differs(step.shown, printed)
        tried.append(problem)
        if not problem or not AGAIN.match(step.command) or time.monotonic() > until:
            break
    assert status == 0, f"$ {step.command}\n{printed}"
    assert not problem, f"$ {step.command}\n{tried[0]}"


@contextmanager
def functions(settings, folder):
    """The app with the page's policy."""
    given = {
        **settings,
        "TIDEMARK_CONFIG": str(folder / "tidemark.toml"),
        "AzureFunctionsJobHost__extensions__queues__maxPollingInterval": "00:00:00.200",
    }
    process = FunctionsProcess(given, clock=HostClock(SPEED, time.time()))
    process.start()
    try:
        yield
    finally:
        process.stop()
