"""docs/guarantees.md names a test for every fault, and each is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`((?:tests|tidemark/testing)/[\w/]+\.py)::(test_\w+)`", PAGE))


def names_in(path):
    return set(re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_every_test_that_is_named_exists():
    missing = {(path, name) for path, name in NAMED if name not in names_in(ROOT / path)}

    assert missing == set()


def test_every_fault_has_a_row_with_a_test():
    rows = re.findall(r"^\| (\d+) \|(.*)$", PAGE, re.MULTILINE)

    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert [number for number, row in rows if "::test_" not in row] == []


def test_every_fault_test_of_the_consumer_is_named():
    written = {
        (f"tests/faults/{path.name}", name)
        for path in (ROOT / "tests" / "faults").glob("test_consumer_*.py")
        for name in names_in(path)
    }

    assert written - NAMED == set()
