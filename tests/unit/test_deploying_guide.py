"""docs/deploying.md and its pages by task against the templates: parameters, variables, settings, extras."""

from __future__ import annotations

import json
import re
import tomllib

from tests.support.infra.templates import (
    DEPLOYING,
    PARAMETERS,
    ROOT,
    TEMPLATES,
    WORLDS,
    documented_settings,
    settings,
)


def test_the_parameters_are_documented_with_their_variables_and_defaults() -> None:
    parameters = TEMPLATES["main.bicep"].parameters
    table = DEPLOYING.split("\n## Parameters\n")[1].split("\n#")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("| `")
    ]
    documented = {
        name: (row[1].strip("`"), row[2]) for row in rows for name in re.findall(r"`(\w+)`", row[0])
    }

    assert set(documented) == set(PARAMETERS) == set(parameters)
    for name, (variable, default) in documented.items():
        found = re.findall(r"\$\{(\w+)", json.dumps(PARAMETERS[name]["value"]))
        assert found == ([variable] if variable else []), name
        declared = getattr(parameters[name].default, "value", None)
        if default.startswith("`") and declared not in (None, ""):
            assert default.strip("`").lower() == str(declared).lower(), name


def test_every_setting_and_variable_the_guide_names_exists() -> None:
    named = set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", DEPLOYING))
    known = {
        *documented_settings("Settings of the app"),
        *documented_settings("Settings of the consumer"),
        *documented_settings("Settings of the command line"),
        *re.findall(r"\$\{(\w+)", json.dumps(PARAMETERS)),
        *TEMPLATES["main.bicep"].outputs,
        *(name for world in WORLDS for name in settings(world)),
        *("INVOICES_PLAN_ID", "FLIGHTS_CONTAINER_ID", "ORDERS_CACHE_ID"),  # examples of further settings
        "OTEL_EXPORTER_OTLP_ENDPOINT",  # OpenTelemetry's own
    }

    assert set() == named - known


def test_the_extras_of_the_package_are_in_the_guide() -> None:
    project = tomllib.loads((ROOT / "cli" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    table = DEPLOYING.split("\n## Extras\n")[1].split("\n#")[0]

    assert extras == set(re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE))
    assert set(re.findall(r"--extra ([\w-]+)", DEPLOYING)) <= extras
