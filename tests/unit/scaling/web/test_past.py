"""The past of a target over HTTP: whole for a day, a decision of each stretch and all changes beyond, and rules tried on it."""

import json
import threading
from types import SimpleNamespace

import pytest

from scaling.config.policy_file import Config
from scaling.log_entry import LogEntry, LogKind
from scaling.service import assembly
from scaling.web import past
from tests.support.scaling.browser import SimulatedTarget, threshold_policy, waves
from tests.support.scaling.fakes import MemoryDecisionLog

NOW = 1_800_000_000.0
DAY = 86_400.0
RULES = """[[rules]]
type = "threshold"
metric = "backlog"
scale_out_above = 200
scale_in_below = 60
"""
TOML = """version = 1
[targets.plan]
scaler = "app_service_plan"
resource_id = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg/providers/Microsoft.Web/serverfarms/p"
minimum = 1
maximum = 8
[targets.plan.metrics.backlog]
collector = "service_bus_queue"
connection = "OrdersServiceBus"
queue = "q"
window = "10m"
[[targets.plan.rules]]
type = "threshold"
metric = "backlog"
scale_out_above = 400
scale_in_below = 60
"""


async def lived(hours, *, inputs=False):
    """An app whose one target lived through so many hours up to now."""
    target = SimulatedTarget(threshold_policy("plan"), waves(period=14_400.0))
    target.keeps_inputs = inputs
    for minute in range(int(hours * 60), -1, -1):
        target.tick(NOW - 60.0 * minute - 1.0)
    log = MemoryDecisionLog()
    await log.append(target.entries)
    config = Config({"plan": target.policy}, 60.0, 30 * DAY)
    return SimpleNamespace(config=config, ports=SimpleNamespace(log=log), clock=lambda: NOW), target


async def asked(answer, app, name="plan", **parameters):
    if answer is past.trial:
        response = await answer(app, name, json.dumps(parameters).encode())
    else:
        response = await answer(app, name, {key: str(value) for key, value in parameters.items()})
    return response.status, json.loads(response.body)


async def test_a_day_is_shown_whole():
    app, target = await lived(26)

    status, told = await asked(past.history, app)

    assert status == 200
    assert (told["every"], told["complete"], told["since"], told["until"]) == (0.0, True, NOW - DAY, NOW)
    within = [entry for entry in target.entries if entry.at >= NOW - DAY]
    assert len(told["entries"]) == len(within) > 1440
    assert told["entries"][0]["at"] > told["entries"][-1]["at"]


async def test_of_a_longer_time_each_stretch_has_a_decision_and_no_change_is_left_out(monkeypatch):
    monkeypatch.setattr(past, "MAX_PARTS", 60)
    app, target = await lived(30)
    order = LogEntry("plan", NOW - 9_000.0, LogKind.CONTROL, "order", "paused, by ann", "pause", by="ann")
    await app.ports.log.append([order])
    app.ports.log.calls.clear()

    _, told = await asked(past.history, app, since="30h")

    decisions = [entry for entry in told["entries"] if entry["kind"] == "decision"]
    assert told["every"] == 1800.0
    assert 50 <= len(decisions) <= 60
    changes = {
        (entry.at, str(entry.kind)) for entry in (*target.entries, order) if entry.kind != LogKind.DECISION
    }
    assert changes == {
        (entry["at"], entry["kind"]) for entry in told["entries"] if entry["kind"] != "decision"
    }
    assert len(app.ports.log.calls) == 61


async def test_the_end_of_the_time_is_its_newest_entry():
    app, _ = await lived(3)

    _, told = await asked(past.history, app, since=NOW - 7_200.0, until=NOW - 3_600.0)

    assert all(NOW - 7_200.0 <= entry["at"] <= NOW - 3_600.0 for entry in told["entries"])
    assert 59 <= sum(entry["kind"] == "decision" for entry in told["entries"]) <= 61


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"name": "plam"}, "target: found 'plam'; configured are plan"),
        ({"from": "1"}, "from: accepted are since, until"),
        ({"since": "soon"}, "since: found 'soon'"),
        ({"until": "never"}, "until: found 'never'"),
        ({"since": NOW}, "since: is not before until, or by more than 90 days"),
        ({"since": NOW + 60.0}, "since: is not before until"),
        ({"since": "91d"}, "more than 90 days"),
        ({"since": "nan"}, "since: found 'nan'"),
    ],
)
async def test_what_is_asked_wrongly_is_named(parameters, words):
    app, _ = await lived(0.1)

    status, told = await asked(past.history, app, **parameters)

    assert status == 400
    assert words in told["error"]


