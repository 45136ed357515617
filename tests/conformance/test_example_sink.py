"""The example of docs/adding-a-sink.md: built as a package, run through the suite, and used by a consumer."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from consumer.model import Claim, Stream
from consumer.options import DriverSettings
from consumer.running.driver import Driver
from consumer.sinks.types import SinkContext, find_sink_type, read_options
from consumer.stores.memory import MemoryCheckpointStore
from tests.support.consumer.memory_dead_letters import MemoryDeadLetterStore
from tidemark.testing import event

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/adding-a-sink.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```\w+ file=(\S+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder into which the package's wheel was unpacked, as an installer does."""
    project, packages = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("packages")
    for name, text in FILES.items():
        (project / name).write_text(text)
    wheel = next(WheelBuilder(str(project)).build(directory=str(project), versions=["standard"]))
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "test_folder_sink.py").write_text(FILES["test_folder_sink.py"])
    return packages


def test_the_example_passes_the_suite(installed):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=strict"]
    command += ["-c", os.devnull, "--rootdir", str(installed), str(installed / "test_folder_sink.py")]
    path = os.pathsep.join([str(ROOT), str(installed)])
    answer = subprocess.run(
        command,
        cwd=installed,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )

    assert answer.returncode == 0, answer.stdout
    assert re.search(r"^\d\d passed", answer.stdout, re.MULTILINE)


async def test_a_consumer_writes_by_the_installed_package(installed, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(installed)
    kind = find_sink_type("folder")
    context = SinkContext({}, "flights", Stream("ns", "flights", "$Default"), "files")
    sink = kind.build(read_options(kind, {"path": str(tmp_path)}, "sinks.files"), context)
    letters = MemoryDeadLetterStore()
    driver = Driver(DriverSettings("flights", "$Default"), sink, MemoryCheckpointStore(), letters)
    await driver.open()
    driver.claimed(Claim("0", "me", 1))
    await driver.receive("0", 1, [event(1), event(2), event(3, {"id": "no/name"})])
    await driver.settled("0", 1)
    await driver.aclose()

    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["f1.json", "f2.json"]
    assert [letter.rejection.reason async for letter in letters.list()] == ["id"]
