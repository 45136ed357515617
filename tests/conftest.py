"""Fixtures shared by all tests.

`TORTURE=1` also runs the tests marked `torture`, which take minutes and are deselected without it, and draws other examples
for the properties in every run.
"""

import contextlib
import gc
import importlib
import os
import re
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadFileScheduling

from devstack.processes.azurite import Azurite
from scaling.calls import limiter
from tests.support.servers.postgres import running_server
from tests.support.virtual_time import virtual_time
from tidemark.foundation.secrets import known

# Tests that read a printed table find it as wide here as anywhere, and without colours: terminals and CI services tell
# the console by these variables what they are. Before any module makes its console.
os.environ["COLUMNS"] = "200"
for variable in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(variable, None)

# A shell starts jobs in the background deaf to SIGINT, and what they start is born deaf as well; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
SPARK = "tests/spark/"
"""The longest piece of work: it begins first."""
SHORT = re.compile("tests/unit/(?!analysis/|spark_jobs/)[^/:]+/")
"""Files of a second or so come last, for the workers to end together; those that draw pages and those on the project as a whole
take up to 15.
"""


def pytest_runtest_setup() -> None:
    """A secret that one test made up is an ordinary word to the next one."""
    known._known = known.KnownSecrets()


TORTURE = os.environ.get("TORTURE") == "1"

# No deadline for one example: a loaded machine is no failure of the code under test. The same examples every time, so
# that what fails is what was changed; torture is for finding new ones.
settings.register_profile("tidemark", deadline=None, derandomize=not TORTURE)
settings.load_profile("tidemark")
if not TORTURE:
    # Hypothesis draws from the numbers and texts of all modules that happen to be loaded: a property that passed in a run of
    # all tests failed in one of its folder. To look for them also takes each worker 3 CPU s.
    assert callable(providers._get_local_constants)
    providers._get_local_constants = lambda: providers._local_constants  # of no module


def pytest_configure(config):
    config.addinivalue_line("markers", "torture: takes minutes; runs with TORTURE=1 only (`make torture`)")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Three more than there are cores: tests of servers wait for most of their time. With two more, a run of 797 s used
    1,110 s of the 1,594 CPU seconds of two cores (26 November 2026).
    """
    return (os.cpu_count() or 1) + 3


class FilesAndOneSpark(LoadFileScheduling):
    """A file goes to a worker whole, and files that need a Spark session go to one worker, which begins with them. The others end
    when no other files are left.

    A session takes a minute of CPU to start and to get warm: with two of them and six workers the whole run took 894 s on two
    cores (26 November 2026).
    """

    def __init__(self, config, log):
        super().__init__(config, log)
        self.with_session = None

    def _assign_work_unit(self, node):
        """The first file in the queue for this worker moves to the front, from which xdist takes it."""
        if self.with_session not in self.nodes:  # not yet, or it crashed
            self.with_session = node
        takes_spark = node is self.with_session
        file = next((each for each in self.workqueue if shares_session(each) == takes_spark), None)
        if file is not None:
            self.workqueue.move_to_end(file, last=False)
        elif not takes_spark:
            node.shutdown()  # it runs what it has, and ends
            return
        super()._assign_work_unit(node)


@cache
def shares_session(file: str) -> bool:
    """Whether a test of the file asks for a fixture that needs the session. Others start processes of their own."""
    return file.startswith(SPARK) and (
        re.search(r"def \w+\([^)]*\b(spark|aggregated|small_driver)\b", (ROOT / file).read_text("utf-8"))
        is not None
    )


def pytest_collection(session):
    """Every worker collects all files, at the same pace: without this each of them compiles all 100,000 lines of a
    fresh clone (22 s; measured on 26 November 2026). A share of its own first, and it finds the others' compiled.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    # What is imported and collected stays. To look through it for garbage took 2 of 8.7 CPU s (27 November 2026).
    gc.disable()
    files = sorted(file for path in session.config.args for file in Path(path).rglob("test_*.py"))
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for file in files[number::count]:
        name = ".".join(file.resolve().relative_to(session.config.rootpath).with_suffix("").parts)
        # Whatever prevents an import is reported when the file is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getvalue("dist") == "loadfile":
        return FilesAndOneSpark(config, log)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: (not item.nodeid.startswith(SPARK), bool(SHORT.match(item.nodeid))))
    if TORTURE:
        return
    long = [item for item in items if item.get_closest_marker("torture")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("torture")]


def pytest_make_parametrize_id(val, argname):
    """Name bytes that are no text by their argument: gzip writes the time, and each worker's test had another name."""
    return argname if isinstance(val, bytes) and not val.isascii() else None


def pytest_collection_finish():
    """What collecting thousands of tests leaves lives to the end: no garbage collection is to look through it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _forget_calls():
    """No test finds calls counted that another made, or a service at the same address that asked to wait."""
    limiter._limiters.clear()


@pytest.fixture
def without_pictures(monkeypatch):
    """For tests of a page's words: its figures are made, and not drawn, which takes a quarter of a second each."""
    from tidemark.analysis import plots  # noqa: PLC0415 - matplotlib takes a second, and most workers' tests need none

    def closed(figure):
        plots.plt.close(figure)
        return "<svg></svg>", "<svg></svg>", b""

    monkeypatch.setattr(plots, "drawn", closed)


@pytest.fixture
def run():
    """Runs a coroutine in time that passes only while everything waits."""
    with virtual_time() as runner:
        yield runner


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    """Connection string of an Azurite of this test process, its data in memory.

    Shared by all tests of the process: use names of queues and tables that are your own.
    """
    with Azurite().running_blocking() as running:
        yield running.connection_string


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a PostgreSQL server of this test process.

    Shared by all tests of the process: use names of your own, or a database of your own
    (tests.support.servers.postgres.new_database).
    """
    with running_server() as url:
        yield url
