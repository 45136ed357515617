"""The command line's own errors; what it shows of a running system is in the end-to-end test."""

import asyncio
import json
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

from scaling.config.policy import Budget, ShadowSpec
from scaling.log_entry import LogEntry, LogKind
from scaling.model import Controls, Direction, ExternalChange, MetricFailure, Override, Pause, Spent
from scaling.window import Window
from tests.support.scaling.fakes import MemoryDecisionLog, MemoryPoisonQueues
from tests.support.scaling.runner import NOW, World, at, changed, policy
from tests.support.scaling.shadow import fixed
from tidemark.commands.access.where import settings_of
from tidemark.commands.autoscaler import app
from tidemark.foundation.errors import StoreUnavailableError

GOOD = """
[targets.plan-orders]
scaler = "app_service_plan"
resource_id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/g/providers/Microsoft.Web/serverfarms/p"
maximum = 5

[targets.plan-orders.metrics.backlog]
collector = "storage_queue"
connection = "AzureWebJobsStorage"
queue = "orders"

[[targets.plan-orders.rules]]
type = "threshold"
metric = "backlog"
scale_out_above = 500
scale_in_below = IN_BELOW
"""


@pytest.fixture(autouse=True)
def storage(monkeypatch):
    monkeypatch.setenv("AzureWebJobsStorage", "UseDevelopmentStorage=true")
    monkeypatch.setattr("tidemark.commands.access.where.check_app", lambda *_, **__: None)


def words(result):
    """Output without the frames and breaks of a terminal."""
    return " ".join(result.output.replace("│", " ").split())


def run(tmp_path, *arguments, config=None):
    if config is not None:
        (tmp_path / "tidemark.toml").write_text(config)
    return CliRunner().invoke(app, [*arguments, "--root", str(tmp_path)], catch_exceptions=False)


KEY = "kZ0qUj3mJ8m1C5rT2vX9yB4nE7hL6pS0aDfGwQxVtYk="


@pytest.mark.parametrize(
    ("changes", "status", "shown"),
    [
        ({}, 0, ["tidemark.toml: 1 target checked, 0 findings"]),
        (
            {'queue = "orders"': 'queue = "orders"\nwindow = "5m"', "[targets.plan-orders.metrics": "[targets.plan-orders.out]\ncooldown = '3m'\n[targets.plan-orders.metrics"},
            0,
            ["tidemark.toml: 1 target checked, 1 finding"],
        ),
        ({"= 100": "= 'low'", "maximum = 5": "maximum = 0", "queue =": "quueue ="}, 1, ["targets.plan-orders.maximum", "scale_in_below", "quueue"]),
        ({"AzureWebJobsStorage": "Storge"}, 1, ["there is no app setting 'Storge'"]),
        ({"AzureWebJobsStorage": f"AccountKey={KEY}"}, 1, ["tidemark.toml:9 targets.plan-orders.metrics.backlog.connection: looks like"]),
        ({"maximum =": "maximun = 9\nmaximum ="}, 1, ["did you mean 'maximum'?"]),
        (None, 1, ["tidemark.toml"]),  # no file
    ],
)  # fmt: skip
def test_lint_tells_every_problem_of_the_file_at_once_and_no_secret(tmp_path, changes, status, shown):
    config = None if changes is None else GOOD.replace("IN_BELOW", "100")
    for old, new in (changes or {}).items():
        config = config.replace(old, new)

    result = run(tmp_path, "lint", config=config)

    assert result.exit_code == status
    assert [text for text in shown if text not in words(result)] == []
    assert KEY not in result.output


def test_lint_shows_where_rules_flap_and_fails(tmp_path):
    flapping = GOOD.replace("= 500", "= '200 * instances'").replace("IN_BELOW", "'150 * instances'")
    result = run(tmp_path, "lint", "--json", config=flapping)

    findings = json.loads(result.output)
    assert result.exit_code == 1
    assert [f["kind"] for f in findings if f["severity"] == "error"] == ["must_flap"]


