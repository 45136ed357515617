"""Each example is run as its README says, and compares what it shows with what must be."""

import subprocess
import sys

import pytest

from examples.__main__ import HERE, names

pytestmark = [pytest.mark.wire, pytest.mark.timeout(240)]


@pytest.mark.parametrize("name", names())
def test_the_example_shows_what_it_says(name):
    command = [sys.executable, "-m", "examples", name]
    ran = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert f"[{name}](" in (HERE / "README.md").read_text()
