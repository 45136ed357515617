"""`tidemark.publisher` is what programs import: its list, its documentation, and that each name loads only what it needs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark import publisher

ROOT = Path(__file__).parents[3]


def test_every_public_name_is_there_documented_and_known_to_type_checkers():
    imported = {
        alias.name
        for node in ast.walk(ast.parse(Path(publisher.__file__).read_text()))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("tidemark.")
        for alias in node.names
    }
    page = (ROOT / "docs" / "publishing.md").read_text()
    documented = re.findall(r"`(\w+)`", page.split("## What is public\n")[1].split("\n## ")[0])

    assert publisher.__all__ == sorted(imported) == dir(publisher)
    assert {name for name in publisher.__all__ if getattr(publisher, name).__name__ != name} == set()
    assert sorted(set(documented)) == publisher.__all__


def test_the_documentation_and_all_that_shows_how_to_publish_imports_public_names():
    shown = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("devstack/demo/**/*.py")]
    text = "\n".join(path.read_text() for path in shown)

    assert re.findall(r"tidemark\.publisher\.(?!cli)[\w.]+", text) == []
    for names in re.findall(r"from tidemark\.publisher import ([\w, ]*\w)", text):
        assert set(names.split(", ")) <= set(publisher.__all__)


@pytest.mark.parametrize(
    ("name", "loaded"),
    [
        ("PublishError", set()),
        ("IdempotentProducer", {"azure.eventhub"}),
        ("BigBatchSender", {"azure.servicebus", "azure.storage.blob"}),
    ],
)
def test_a_name_loads_the_sdks_that_it_needs_and_no_other(name, loaded):
    code = f"from tidemark.publisher import {name}; import sys; print(*sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    sdks = {"azure.eventhub", "azure.servicebus", "azure.storage.blob", "sqlalchemy", "typer"}
    assert sdks & set(answer.stdout.split()) == loaded


def test_a_name_that_is_not_public_is_no_attribute():
    with pytest.raises(AttributeError, match=r"module 'tidemark\.publisher' has no attribute 'SdkLink'"):
        _ = publisher.SdkLink
