"""Each part can be installed alone: the commands of the others are absent, and the help says how to get them."""

import importlib
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from itertools import chain
from pathlib import Path

import pytest
import typer
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from rich.text import Text
from typer.testing import CliRunner

from spark_jobs import cli as spark_jobs
from tidemark.__main__ import ALONE, PANELS, PARTS, command_line
from tidemark.analysis.cli import SUMMARIES
from tidemark.foundation import version
from tidemark.foundation.version import VERSION
from tidemark.publisher.cli import commands

ROOT = Path(__file__).parents[2]
LIBRARY, PROGRAM = (
    tomllib.loads((ROOT / name).read_text())["project"] for name in ("pyproject.toml", "cli/pyproject.toml")
)
PACKAGES = ("tidemark", "scaling", "consumer", "spark_jobs")


def help_text():
    return " ".join(CliRunner().invoke(command_line(), ["--help"], env={"COLUMNS": "300"}).output.split())


def test_every_command_is_below_a_heading_and_no_heading_has_a_command_that_is_not():
    whole = typer.main.get_command(command_line())

    assert list(whole.commands) == [name for names in PANELS.values() for name in names]


@pytest.mark.parametrize("width", ["60", "80"])
@pytest.mark.parametrize(
    "words", [["publish"], ["history", "pull"], ["spark", "reconciliation"], ["spark"], []], ids=" ".join
)
def test_the_help_cuts_no_name(words, width):
    shown = CliRunner().invoke(command_line(), [*words, "--help"], env={"COLUMNS": width}).output

    assert "Usage:" in shown
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown


def test_the_help_names_types_as_command_lines_do_and_the_version_is_told():
    command_line_ = command_line()
    shown = " ".join(
        CliRunner().invoke(command_line_, [*words, "--help"], env={"COLUMNS": "300"}).output
        for words in ([], ["consume"], ["send"], ["order", "pause"], ["lint"], ["seasons"])
    )
    told = CliRunner().invoke(command_line_, ["--version"])

    assert not re.search(r"(--\S+|[a-z]) +<(str|path|int|float|bool)", shown)
    for text in (
        r"--processes +INTEGER \[x>=1\]",
        r"--root +PATH",
        r"\* +history +PATH",
        r"--format +\[lines\|jsonl\]",
        r"--help +Show",
    ):
        assert re.search(text, shown), text
    assert (told.exit_code, told.output) == (0, f"tidemark {VERSION}\n")


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

    assert f"Without the {extra}: 'mmh3' is missing; {version.install_hint(extra)}" in help_text()


@pytest.mark.parametrize("part", ALONE)
def test_commands_that_start_without_the_other_parts_are_all_that_their_part_has(part):
    found = typer.main.get_command(command_line({part: PARTS[part]}))

    assert found.commands.keys() - {"lint"} == ALONE[part]  # lint is of one part that has it, or of two


def test_publishing_is_absent_without_one_of_its_sdks_although_it_loads_them_when_it_runs(monkeypatch):
    monkeypatch.setattr(commands, "find_spec", lambda name: None if name == "azure.servicebus" else name)

    hint = version.install_hint("publisher")
    assert f"Without the publisher: 'azure.servicebus' is missing; {hint}" in help_text()


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
    here = {f"{name}, here": f"tidemark.analysis.{name}.local" for name in SUMMARIES}
    here["aggregation, here"] = "spark_jobs.telemetry_aggregation.local"
    for name, module in {**spark_jobs.JOBS, **here}.items():
        job = typer.Typer()
        job.command(name)(importlib.import_module(module).command)
        whole.append(typer.main.get_command(job))

    shown = {
        where: (text, Text.from_markup(text).plain) for command in whole for where, text in texts_of(command)
    }
    assert len(shown) > 60
    assert shown["publish quiet"][0] == "Show no progress."  # a rename by script once reached into it
    assert {where: text for where, (text, plain) in shown.items() if text.replace("\\[", "[") != plain} == {}


