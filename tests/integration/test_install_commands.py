"""The commands of the pages that install something are run as they stand there, each into a folder of its own.

uv and pip take from their caches what these have. All of it needs about 15 s of processor time, two thirds of them for pip.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.support.transcripts import COMMANDS, FENCE, lines_of_shell
from tidemark.__main__ import PARTS
from tidemark.foundation.version import VERSION

pytestmark = pytest.mark.timeout(600)  # where nothing is cached, the network has its share
ROOT = Path(__file__).parents[2]
PIPX = "1.18.4"
INSTALLS = r"(?:uv tool|pipx|pip) install "


def commands(page, pattern):
    """Those lines of a page's blocks that begin like this."""
    blocks = [body for language, _, body in FENCE.findall((ROOT / page).read_text()) if language in COMMANDS]
    return [line for block in blocks for line in lines_of_shell(block) if re.match(pattern, line)]


class Machine:
    """Programs and folders of somebody who has uv, pipx, and an active environment that is empty."""

    def __init__(self, folder):
        self.folder, self.programs, self.environment = folder, folder / "bin", folder / "venv"
        beside = Path(sys.executable).parent
        kept = {
            name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}
        }
        self.settings = {
            **kept,
            "PATH": f"{self.programs}:{self.environment}/bin:{folder}/stand-ins:{os.environ['PATH']}",
            "PIPX_BIN_DIR": str(self.programs),
            "PIPX_DEFAULT_PYTHON": sys.executable,
            "PIPX_HOME": str(folder / "pipx"),
            "PIPX_MAN_DIR": str(folder / "man"),
            "PIP_NO_COMPILE": "1",  # a third of pip's time, for an environment that imports one module once
            "PIP_REQUIRE_VIRTUALENV": "1",
            "UV_PYTHON": sys.executable,
            "UV_TOOL_BIN_DIR": str(self.programs),
            "UV_TOOL_DIR": str(folder / "tools"),
        }
        (folder / "stand-ins").mkdir()
        (folder / "stand-ins" / "uv").symlink_to(beside / "uv")
        pipx = folder / "stand-ins" / "pipx"
        pipx.write_text(f'#!/bin/sh\nexec uv tool run --quiet pipx=={PIPX} "$@"\n')
        pipx.chmod(0o755)

    def run(self, command, folder=ROOT):
        """What a command printed. Raises where it failed."""
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=self.settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"$ {command}\n{ran.stdout}{ran.stderr}"
        return ran.stdout

    def ours_in(self, folder):
        """Top-level names in site-packages that come from distributions of ours."""
        (packages,) = folder.glob("**/site-packages")
        ours = [each for each in distributions(path=[str(packages)]) if each.name.startswith("tidemark")]
        files = {file.parts[0] for each in ours for file in each.files or ()}
        return {name for name in files if (packages / name).is_dir() and not name.endswith(".dist-info")}


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize(
    "command",
    [*commands("README.md", INSTALLS), *commands("docs/quickstart-azure.md", INSTALLS)],
    ids=lambda command: re.split(r" {2,}#", command)[0],
)
def test_what_a_page_installs_is_there_and_works(command, machine):
    library = command.startswith("pip ")
    if library:
        machine.run(f"uv venv --quiet --seed '{machine.environment}'")

    machine.run(command)

    if library:
        machine.run("python -c 'from tidemark.publisher import IdempotentProducer'", machine.folder)
        assert machine.ours_in(machine.environment) == {"tidemark"}
    else:
        assert machine.run("tidemark --version", machine.folder) == f"tidemark {VERSION}\n"
        assert Path(machine.run("command -v tidemark").strip()).parent == machine.programs
        missing = re.findall(r"Without the (\w+)", machine.run("COLUMNS=200 tidemark --help"))
        extras = set(re.search(r"\[([\w,]+)\]", command)[1].split(","))
        assert extras <= {*PARTS} - {*missing}
        (lint,) = commands("docs/quickstart-azure.md", "tidemark lint")
        assert ": 1 target checked, " in machine.run(lint)


def test_the_page_of_an_example_adds_a_driver_to_what_the_app_is_deployed_with(machine):
    page = Path("examples/hub_into_sql/README.md")
    (command,) = commands(page, "uv pip compile")
    for name in ("pyproject.toml", "requirements.txt", "requirements.lock", "cli/pyproject.toml"):
        (machine.folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, machine.folder / name)
    (machine.folder / page.parent).mkdir(parents=True)

    machine.run(command, machine.folder / page.parent)

    before, after = (
        set(re.findall(r"^([\w.-]+)==", (folder / "requirements.txt").read_text(), re.MULTILINE))
        for folder in (ROOT, machine.folder)
    )
    assert before < after
    assert {"pyodbc", "sqlalchemy"} <= after - before
