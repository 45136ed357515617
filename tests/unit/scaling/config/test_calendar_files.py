"""iCalendar files that a configuration names are read with it, and what is wrong with them is told with both lines."""

import os
from datetime import UTC, datetime

import pytest

from scaling.service import registry
from scaling.service.assembly import read_config, with_shadow
from tests.support.scaling.steady_views import view
from tidemark.analysis.backtest.candidates.grid import Targets
from tidemark.foundation.app_settings import read_beside
from tidemark.foundation.settings_reader import ConfigError

CALENDAR = "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART;VALUE=DATE:20261225\nRRULE:FREQ=YEARLY\nEND:VEVENT\nEND:VCALENDAR\n"
CONFIG = """
[targets.plan]
scaler = "advice"
maximum = 9
[[targets.plan.rules]]
type = "composite"
[[targets.plan.rules.rules]]
type = "schedule"
periods = [
    { floor = 4, not_on = ["CALENDAR"] },
]
"""


@pytest.fixture
def root(tmp_path):
    (tmp_path / "tidemark.toml").write_text(CONFIG.replace("CALENDAR", "calendars/de.ics"))
    (tmp_path / "calendars").mkdir()
    (tmp_path / "calendars" / "de.ics").write_text(CALENDAR)
    return tmp_path


def floors(policy):
    noons = [datetime(2027, 12, day, 12, tzinfo=UTC).timestamp() for day in (24, 25)]
    rule = policy.flat_rules[-1]
    return [rule.evaluate(view(now=noon)).floor for noon in noons]


def test_the_days_of_a_file_are_those_of_the_rule_wherever_it_stands(root):
    policy = read_config({}, root=root).policies["plan"]
    shadow = 'rules = [{ type = "schedule", periods = [{ floor = 2, not_on = ["calendars/de.ics"] }] }]'
    config = root / "tidemark.toml"
    targets = Targets(config.read_text(), name="t", settings={}, plug_ins=registry, read=read_beside(config))

    assert floors(policy) == [4, None]
    assert floors(with_shadow({}, "plan", shadow, root=root).shadow) == [2, None]
    assert targets.baseline("plan").rules == policy.spec.rules


@pytest.mark.parametrize(
    ("name", "made", "said"),
    [
        ("gone.ics", None, "'gone.ics' cannot be read: No such file or directory"),
        ("../de.ics", None, "found '../de.ics'; accepted are names of files beside tidemark.toml"),
        ("/etc/de.ics", None, "found '/etc/de.ics'; accepted are names"),
        (
            "a.ics",
            CALENDAR.replace("YEARLY", "DAILY"),
            "'a.ics', line 4: found RRULE:FREQ=DAILY; accepted is",
        ),
        ("a.ics", "", "'a.ics', line 1: the file ends before END:VCALENDAR"),
        ("a.ics", "x" * 300_000, "'a.ics', line 1: the file has 300000 bytes; accepted are 262144"),
        ("pipe.ics", os.mkfifo, "'pipe.ics', which is no file"),
        ("calendars.ics", os.mkdir, "'calendars.ics', which is no file"),
    ],
)
def test_a_file_that_cannot_be_used_ends_the_load_with_its_line_and_that_of_the_period(
    root, name, made, said
):
    (root / "tidemark.toml").write_text(CONFIG.replace("CALENDAR", name))
    if callable(made):
        made(root / name)
    elif made is not None:
        (root / name).write_text(made)

    with pytest.raises(ConfigError) as caught:
        read_config({}, root=root)
    (problem,) = caught.value.problems
    assert problem.where == "tidemark.toml:9 targets.plan.rules[0].rules[0].periods[0].not_on"
    assert problem.text.startswith(said)


def test_options_that_are_no_periods_are_told_where_the_rule_is_read(root):
    wrong = CONFIG.replace('["CALENDAR"]', '["a.ics", 3]').replace("\n]\n", "\n]\nfiles = 3\n")
    (root / "tidemark.toml").write_text(wrong)

    with pytest.raises(ConfigError, match="found 3"):
        read_config({}, root=root)
