"""Each part can be installed alone: the commands of the others are absent, and the help says how to get them."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner

from spark_jobs import cli as spark_jobs
from tidemark.__main__ import PARTS, command_line
from tidemark.analysis.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def help_text():
    return " ".join(CliRunner().invoke(command_line(), ["--help"], env={"COLUMNS": "300"}).output.split())


def test_with_all_parts_installed_all_commands_are_there():
    told = help_text()

    assert all(name in told for name in ("status", "consume", "publish", "spark"))
    assert "Without" not in told


@pytest.mark.parametrize("extra", PARTS)
def test_a_part_whose_packages_are_missing_is_told_and_the_others_work(monkeypatch, extra):
    import_module = importlib.import_module

    def without(name):
        if name == PARTS[extra]:
            raise ModuleNotFoundError("No module named 'mmh3'", name="mmh3")
        return import_module(name)

    monkeypatch.setattr(importlib, "import_module", without)

    assert (
        f"Without the {extra}: 'mmh3' is missing; in a clone of Tidemark, pip install '.[{extra}]'"
        in help_text()
    )


def test_the_autoscalers_commands_load_nothing_of_a_part_whose_packages_may_be_missing():
    code = "import tidemark.commands.autoscaler, sys; print(*{m.partition('.')[0] for m in sys.modules})"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    absent = {"consumer", "publisher", "spark_jobs", "mmh3", "opentelemetry"}
    assert not {*absent, "aiohttp"} & set(answer.stdout.split())  # which only those need that ask an app


def test_a_module_of_ours_that_is_missing_is_an_error(monkeypatch):
    monkeypatch.setitem(PARTS, "consumer", "consumer.cli.nowhere")

    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        command_line()


def texts_of(command):
    """What the help of a command, and of all below it, says, each with its place."""
    yield command.name, command.help or ""
    yield from (
        (f"{command.name} {parameter.name}", getattr(parameter, "help", None) or "")
        for parameter in command.params
    )
    for below in getattr(command, "commands", {}).values():
        yield from texts_of(below)


def test_nothing_that_a_help_says_is_taken_for_markup_and_swallowed():
    whole = [typer.main.get_command(command_line())]
    here = {f"{name}, here": f"tidemark.analysis.{name}.local" for name in COMMANDS}
    here["aggregation, here"] = "spark_jobs.telemetry_aggregation.local"
    for name, module in {**spark_jobs.JOBS, **here}.items():
        job = typer.Typer()
        job.command(name)(importlib.import_module(module).command)
        whole.append(typer.main.get_command(job))

    shown = {
        where: (text, Text.from_markup(text).plain) for command in whole for where, text in texts_of(command)
    }
    assert len(shown) > 60
    assert {where: text for where, (text, plain) in shown.items() if text.replace("\\[", "[") != plain} == {}


def test_every_part_is_an_extra_and_the_publisher_brings_no_other_parts_sdks():
    extras = PROJECT["project"]["optional-dependencies"]
    publisher = {re.match(r"[\w-]+", each)[0] for each in extras["publisher"]}

    assert PARTS.keys() <= extras.keys()
    assert publisher == {"azure-eventhub", "azure-servicebus", "azure-storage-blob", "sqlalchemy"}


def test_the_wheel_holds_the_product_and_no_local_servers():
    packages = set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])

    assert packages == {"scaling", "consumer", "spark_jobs", "tidemark"}
