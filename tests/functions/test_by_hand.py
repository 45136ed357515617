"""Every function as "Test/Run" in the portal calls it, in Microsoft's worker library: with what a person types, and with what
they read. docs/azure-portal.md has the same as a table."""

import asyncio
import json
from pathlib import Path

import pytest

from devstack.stack.supervisor import ANY_PORTS, Stack
from tests.functions.worker_harness import run_worker
from tests.support.consumer.stack import consumer_world
from tests.support.servers.threaded import running_in_thread
from tidemark.foundation.log.tail import without_tail

ROOT = Path(__file__).resolve().parents[2]
SCHEDULES = {"COLLECT_SCHEDULE": "0 * * * * *", "VERIFY_SCHEDULE": "30 * * * * *"}
TIMER = {"timer": {"IsPastDue": False, "ScheduleStatus": None}}
PAGE = (ROOT / "docs/azure-portal.md").read_text(encoding="utf-8")

pytestmark = [pytest.mark.wire, pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
def settings():
    """The local servers, with the subscription and the plan that tidemark.toml names."""
    with running_in_thread(lambda: Stack(ANY_PORTS)) as running:
        plan = running.call(lambda: running.server.add_workload(capacity=1))
        yield {**running.call(running.server.settings), **SCHEDULES, "ORDERS_PLAN_ID": plan}


def run(settings, *requests):
    answer = run_worker(ROOT, requests, settings)
    assert answer["error"] is None
    return answer["invocations"]


def said(invocation):
    return [without_tail(line["message"]) for line in invocation["log"]]


def typed(function, body):
    return {"function": function, "queue": body}


def test_a_timer_by_hand_says_what_it_found(settings):
    collect, verify = run(
        settings, {"function": "collect_metrics", **TIMER}, {"function": "verify_effects", **TIMER}
    )

    assert said(collect) == ["collector plan-orders: backlog 0, capacity 1"]
    assert said(verify) == ["verify: 1 target checked, as requested"]


@pytest.mark.parametrize("body", ["plan-orders", ""])
def test_a_queues_function_by_hand_answers_about_the_target_that_is_typed(settings, body):
    logic, scaler, log = run(
        settings,
        typed("scaling_logic", body),
        typed("scaler", body),
        {"function": "scaling_log", "http": {}},
    )

    collected, decided = said(logic)
    assert collected == "collector plan-orders: backlog 0, capacity 1"
    assert decided.startswith(
        "asked plan-orders: now it would be: scaling plan-orders hold 1: collecting backlog, "
    )
    assert said(scaler) == [
        "asked plan-orders: capacity 1 (1 to 30 on this platform); no action is pending; nothing was changed"
    ]
    assert logic["outputs"].get("actions") is None
    assert json.loads(log["return"]["value"]["body"]["value"])["entries"] == []  # it counts as no decision


def test_what_nobody_can_mean_fails_and_says_what_to_type(settings):
    logic, scaler = run(settings, typed("scaling_logic", "orders"), typed("scaler", "?"))

    assert not logic["ok"]
    assert (
        "not a report message: found 'orders'; to ask by hand, type the name of a target: plan-orders"
        in logic["error"]
    )
    assert "not an action message: found '?'; to ask by hand, type the name of a target" in scaler["error"]


def test_a_function_of_http_answers_and_an_order_says_what_it_did(settings):
    def http(function, body="", **params):
        return {
            "function": function,
            "http": {"method": "POST" if body else "GET", "params": params, "body": body},
        }

    answers = run(
        settings,
        http("scaling_status"),
        http("scaling_log"),
        http(
            "scaling_control",
            '{"direction": "in", "for": "30m", "by": "ann"}',
            target="plan-orders",
            order="pause",
        ),
        http("scaling_control", '{"by": "ann"}', target="plan-orders", order="resume"),
        http("scaling_control", "pause", target="plan-orders", order="pause"),
        http("consumer_status"),
        http("consumer_rate", '{"rate": "fast", "by": "ann"}', name="flights"),
        http("health"),
    )
    status, _, paused, resumed, wrong, _, rate, health = (each["return"]["value"] for each in answers)

    def body(answer):
        return json.loads(answer["body"]["value"])

    assert body(status)["targets"][0]["target"] == "plan-orders"
    assert body(paused)["done"] == "scaling in paused for 30 min"
    assert said(answers[2]) == ["control plan-orders: scaling in paused for 30 min, by ann"]
    assert "done" in body(resumed)
    assert (wrong["status_code"]["value"], rate["status_code"]["value"]) == ("400", "400")
    assert all(body(each)["error"] for each in (wrong, rate))
    assert body(health)["status"] == "healthy"


async def test_the_consumers_functions_by_hand(azurite, tmp_path):
    async with consumer_world(azurite, tmp_path, partitions=1) as world:
        world.produce(5, partitions=1)
        slices = {**SCHEDULES, **world.settings, "CONSUMER_HOSTING": "slices", "CONSUMER_SLICE": "4"}
        (ran,) = await asyncio.to_thread(run, slices, {"function": "consume_slice", **TIMER})
        trigger = slices | {"CONSUMER_HOSTING": "trigger"}
        typed_in = {"function": "consume_events", "events": ["body"], "metadata": {}}
        (by_hand,) = await asyncio.to_thread(run, trigger, typed_in)

    assert ran["ok"]
    assert any(line.startswith("5 successes, 0 failures, 0 retries") for line in said(ran))
    assert not by_hand["ok"]


def test_the_table_of_the_guide_names_every_function_that_can_be_run(settings):
    listed = {
        line.split("`")[1]
        for line in PAGE.split("## Run a function by hand")[1].split("\n## ")[0].splitlines()
        if line.startswith("| `")
    }
    names = set()
    for hosting in ("slices", "trigger"):
        answer = run_worker(ROOT, [], {**settings, "CONSUMER_HOSTING": hosting})
        names |= {function["name"] for function in answer["functions"]}

    assert listed == names
