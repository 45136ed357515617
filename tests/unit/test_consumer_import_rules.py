"""The consumer's pure modules: the standard library, msgspec and each other; no clock, no chance, no log, no files."""

import ast
from pathlib import Path

import pytest

from tests.unit.test_import_rules import FORBIDDEN_CALLS, FORBIDDEN_METHODS, IMPURE, foreign, imports, tree

CONSUMER = Path(__file__).parents[2] / "consumer"
PURE = {
    *(
        "amqp_event",
        "balance",
        "checkpoints.blob_layout",
        "completion_map",
        "dead_letters.letters",
        "effects",
        "errors",
        "interval",
        "lanes",
        "limits",
    ),
    *("low_water", "mapping", "model", "partition_hash", "pipeline", "position", "rate_limiter", "retry"),
    "statistics",
}
FUNCTIONS_ONLY = {"msgspec", "mmh3"}  # packages without state: values, codecs, a hash
MODULES = {
    ".".join(path.relative_to(CONSUMER).with_suffix("").parts): path
    for path in sorted(CONSUMER.rglob("*.py"))
}
PURE_HERE = sorted(PURE & MODULES.keys())


@pytest.mark.parametrize("name", PURE_HERE)
def test_pure_modules_import_the_standard_library_functions_and_each_other(name):
    path = MODULES[name]
    own = {
        imported.removeprefix("consumer.") for imported in imports(path) if imported.startswith("consumer.")
    }

    assert foreign(path) <= FUNCTIONS_ONLY | {"consumer"}
    assert own & MODULES.keys() <= PURE


@pytest.mark.parametrize("name", PURE_HERE)
def test_pure_modules_have_no_clock_no_chance_no_log_and_no_files(name):
    path = MODULES[name]
    touched = {imported.partition(".")[0] for imported in imports(path)} & IMPURE
    calls = [node.func for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    called = {f.id for f in calls if isinstance(f, ast.Name)} & FORBIDDEN_CALLS
    called |= {f.attr for f in calls if isinstance(f, ast.Attribute)} & FORBIDDEN_METHODS

    assert (touched, called) == (set(), set())


@pytest.mark.parametrize("name", PURE_HERE)
def test_pure_modules_are_not_asynchronous(name):
    kinds = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)

    assert not [node for node in ast.walk(tree(MODULES[name])) if isinstance(node, kinds)]


def test_no_part_of_the_consumer_imports_the_test_bed():
    assert not [
        path
        for path in MODULES.values()
        if any(name.partition(".")[0] == "devstack" for name in imports(path))
    ]