@pytest.fixture
def configured(tmp_path, monkeypatch):
    (tmp_path / "tidemark.toml").write_text(TOML)
    monkeypatch.setenv("TIDEMARK_CONFIG", str(tmp_path / "tidemark.toml"))


async def test_other_rules_are_tried_on_the_decisions_of_a_day(configured):
    app, target = await lived(6, inputs=True)

    status, told = await asked(past.trial, app, policy=RULES)

    assert status == 200
    assert (told["decisions"], told["skipped"]) == (361, 0)
    assert 0 < told["differing"] < 361
    assert told["simulated_changes"] > 5
    assert len(told["differences"]) <= 100
    first = told["differences"][0]
    assert first["line"].startswith("shadow plan ")
    assert (first["desired"], first["current"]) != (first["simulated"], first["imagined"])
    assert told["view"]["simulated_hours"] > 0
    assert max(count for _, count in told["simulated"]) <= 8
    assert target.state.shadow == b""


async def test_the_same_rules_decide_the_same(configured):
    app, _ = await lived(6, inputs=True)
    same = (
        RULES.replace("200", '{ "1" = 400, "4" = 1200 }') + "[out]\ncooldown = '5m'\n[in]\ncooldown = '10m'\n"
    )

    _, told = await asked(past.trial, app, policy=same)

    assert told["view"]["live_hours"] == pytest.approx(told["view"]["simulated_hours"], rel=0.02)
    assert (
        abs(told["simulated_changes"] - told["changes"]) <= 1
    )  # simulated a change is there at once, in fact seconds later


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("", "rules"),
        ("rules = 5", "rules"),
        ("[[rules", "policy: not valid TOML"),
        (f"{'a.' * 1900}a = 1", "policy: tables and arrays are nested deeper than 32 levels"),
        (f"{RULES}x{'.a' * 1500} = 1", "policy: tables and arrays are nested deeper than 32 levels"),
        (f"a = {'[' * 1900}{']' * 1900}", "policy: not valid TOML"),
        (RULES.replace("backlog", "cpu"), "cpu"),
        (
            RULES.replace('"threshold"', '"os:system"'),
            "rules of code of your own (`module:Class`) are not tried here",
        ),
        ('[[rules]]\ntype = "composite"\n[[rules.rules]]\ntype = "a:b"', "rules of code of your own"),
        ("#" * 4_001, "policy: found 4001 characters; at most 4000"),
        (RULES + 'name = "%PATH%"', "policy: name: app settings (%NAME%) are not looked up here"),
        (RULES + 'name = "\\u0025PATH\\u0025"', "app settings (%NAME%) are not looked up here"),
        (RULES + '"%PATH%" = 1', "app settings (%NAME%) are not looked up here"),
    ],
)
async def test_rules_that_cannot_be_tried_are_refused_with_the_reason(configured, policy, words):
    app, _ = await lived(0.1, inputs=True)

    status, told = await asked(past.trial, app, policy=policy)

    assert status == 400, told
    assert words in told["error"]
    assert "/bin" not in told["error"]


async def test_decisions_without_inputs_are_counted_as_skipped(configured):
    app, _ = await lived(1)

    _, told = await asked(past.trial, app, policy=RULES)

    assert (told["decisions"], told["skipped"], told["view"]) == (0, 61, None)


async def test_the_file_is_read_anew_beside_the_loop_that_decides(configured, monkeypatch):
    """Of a thousand targets it takes two seconds."""
    app, _ = await lived(0.1, inputs=True)
    threads = []

    def read(*_, **__):
        threads.append(threading.current_thread())
        raise ValueError("policy: has no rules")

    monkeypatch.setattr(assembly, "with_shadow", read)

    assert (await asked(past.trial, app, policy=RULES))[0] == 400
    assert threads[0] is not threading.current_thread()


async def test_one_trial_at_a_time(configured):
    app, _ = await lived(0.1)
    async with past._trying:
        status, told = await asked(past.trial, app, policy=RULES)

    assert (status, told["error"][:24]) == (429, "rules are being tried al")
