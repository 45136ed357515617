"""What reaches the host's log, and so the bill: our lines and nobody else's, counted in Microsoft's worker library."""

import json
import time
from functools import partial
from pathlib import Path

import pytest

from devstack.stack.supervisor import ANY_PORTS, RESOURCE_GROUP, SUBSCRIPTION, Stack
from scaling.model import Capacity, MetricSample, MetricsReport
from scaling.service.messages import encode
from tests.functions.worker_harness import foreign, logged, run_worker
from tests.support.servers.threaded import running_in_thread
from tidemark.foundation.log.tail import MARK

ROOT = Path(__file__).resolve().parents[2]
SCHEDULES = {"COLLECT_SCHEDULE": "0 * * * * *", "VERIFY_SCHEDULE": "30 * * * * *"}
PLANS = ("plan-a", "plan-b", "plan-c")
TIMER = {"timer": {"IsPastDue": False}}

pytestmark = [pytest.mark.wire, pytest.mark.timeout(90)]


def target(plan, plan_id):
    return f"""
[targets.{plan}]
scaler = "app_service_plan"
resource_id = "{plan_id}"
maximum = 10
[targets.{plan}.metrics.backlog]
collector = "service_bus_subscription"
connection = "OrdersServiceBus"
topic = "orders"
subscription = "fulfilment"
window = "5m"
[[targets.{plan}.rules]]
type = "threshold"
metric = "backlog"
scale_out_above = 250
scale_in_below = 100
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """A stack with three plans, each a target."""
    with running_in_thread(lambda: Stack(ANY_PORTS)) as stack:
        stack.call(stack.server.add_workload)
        ids = [
            stack.call(partial(stack.server.resource_manager.add_plan, SUBSCRIPTION, RESOURCE_GROUP, plan))
            for plan in PLANS
        ]
        config = tmp_path_factory.mktemp("config") / "tidemark.toml"
        config.write_text("version = 1\n" + "".join(map(target, PLANS, ids)))
        yield {**stack.call(stack.server.settings), **SCHEDULES, "TIDEMARK_CONFIG": str(config)}


def minute():
    """The invocations of one minute with three targets."""
    now = round(time.time(), 3)
    reports = [
        MetricsReport(plan, now, (MetricSample("backlog", now, 90.0),), (), Capacity(1, now, ceiling=30))
        for plan in PLANS
    ]
    decisions = [{"function": "scaling_logic", "queue": encode(report)} for report in reports]
    return [{"function": "collect_metrics", **TIMER}, *decisions, {"function": "verify_effects", **TIMER}]


def test_a_minute_with_three_targets_logs_one_line_per_report_one_per_decision_and_one_of_the_check(settings):
    lines = logged(run_worker(ROOT, minute(), settings))

    assert foreign(lines) == []
    assert [line["message"].replace(":", "").split()[:2] for line in lines] == [
        *(["collector", plan] for plan in PLANS),
        *(["scaling", plan] for plan in PLANS),
        ["verify", "3"],
    ]


def test_each_line_of_a_minute_ends_with_its_fields(settings):
    lines = logged(run_worker(ROOT, minute(), settings))

    tails = [json.loads(line["message"][line["message"].rindex(MARK) :]) for line in lines]
    assert [(tail["kind"], tail.get("target")) for tail in tails] == [
        *(("report", plan) for plan in PLANS),
        *(("decision", plan) for plan in PLANS),
        ("check", None),
    ]
    assert all(tail["reason"] == "incomplete_window" for tail in tails if tail["kind"] == "decision")


def test_the_lines_of_the_sdks_come_back_with_a_setting(settings):
    collect, *_ = minute()

    lines = logged(run_worker(ROOT, [collect], {**settings, "TIDEMARK_SDK_LOG_LEVEL": "info"}))

    assert any("http_logging_policy" in line["logger"] for line in foreign(lines))


def test_a_library_that_sets_the_level_back_is_overruled_at_the_next_invocation(settings, tmp_path):
    talkative = (
        (ROOT / "function_app.py").read_text()
        + "import logging\n"
        + "logging.getLogger('azure').setLevel(logging.INFO)\n"
    )
    (tmp_path / "function_app.py").write_text(talkative)

    lines = logged(run_worker(tmp_path, minute(), {**settings, "PYTHONPATH": str(ROOT)}))

    assert foreign(lines) == []


def test_a_level_that_is_none_is_told_and_does_not_take_the_functions_away(settings):
    answer = run_worker(
        ROOT,
        [{"function": "collect_metrics", **TIMER}, {"function": "scaling_status", "http": {}}],
        {**settings, "TIDEMARK_SDK_LOG_LEVEL": "loud"},
    )

    collected, status = answer["invocations"]
    told = "TIDEMARK_SDK_LOG_LEVEL is 'loud'; accepted: DEBUG, INFO, WARNING, ERROR, CRITICAL"
    assert told in collected["error"]
    assert told in status["return"]["value"]["body"]["value"]
    assert [line["level"] for line in foreign(collected["log"])] == ["ERROR"]  # the worker's, of the failure
