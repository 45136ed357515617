"""The definitions in infra/spark: every command line they have is one that the jobs take, and their fields are the platforms'."""

import importlib
import json
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer

from spark_jobs.cli import JOBS
from tidemark.analysis.option_values import moment

FOLDER = Path(__file__).parents[3] / "infra" / "spark"
BUNDLE_TEXT = re.sub(r"(?m)^#.*", "", (FOLDER / "databricks.yml").read_text())
BUNDLE: dict[str, Any] = json.loads(BUNDLE_TEXT)
SYNAPSE = json.loads((FOLDER / "synapse" / "telemetry.json").read_text())
FABRIC = json.loads((FOLDER / "fabric" / "SparkJobDefinitionV1.json").read_text())

WHEEL_TASKS = {
    name: task["python_wheel_task"]
    for name, job in BUNDLE["resources"]["jobs"].items()
    for task in job["tasks"]
}
COMMANDS = {
    **{name: task["parameters"][1:] for name, task in WHEEL_TASKS.items()},
    "synapse": SYNAPSE["properties"]["jobProperties"]["args"],
    "fabric": shlex.split(FABRIC["commandLineArguments"]),
}


def parsed(arguments: list[str]) -> dict[str, Any]:
    """What the job's own parser makes of it. Raises for options that are none."""
    job, *rest = arguments
    single = typer.Typer()
    single.command()(importlib.import_module(JOBS[job]).command)
    command = typer.main.get_command(single)
    with command.make_context(job, rest) as context:
        return context.params


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_what_a_definition_runs_is_what_the_job_takes(name):
    found = parsed(COMMANDS[name])

    assert found["format_"] == "delta"
    assert found["output"]


def test_the_daily_reconciliation_compares_a_whole_day_whenever_it_runs():
    defaults = {
        parameter["name"]: parameter["default"]
        for parameter in BUNDLE["resources"]["jobs"]["reconciliation"]["parameters"]
    }
    text = " ".join(COMMANDS["reconciliation"])
    for name, value in defaults.items():
        text = text.replace(f"{{{{job.parameters.{name}}}}}", value)
    found = parsed(text.split())

    at = datetime(2026, 11, 21, 3, tzinfo=UTC)
    assert moment("--from", found["since"], at) == datetime(2026, 11, 20, tzinfo=UTC)
    assert moment("--to", found["until"], at) == datetime(2026, 11, 21, tzinfo=UTC)


def test_an_option_that_is_none_would_be_noticed():
    with pytest.raises(Exception, match="No such option"):
        parsed([*COMMANDS["synapse"], "--nothing"])


def test_the_bundle_runs_the_commands_entry_point_from_the_wheel_that_it_builds():
    assert {task["entry_point"] for task in WHEEL_TASKS.values()} == {"tidemark"}
    assert all(task["parameters"][0] == "spark" for task in WHEEL_TASKS.values())
    assert BUNDLE["artifacts"]["tidemark"]["build"] == "make dist"
    used = set(re.findall(r"\$\{var\.(\w+)\}", BUNDLE_TEXT))
    assert used == set(BUNDLE["variables"])


def test_synapse_and_fabric_have_the_fields_that_their_services_document():
    """Names and required ones as in azure-synapse-artifacts (SparkJobDefinition) and the Fabric REST API."""
    properties = SYNAPSE["properties"]
    assert properties.keys() >= {"targetBigDataPool", "jobProperties"}
    needed = {"file", "driverMemory", "driverCores", "executorMemory", "executorCores", "numExecutors"}
    optional = {"name", "className", "conf", "args", "jars", "files", "archives"}
    assert needed <= properties["jobProperties"].keys() <= needed | optional
    assert set(FABRIC) == {
        *(
            "executableFile",
            "defaultLakehouseArtifactId",
            "mainClass",
            "additionalLakehouseIds",
            "retryPolicy",
        ),
        *("commandLineArguments", "additionalLibraryUris", "language", "environmentArtifactId"),
    }


def test_the_bundles_jobs_are_what_databricks_takes():
    """By the types of the package databricks-bundles, where it is installed: an unknown field is refused."""
    jobs = pytest.importorskip("databricks.bundles.jobs")
    for job in BUNDLE["resources"]["jobs"].values():
        assert jobs.Job.from_dict(job).as_dict()["tasks"]
