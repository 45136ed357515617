"""Who may import what, and what pure modules never touch: docs/architecture.md, kept by the code itself."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from scaling.rules import RULES
from scaling.service.registry import COLLECTORS, SCALERS

ROOT = Path(__file__).parents[2]
PACKAGES = ("scaling", "consumer", "publisher", "spark_jobs")

LISTED = {
    f"{package}.{name}"
    for package, names in {
        "scaling": """
        blockers checkpoint_layouts codec config config_reader controls explain lag lint lock_step
        logic missing model ncrontab pace policy replay rules rules.composite rules.expression
        rules.guard rules.level rules.request_units rules.request_units_for_rate rules.schedule
        rules.target_per_unit rules.threshold rules.view rules.within_request_units serial state
        steady views window
        """,
        "consumer": """
        amqp_event balance checkpoints.blob_layout claimed completion_map config
        dead_letters.letters effects errors lane lanes limits low_water mapping model partition_hash
        pipeline position rate_limiter rejected retry sinks.cosmos_answers statistics
        telemetry.interval
        """,
        "publisher": "errors",
        "spark_jobs": "errors",
    }.items()
    for name in names.split()
}
CONTRACTS = {
    "scaling.ports",
    "foundation.version",
    "consumer.ports",
}  # protocols and constants: nothing in them runs
PURE_LIBRARIES = {
    "msgspec",
    "mmh3",
    "numpy",
    "pyarrow",
    "fastavro",
}  # arithmetic, hashes, and bytes to values
IN_MEMORY = {"io.BytesIO", "io.StringIO"}
IMPURE = {"time", "random", "secrets", "logging", "socket", "subprocess", "asyncio", "threading", "os", "io"}
FORBIDDEN_CALLS = {"open", "print", "input", "eval", "exec", "compile", "__import__", "breakpoint"}
FORBIDDEN_METHODS = {"now", "utcnow", "today", "read_text", "write_text", "read_bytes", "write_bytes"}


def modules():
    """Dotted name -> path of every module there is."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


@cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def says_pure(path):
    """Whether a module's docstring claims it, as new modules do: the tests below hold it to that."""
    words = ast.get_docstring(tree(path)) or ""
    return re.search(r"\(pure\)|\bPure[.;]", words) is not None


MODULES = modules()
PURE = LISTED | {name for name, path in MODULES.items() if says_pure(path)}
PURE_HERE = sorted(PURE)


@cache
def imports(path):
    """Every module a file imports, wherever in the file; `from a import b` gives a and a.b."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def own(path):
    """Our modules that a file imports."""
    return imports(path) & MODULES.keys()


def foreign(path):
    """Top-level packages a file imports that are neither ours nor the standard library's."""
    tops = {name.partition(".")[0] for name in imports(path)}
    return tops - set(sys.stdlib_module_names) - {*PACKAGES, "__future__"}


def test_every_rule_file_is_pure():
    rules = {name for name in MODULES if name == "scaling.rules" or name.startswith("scaling.rules.")}

    assert rules <= PURE


@pytest.mark.parametrize("name", PURE_HERE)
def test_pure_modules_import_the_standard_library_msgspec_and_each_other(name):
    path = MODULES[name]

    assert foreign(path) <= PURE_LIBRARIES
    assert own(path) - set(PACKAGES) <= PURE | CONTRACTS


@pytest.mark.parametrize("name", PURE_HERE)
def test_pure_modules_have_no_clock_no_chance_no_log_and_no_files(name):
    path = MODULES[name]
    imported = imports(path)
    if IN_MEMORY & imported:
        imported = imported - IN_MEMORY - {"io"}
    touched = {each.partition(".")[0] for each in imported} & IMPURE
    called = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
                called.add(node.func.id)
            if isinstance(node.func, ast.Attribute) and node.func.attr in FORBIDDEN_METHODS:
                called.add(node.func.attr)

    assert (touched, called) == (set(), set())


@pytest.mark.parametrize("name", PURE_HERE)
def test_pure_modules_are_not_asynchronous(name):
    kinds = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)

    assert not [node for node in ast.walk(tree(MODULES[name])) if isinstance(node, kinds)]


@pytest.mark.parametrize(
    ("ports", "values"),
    [
        ("scaling.ports", {"scaling", "scaling.model", "scaling.window"}),
        ("consumer.ports", {"consumer", "consumer.model"}),
    ],
)
def test_ports_import_values_only(ports, values):
    assert own(MODULES[ports]) <= values
    assert foreign(MODULES[ports]) <= {"msgspec"}


ADAPTERS = sorted(
    name
    for name in MODULES
    if name.startswith(
        (
            *("scaling.collectors.", "scaling.scalers."),
            *("consumer.sinks.", "consumer.checkpoints.", "consumer.dead_letters."),
        )
    )
    or name.removeprefix("scaling.")
    in {"connections", "queues", "tables", "state_store", "decision_log", "control_store"}
)


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_import_no_decision_and_no_shell(name):
    above = {
        *(
            f"scaling.{each}"
            for each in ("logic", "runner", "functions", "assembly", "cli", "api", "lint", "replay")
        ),
        *(f"consumer.{each}" for each in ("pipeline", "runtime", "functions", "assembly", "cli")),
    }

    assert not own(MODULES[name]) & above
    assert "azure.functions" not in imports(MODULES[name])


def test_the_runner_imports_no_sdk():
    assert foreign(MODULES["scaling.service.autoscaler"]) <= {"msgspec"}


def test_only_the_functions_module_and_the_app_import_the_functions_library():
    importers = {name for name, path in MODULES.items() if "azure.functions" in imports(path)}

    assert importers <= {
        *("scaling.web.functions", "scaling.web.api", "consumer.web.functions", "consumer.web.http_functions")
    }
    assert "scaling.service.autoscaler" in own(MODULES["scaling.web.functions"])


def test_the_product_never_imports_the_test_bed():
    product = [*MODULES.values(), ROOT / "function_app.py"]

    assert not [
        path for path in product if any(name.partition(".")[0] == "devstack" for name in imports(path))
    ]


def test_what_an_architecture_rule_would_miss_is_there_to_be_checked():
    assert {f"scaling.{name}" for name in ("model", "window", "logic", "pace", "lint")} <= set(PURE_HERE)
    assert ADAPTERS


@pytest.mark.parametrize("registry", [RULES, COLLECTORS, SCALERS])
def test_registries_are_sorted_by_name(registry):
    assert list(registry) == sorted(registry)
