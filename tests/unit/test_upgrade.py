"""Upgrades and going back: what release 0.2.0 stored is read, and what this one stores is read or refused by 0.2.0.

No test can run the code of 0.2.0: what it made of the examples in `present.json` was recorded, and holds as long as this release
stores the same. How to record it again is in tests/data/upgrade/stored.py.
"""

import json
import re
from pathlib import Path

import pytest

from tests.data.upgrade.stored import FORMS, example, lost, read

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "upgrade"
BEFORE = json.loads((DATA / "0.2.0.json").read_text(encoding="utf-8"))
PRESENT = json.loads((DATA / "present.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "deploying" / "releases.md").read_text(encoding="utf-8")
RENAMED = {"paper": "simulated", "paper_late": "simulated_late", "paper_overdue": "simulated_overdue"}
"""Fields of a shadow's tally, which is stored without names."""


def renamed(value):
    if isinstance(value, dict):
        return {RENAMED.get(name, name): renamed(each) for name, each in value.items()}
    return [renamed(each) for each in value] if isinstance(value, list) else value


def test_each_form_has_an_example_of_both_releases():
    assert BEFORE.keys() == PRESENT.keys() == FORMS.keys()


@pytest.mark.parametrize("name", FORMS)
def test_what_the_release_before_stored_is_read_with_every_field(name):
    assert [*lost(renamed(BEFORE[name]["value"]), read(name, BEFORE[name]["stored"]))] == []


@pytest.mark.parametrize("name", FORMS)
def test_what_this_release_stores_it_reads_and_the_release_before_was_tried_on(name):
    now = example(name)

    assert [*lost(now["value"], read(name, now["stored"]))] == []
    assert now["stored"] == PRESENT[name]["stored"], "try 0.2.0 on it: see tests/data/upgrade/stored.py"


@pytest.mark.parametrize("name", FORMS)
def test_the_page_says_what_the_release_before_makes_of_it(name):
    outcome = PRESENT[name]["in 0.2.0"]
    fields = outcome.get("lost", [])
    unreadable = "/unreadable" in fields
    expected = (
        "refused" if "refused" in outcome else "anew" if unreadable else "without" if fields else "whole"
    )

    row = re.search(rf"^\| {re.escape(name)} \| [^|]+ \| (\w+)", PAGE, re.MULTILINE)

    assert row is not None
    assert row[1] == expected


def test_the_page_disables_every_function_of_a_slot_that_works_by_itself():
    sources = [*ROOT.glob("scaling/web/*functions.py"), *ROOT.glob("consumer/web/*functions.py")]
    text = "\n".join(source.read_text(encoding="utf-8") for source in sources)
    triggered = re.findall(r"_trigger\((?:(?!\ndef|\nasync def).)*?\nasync def (\w+)", text, re.DOTALL)
    by_hosting = re.findall(r"^async def (consume_\w+)", text, re.MULTILINE)

    assert len(triggered) >= 5
    assert set(re.findall(r"AzureWebJobs\.(\w+)\.Disabled", PAGE)) == {*triggered, *by_hosting}