def test_lint_refuses_a_budget_of_calls_that_the_app_would_refuse_and_tells_of_one_that_is_short(
    tmp_path, monkeypatch
):
    config = GOOD.replace("IN_BELOW", "100")
    monkeypatch.setenv("TIDEMARK_CALL_SHARE", "2")
    refused = run(tmp_path, "lint", config=config)
    monkeypatch.setenv("TIDEMARK_CALL_SHARE", "1")
    monkeypatch.setenv("TIDEMARK_CALL_BUDGETS", "service_bus=1/60")
    monkeypatch.setenv("Bus", "Endpoint=sb://bus.example/;SharedAccessKeyName=a;SharedAccessKey=b")
    of_bus = config.replace("storage_queue", "service_bus_queue").replace("AzureWebJobsStorage", "Bus")
    short = run(tmp_path, "lint", config=of_bus)

    assert refused.exit_code == 1
    assert "TIDEMARK_CALL_SHARE is '2'" in refused.output
    assert short.exit_code == 0
    assert "calls: 2 a minute of service_bus are needed" in words(short)


@pytest.fixture
def running(monkeypatch):
    """The commands over an autoscaler in memory."""
    return commanded(monkeypatch, World())


def commanded(monkeypatch, world):
    monkeypatch.setattr("tidemark.commands.access.where.assemble", lambda *_, **__: world.autoscaler())
    monkeypatch.setattr("tidemark.commands.autoscaler.console", Console(width=200))
    return world


def test_status_shows_orders_and_poison(tmp_path, running):
    pauses = (Pause("anna\x1b[2J", NOW, Direction.IN, NOW + 600), Pause("ben", NOW))
    orders = Controls(pauses, Override(4, "kim", NOW, NOW + 3600), dry_run=True)
    asyncio.run(running.order(orders))
    running.poison = MemoryPoisonQueues(queues=["metrics"])
    running.poison.messages["metrics"] = [(NOW, "rubbish\n\x1b[31m")]

    result = run(tmp_path, "status")

    lines = [line.strip() for line in result.output.splitlines()]
    assert result.exit_code == 0
    assert "scaling in paused until 2027-01-15 08:10:00Z, by anna\\x1b[2J" in lines
    assert "scaling in both directions paused until resumed, by ben" in lines
    assert "override to 4 until 2027-01-15 09:00:00Z, by kim" in lines
    assert "dry-run: decisions are logged, and nothing is changed" in lines
    assert any(line.startswith("1 poison message: the host gave up on them") for line in lines)
    assert any(line.startswith("metrics-poison of 2027-01-15 08:00:00Z: rubbish") for line in lines)
    assert "\x1b" not in result.output


@pytest.mark.parametrize(("age", "shown"), [(150.0, []), (151.0, ["no decision for 211 s"])])
def test_status_says_when_decisions_have_ceased(tmp_path, running, age, shown):
    """A line such as 'cooling down (423 s left)' stays as it was, and looks as if somebody still decided."""
    asyncio.run(running.pass_minutes(2))  # the last decision is a minute old
    running.clock.now += age
    lines = run(tmp_path, "status").output.splitlines()

    found = [line.strip().partition(":")[0] for line in lines if "no decision" in line]
    assert found == shown


def test_status_at_80_columns_cuts_nothing_and_says_why_a_read_failed_while_another_controller_holds(
    tmp_path, running, monkeypatch
):
    monkeypatch.setattr("tidemark.commands.autoscaler.console", Console(width=80))
    failure = MetricFailure("backlog", NOW, "access refused: the role Service Bus Counter is missing")

    async def save():
        loaded = await running.states.load("plan")
        state = at(5, external_change=ExternalChange(7, 5, NOW - 60))
        await running.states.save(loaded, state, {"backlog": Window(failure=failure)})

    asyncio.run(save())
    shown = run(tmp_path, "status").output

    assert f"backlog was not read: {failure.message}" in shown
    assert "backlog ? (collect_failed)" in shown
    assert "…" not in shown
    assert "storage: the local stack (AzureWebJobsStorage)" in shown


