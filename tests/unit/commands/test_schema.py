"""The schema of tidemark.toml accepts what the reader accepts, as far as types and names go; taplo is what editors check with."""

import json
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from scaling.config.policy_file import load_config
from scaling.service import registry
from tidemark.commands.schema import schema
from tidemark.foundation.settings_reader import ConfigError

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "docs" / "tidemark.schema.json"
FILES = [
    *("tidemark.toml", "tests/integration/end_to_end.toml", "devstack/data/demo-orders.toml"),
    "devstack/data/demo-flights.toml",
]
PLAN = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/g/providers/Microsoft.Web/serverfarms/p"
GOOD = f"""
[targets.plan]
scaler = "app_service_plan"
resource_id = "{PLAN}"
maximum = 5
changes_per_hour = 12
dry_run = true
interval = "5m"
out = {{ cooldown = "5m", rates = [{{ percent = 50, per = "10m" }}] }}
budget = {{ instance_hours_per_day = 72, time_zone = "Europe/Berlin" }}
drain = {{ notice = "2m", unacknowledged = "hold" }}
fallback = {{ capacity = 2, after = "10m" }}

[targets.plan.metrics.backlog]
collector = "storage_queue"
connection = "AzureWebJobsStorage"
queue = "orders"
window = "10m"
unit = "messages"

[[targets.plan.rules]]
type = "service_level"
name = "level"
backlog = "backlog"
wait = "60s"
late = 0.01

[targets.plan.shadow]
maximum = 8
rules = [{{ type = "threshold", metric = "backlog", scale_out_above = "50 * instances" }}]

[notify.webhooks.ops]
url = "OPS_URL"
kinds = ["scaled"]
"""
SETTINGS = {"AzureWebJobsStorage": "UseDevelopmentStorage=true", "COLLECT_SCHEDULE": "0 * * * * *"}


def problems(tmp_path, text):
    """What taplo says of a file."""
    file = tmp_path / "tidemark.toml"
    file.write_text(re.sub("^#:schema.*", "", text))
    taplo = Path(sysconfig.get_path("scripts"), "taplo")
    command = [taplo, "check", "--schema", SCHEMA.as_uri(), file]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    return answer.stderr if answer.returncode else ""


def is_read(text):
    try:
        load_config(text, name="t", settings=SETTINGS, plug_ins=registry)
    except ConfigError:
        return False
    return True


def test_the_schema_in_the_docs_is_that_of_the_reader():
    """`tidemark schema > docs/tidemark.schema.json` renews it."""
    found = json.dumps(schema(registry, registry.COLLECTORS, registry.SCALERS))
    assert json.loads(SCHEMA.read_text()) == json.loads(found)


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_read_fit_the_schema(tmp_path, name):
    assert problems(tmp_path, (ROOT / name).read_text()) == ""


@pytest.mark.parametrize(
    ("found", "changed", "fits"),
    [
        ("", "", True),
        ("maximum = 5", 'maximum = "5"', True),  # an app setting is text
        (
            'type = "service_level"',
            'type = "own.rules:Mine"',
            None,
        ),  # anything is accepted of code of the user's own
        ("maximum = 5", "maximun = 5", False),
        ("maximum = 5", "maximum = 5.5", False),
        ("dry_run = true", 'dry_run = "yes"', False),
        ('cooldown = "5m"', "cooldown = 5", False),
        ('cooldown = "5m"', "cooldown = 0", True),
        ('unacknowledged = "hold"', 'unacknowledged = "go"', False),
        ("percent = 50", "percentage = 50", False),
        ('queue = "orders"', 'quueue = "orders"', False),
        ('collector = "storage_queue"', 'collector = "storage"', False),
        ('scaler = "app_service_plan"', 'scaler = "plan"', False),
        ('wait = "60s"', "wait = 60", False),
        ('backlog = "backlog"\n', "", False),
        ('type = "service_level"', 'type = "servicelevel"', False),
        (
            'type = "threshold"',
            'type = "treshold"',
            "a finding",
        ),  # what is wrong in a shadow ends the shadow only
        ("instance_hours_per_day", "instance_hours", False),
        ('kinds = ["scaled"]', 'kinds = "scaled"', False),
        ('url = "OPS_URL"', "", False),
        ("[targets.plan]", "version = 2\n[targets.plan]", False),
    ],
)
def test_editors_refuse_what_the_reader_refuses(tmp_path, found, changed, fits):
    assert found in GOOD
    text = GOOD.replace(found, changed, 1)

    assert (problems(tmp_path, text) == "") is (fits in {True, None})
    if fits is not None:
        assert is_read(text) is bool(fits)


def test_keys_that_the_defaults_give_are_not_missing(tmp_path):
    before = GOOD.replace("maximum = 5\n", "").replace('scaler = "app_service_plan"\n', "")
    text = '[defaults]\nmaximum = 5\nscaler = "app_service_plan"\n' + before

    assert is_read(text)
    assert problems(tmp_path, text) == ""