def test_every_part_is_an_extra_and_the_publisher_brings_no_other_parts_sdks():
    publisher = {re.match(r"[\w-]+", each)[0] for each in LIBRARY["optional-dependencies"]["publisher"]}

    assert PARTS.keys() <= PROGRAM["optional-dependencies"].keys()
    assert publisher == {"azure-eventhub", "azure-servicebus", "azure-storage-blob", "sqlalchemy"}


def test_both_distributions_are_of_one_release():
    """The program is of the library of its own release, in every requirement that names it."""
    same = ("version", "requires-python", "license", "authors")
    requirements = [*PROGRAM["dependencies"], *chain(*PROGRAM["optional-dependencies"].values())]

    assert {name: PROGRAM[name] for name in same} == {name: LIBRARY[name] for name in same}
    assert LIBRARY["version"] == VERSION
    assert {each.partition("==")[2] for each in requirements if re.match(r"tidemark-azure\b(?!-)", each)} == {
        VERSION
    }
    assert set(LIBRARY["dependencies"]) <= set(PROGRAM["dependencies"])


CLONE = "in a clone of Tidemark, "


def test_the_hint_in_the_environment_that_make_has_made_is_a_target_of_make(monkeypatch, tmp_path):
    """pip would install a second copy of the clone's own packages there, and run that from then on."""
    (tmp_path / "devstack" / "setup").mkdir(parents=True)
    (tmp_path / ".venv").mkdir()
    monkeypatch.setattr(version, "prefix", str(tmp_path / ".venv"))

    assert version.install_hint("analysis") == f"make setup, in {tmp_path}"


@pytest.mark.parametrize(
    ("mark", "absent", "hint"),
    [
        ("pyvenv.cfg", None, f"{CLONE}pip install . './cli[spark]'"),
        (
            "uv-receipt.toml",
            None,
            f"{CLONE}uv tool install './cli[spark]', with the extras that you have: others are removed",
        ),
        (
            "pipx_metadata.json",
            None,
            f'{CLONE}pipx runpip tidemark-azure-cli install "$PWD" "$PWD/cli[spark]"',
        ),
        ("pyvenv.cfg", "scaling", f"{CLONE}pip install '.[spark]'"),
        (
            "host.json",
            "tidemark.commands",
            "what is deployed needs the extra 'spark': docs/deploying/packages.md#extras says how",
        ),
    ],
    ids=["environment", "uv tool", "pipx", "library alone", "deployed"],
)
def test_the_hint_adds_an_extra_to_what_runs(monkeypatch, tmp_path, mark, absent, hint):
    (tmp_path / mark).touch()
    monkeypatch.setattr(version, "prefix", str(tmp_path))
    monkeypatch.setattr(version, "find_spec", lambda name: None if name == absent else object())

    assert version.install_hint("spark") == hint


# -- the wheels ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The files of each wheel as `make dist` builds them, from a source distribution: library, program."""
    folder = tmp_path_factory.mktemp("wheels")
    built = []
    for project in (ROOT, ROOT / "cli"):
        source = next(SdistBuilder(str(project)).build(directory=str(folder), versions=["standard"]))
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        unpacked = WheelBuilder(source.removesuffix(".tar.gz"))
        built.append(next(unpacked.build(directory=str(folder), versions=["standard"])))
    return [zipfile.ZipFile(path) for path in built]


def contents(wheel):
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_the_library_puts_tidemark_into_site_packages_and_nothing_else(wheels):
    library, program = map(contents, wheels)

    assert {name.partition("/")[0] for name in library} == {"tidemark"}
    assert {name.split("/")[1] for name in library} == {
        "__init__.py",
        "consuming.py",
        "py.typed",
        "foundation",
        "publisher",
    }
    assert {name.partition("/")[0] for name in program} == {"consumer", "scaling", "spark_jobs", "tidemark"}
    assert library & program == set()


def test_every_file_of_the_product_is_in_one_of_the_wheels(wheels):
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert set().union(*map(contents, wheels)) == {
        name for name in listed.stdout.splitlines() if (ROOT / name).exists()
    }