def test_status_shows_the_budget_and_its_warning(tmp_path, running):
    day = NOW - 8 * 3600
    spent = Spent(day, day, NOW, 40.0, 5, 5.0)
    running.policy = changed(running.policy, budget=Budget(amount=72.0))

    async def save():
        loaded = await running.states.load("plan")
        await running.states.save(loaded, at(5, spent=spent), {})

    asyncio.run(save())
    lines = [line.strip() for line in run(tmp_path, "status").output.splitlines()]

    assert "budget: 40 of 72 instance-hours spent today, 16.0 h left at 2: 4 allowed, up to 7 kept" in lines
    assert any(line.startswith("the budget will not last: 40 of 72") for line in lines)


def test_status_shows_calls_in_place_of_targets(tmp_path, running):
    assert "no process has reported its calls within the last hour" in words(
        run(tmp_path, "status", "--calls")
    )
    assert json.loads(run(tmp_path, "status", "--calls", "--json").output)["processes"] == []


def test_status_as_json_is_what_the_api_shows(tmp_path, running):
    shown = json.loads(run(tmp_path, "status", "--json").output)

    assert [view["target"] for view in shown["targets"]] == ["plan"]
    assert shown["poison"]["count"] == 0


def test_the_log_of_a_target_that_never_was_is_an_error_that_names_the_nearest(tmp_path, running):
    nope, near = run(tmp_path, "log", "--target", "nope"), run(tmp_path, "log", "--target", "plam")

    assert (nope.exit_code, near.exit_code) == (2, 2)
    assert "found 'nope', of which the log has nothing; configured are plan" in words(nope)
    assert "did you mean 'plan'?" in words(near)


def test_the_log_shows_what_is_no_target_any_more_and_lets_nothing_move_the_cursor(tmp_path, running):
    line = "control consumer flights: the rate is 5, by \x1b[2Jann\nforged"
    entry = LogEntry("consumer flights", NOW - 60, LogKind.CONTROL, "control-rate", line, "rate")
    asyncio.run(running.log.append([entry]))

    result = run(tmp_path, "log", "--target", "consumer flights", "--since", "1h")

    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "2027-01-15 07:59:00Z control consumer flights: the rate is 5, by \\x1b[2Jann forged"
    ]


def test_no_entries_of_a_target_that_exists_is_no_error(tmp_path, running):
    result = run(tmp_path, "log", "--target", "plan")

    assert (result.exit_code, result.output) == (0, "no entries in the last 1 h\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("replay", "no-id"), "is not a decision id"),
        (("log", "--since", "soon"), "durations such as"),
    ],
)
def test_wrong_arguments_are_named_with_what_is_accepted(tmp_path, arguments, text):
    result = run(tmp_path, *arguments, config=GOOD.replace("IN_BELOW", "100"))

    assert result.exit_code == 2
    assert text in " ".join(result.output.replace("│", " ").split())


def test_the_environment_overrides_the_settings_file(tmp_path, monkeypatch):
    (tmp_path / "local.settings.json").write_text('{"Values": {"A": "file", "B": "file"}}')
    monkeypatch.setenv("B", "environment")

    settings = settings_of(tmp_path)

    assert (settings["A"], settings["B"]) == ("file", "environment")


@pytest.mark.parametrize(
    ("setting", "value", "shown"),
    [
        ("AzureWebJobsStorage", None, "AzureWebJobsStorage"),
        ("TIDEMARK_CA_BUNDLE", "none.pem", "TIDEMARK_CA_BUNDLE names"),
    ],
)
def test_a_setting_that_is_at_fault_is_named_without_a_traceback(
    tmp_path, monkeypatch, setting, value, shown
):
    monkeypatch.delenv(setting, raising=False)
    if value is not None:
        monkeypatch.setenv(setting, str(tmp_path / value))

    result = run(tmp_path, "status", config=GOOD.replace("IN_BELOW", "100"))

    assert result.exit_code == 1
    assert shown in words(result)


def test_status_shows_targets_though_the_poison_queues_may_not_be_read(tmp_path, running, monkeypatch):
    async def peek(limit=16):
        raise StoreUnavailableError("queue metrics-poison: 403")

    monkeypatch.setattr(running.poison, "peek", peek)
    shown, as_json = run(tmp_path, "status"), run(tmp_path, "status", "--json")

    assert shown.exit_code == 0
    assert "plan: no report yet" in shown.output
    assert "poison messages are not known: queue metrics-poison: 403" in words(shown)
    assert as_json.exit_code == 1


@pytest.fixture
def trying(monkeypatch):
    """The commands over a target with a shadow, of which six minutes are known."""
    tried = ShadowSpec(rules=(fixed(6),), minimum=1, maximum=10)
    world = World(policy(shadow=tried))
    asyncio.run(world.pass_minutes(6))
    return commanded(monkeypatch, world)


def test_shadow_shows_both_sides_and_whether_to_switch(tmp_path, trying):
    result = run(tmp_path, "shadow")

    assert result.exit_code == 0
    assert "shadow (simulated)" in words(result)
    assert "plan: too little seen: 5 min of at least 1 d" in words(result)
    assert "name the metric of the backlog in [targets.plan.shadow]" in words(result)
    shown = json.loads(run(tmp_path, "shadow", "plan", "--json").output)
    assert (shown["plan"]["current"], shown["plan"]["switch"]) == (6, False)


def test_promoting_is_an_order_that_is_told_and_undone(tmp_path, trying):
    result = run(tmp_path, "shadow", "plan", "--promote", "--by", "kim")

    assert result.exit_code == 0
    assert "its rules decide; tidemark.toml should follow" in words(result)
    (control,) = asyncio.run(trying.entries("control"))
    assert (control.by, control.line.rpartition(", by ")[2]) == ("kim", "kim")
    assert "shadow promoted at" in words(run(tmp_path, "status"))
    asyncio.run(trying.pass_minutes(3))
    assert trying.platform.capacity == 6
    assert "configured (simulated)" in words(run(tmp_path, "shadow"))

    assert run(tmp_path, "shadow", "plan", "--withdraw", "--by", "kim").exit_code == 0

    asyncio.run(trying.pass_minutes(1))
    assert "shadow (simulated)" in words(run(tmp_path, "shadow"))


def test_a_shadow_that_the_app_has_not_compared_is_not_promoted(tmp_path, trying):
    """The file of this machine is not the one that is deployed."""
    trying.policy = policy(shadow=ShadowSpec(rules=(fixed(9),), minimum=1, maximum=10))

    result = run(tmp_path, "shadow", "plan", "--promote", "--by", "kim")

    assert result.exit_code == 2
    assert "the comparison that was seen is of another shadow than tidemark.toml has here" in words(result)
    assert asyncio.run(trying.entries("control")) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["plan", "--promote", "--by", " "], "by: found ' '; a name is accepted"),
        (["--promote", "--by", "kim"], "TARGET: is missing; an order is for one target"),
        (["plam"], "found 'plam'; did you mean 'plan'?"),
    ],
)
def test_an_order_that_cannot_be_given_changes_nothing(tmp_path, trying, arguments, text):
    result = run(tmp_path, "shadow", *arguments)

    assert result.exit_code == 2
    assert text in words(result)
    assert asyncio.run(trying.entries("control")) == []


def test_the_log_shows_what_was_decided_beside_where_it_differs(tmp_path, trying):
    result = run(tmp_path, "log", "--limit", "1")

    assert [line.strip()[:20] for line in result.output.splitlines()][1] == "shadow plan hold 6: "