@pytest.fixture(scope="module")
def users_python(wheels, tmp_path_factory):
    """An environment of a user's program that has the library, and of ours nothing else."""
    folder = tmp_path_factory.mktemp("user")
    venv.create(folder / "venv", symlinks=True)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    wheels[0].extractall(packages)
    return folder / "venv" / "bin" / "python", packages


def test_a_program_with_a_folder_consumer_of_its_own_imports_the_library(users_python, tmp_path):
    python, packages = users_python
    (tmp_path / "consumer.py").write_text("OURS = False\n")
    (tmp_path / "program.py").write_text(
        "import consumer, sys\n"
        f"sys.path.append({sysconfig.get_path('purelib')!r})\n"
        "from tidemark.publisher import IdempotentProducer as producer\n"
        "print(consumer.OURS, sys.modules[producer.__module__].__file__)\n"
    )

    answer = subprocess.run(
        [python, tmp_path / "program.py"], capture_output=True, text=True, check=True, env={}
    )

    assert answer.stdout.split() == ["False", str(packages / "tidemark/publisher/event_hubs/producer.py")]


PROGRAMS = {
    "right": """
from tidemark.publisher import BigBatchSender, IdempotentProducer, PartiallySentError, RetryPolicy, SendReport

async def publish(connection: str) -> int | None:
    async with IdempotentProducer.from_connection_string(connection, "hub", retry=RetryPolicy()) as producer:
        batch = await producer.create_batch(partition_id="0")
        await producer.send_batch(batch)
        return batch.starting_published_sequence_number

async def send(connection: str) -> SendReport:
    async with BigBatchSender.from_connection_string(connection, queue_name="orders") as sender:
        try:
            return await sender.send([b"a"])
        except PartiallySentError as error:
            return error.report
""",
    "wrong": """
from tidemark.publisher import Nonsense, RetryPolicy

attempts: str = RetryPolicy().max_attempts
""",
}


def type_check(python, folder, program):
    (folder / "program.py").write_text(program)
    command = [
        "mypy",
        "--strict",
        "--python-executable",
        python,
        "--cache-dir",
        folder / "cache",
        "program.py",
    ]
    answer = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False, env={}
    )
    return re.findall(r"program\.py:\d+: error: .*\[([\w-]+)\]|^(Success)", answer.stdout, re.MULTILINE)


def test_the_types_of_the_library_hold_in_a_users_program(users_python, tmp_path):
    """Both programs at once, without the SDKs' types: those take six seconds of processor time more."""
    found = type_check(users_python[0], tmp_path, PROGRAMS["right"] + PROGRAMS["wrong"])

    assert [code for code, _ in found] == ["attr-defined", "assignment"]


@pytest.mark.torture
def test_the_types_of_the_library_hold_with_those_of_the_sdks(users_python, tmp_path):
    python, packages = users_python
    (packages / "sdks.pth").write_text(sysconfig.get_path("purelib"))
    sdks = """
from azure.eventhub import EventData
from azure.identity.aio import DefaultAzureCredential

async def identity() -> None:
    async with IdempotentProducer("bus.servicebus.windows.net", "hub", DefaultAzureCredential()) as producer:
        await producer.send_events([EventData("a")], partition_id="1")
"""

    assert type_check(python, tmp_path, PROGRAMS["right"] + sdks) == [("", "Success")]


@pytest.mark.torture
def test_the_command_runs_where_both_wheels_are_installed(wheels, tmp_path):
    venv.create(tmp_path / "venv", symlinks=True)
    files = [wheel.filename for wheel in wheels]
    install = ["uv", "pip", "install", "--offline", "--no-deps", "--python", tmp_path / "venv", *files]
    subprocess.run([sys.executable, "-m", *install], check=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))

    command = [tmp_path / "venv" / "bin" / "tidemark", "--help"]
    answer = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, env={"COLUMNS": "200"}
    )

    assert all(name in answer.stdout for name in ("status", "consume", "publish", "spark"))
    assert "Without" not in answer.stdout