def test_lint_takes_a_file_by_name_with_the_settings_beside_it(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (there / "other.toml").write_text(
        GOOD.replace("IN_BELOW", "100").replace("AzureWebJobsStorage", "Orders")
    )
    (there / ".env").write_text("Orders=UseDevelopmentStorage=true")

    right, folder, missing = (
        CliRunner().invoke(app, ["lint", str(there / name), "--root", str(here)])
        for name in ("other.toml", "", "none.toml")
    )

    assert (right.exit_code, words(right)) == (0, f"{there}/other.toml: 1 target checked, 0 findings")
    assert (folder.exit_code, missing.exit_code) == (1, 1)
    assert f"{there}: cannot be read: Is a directory" in words(folder)
    assert f"{there}/none.toml: is not there" in words(missing)


def test_lint_warns_while_a_promotion_stands(tmp_path, trying, monkeypatch):
    monkeypatch.setattr(
        "tidemark.commands.autoscaler.read_config", lambda *_, **__: trying.autoscaler().config
    )
    assert "promoted" not in words(run(tmp_path, "lint"))

    run(tmp_path, "shadow", "plan", "--promote", "--by", "kim")

    assert "warning targets.plan: its shadow decides, promoted by kim" in words(run(tmp_path, "lint"))


def test_lint_without_a_store_says_that_promotions_are_not_known(tmp_path, trying, monkeypatch):
    monkeypatch.setattr(
        "tidemark.commands.autoscaler.read_config", lambda *_, **__: trying.autoscaler().config
    )

    def gone(call):
        raise StoreUnavailableError("no answer")

    trying.states.before = gone
    result = run(tmp_path, "lint")

    assert result.exit_code == 0
    assert "note whether a shadow is promoted is not known: no answer" in words(result)


def test_the_log_of_an_account_needs_no_setting_of_any_target(tmp_path, monkeypatch):
    """Whoever may read the tables need not know which plans the app scales."""
    seen = []

    class Log(MemoryDecisionLog):
        def __init__(self, settings, prefix):
            seen.append(dict(settings))
            super().__init__()

    monkeypatch.setattr("scaling.service.assembly.TableDecisionLog", Log)
    monkeypatch.setenv("TIDEMARK_SETTING", "kept")
    config = GOOD.replace('resource_id = "/subscriptions', 'resource_id = "%NOT_SET%/subscriptions')
    (tmp_path / "local.settings.json").write_text('{"Values": {"NOT_SET": "local", "LOCAL_ONLY": "1"}}')

    logged = run(tmp_path, "log", "--account", "sttidemark", config=config.replace("IN_BELOW", "100"))
    status = run(tmp_path, "status", "--account", "sttidemark")
    unnamed = run(tmp_path, "log")

    assert (logged.exit_code, words(logged)) == (0, "no entries in the last 1 h")
    assert seen[0]["AzureWebJobsStorage__accountName"] == "sttidemark"
    assert seen[0]["TIDEMARK_SETTING"] == "kept"
    assert {"AzureWebJobsStorage", "LOCAL_ONLY"} & set(seen[0]) == set()
    assert status.exit_code == 1
    assert "app setting 'NOT_SET'" in words(status)
    assert unnamed.exit_code == 1  # what is meant is told by settings, and these are wrong


def test_orders_are_given_by_name_and_told(tmp_path, running):
    given = run(tmp_path, "order", "pause", "plan", "--direction", "in", "--for", "30m", "--by", "ann")
    nameless = run(tmp_path, "order", "resume", "plan", "--by", " ")
    unknown = run(tmp_path, "order", "resume", "plam", "--by", "ann")
    wrong = run(tmp_path, "order", "override", "plan", "99", "--by", "ann")

    assert (given.exit_code, words(given)) == (0, "plan: scaling in paused for 30 min")
    assert "by: found ' '; a name is accepted" in words(nameless)
    assert "TARGET: found 'plam'; accepted are plan" in words(unknown)
    assert "capacity: found 99; accepted are whole numbers 1 to 10" in words(wrong)
    assert [each.exit_code for each in (nameless, unknown, wrong)] == [2, 2, 2]
    (entry,) = asyncio.run(running.entries("control"))
    assert entry.by == "ann"


@pytest.mark.parametrize("account", ["kim", None])
def test_an_order_without_a_name_has_that_of_the_account_here(tmp_path, running, monkeypatch, account):
    """As for the rate of a consumer. In a container an account may have no name."""

    def getuser():
        if account is None:
            raise OSError("no such user")
        return account

    monkeypatch.setattr("getpass.getuser", getuser)

    given = run(tmp_path, "order", "resume", "plan")

    assert given.exit_code == 0
    (entry,) = asyncio.run(running.entries("control"))
    assert entry.by == account or re.fullmatch(r"user \d+", entry.by)
