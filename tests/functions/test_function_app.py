"""The product's own function_app.py in Microsoft's worker library: what it accepts is what Azure accepts."""

import asyncio
import json
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from consumer.telemetry.stats_store import TableStatsStore
from devstack.function_host import FunctionHost
from devstack.function_host.settings import load_host_json
from devstack.stack.supervisor import ANY_PORTS, Stack
from scaling.model import Capacity, MetricSample, MetricsReport, Reason, ScaleAction
from scaling.service.messages import decode, encode
from tests.functions.worker_harness import run_worker
from tests.support.principals import OBJECT_ID, PLATFORM, SIGN_IN, order_headers, principal
from tests.support.servers.threaded import running_in_thread
from tidemark.foundation.consumer_stats import ConsumerStats

ROOT = Path(__file__).resolve().parents[2]
SCHEDULES = {"COLLECT_SCHEDULE": "0 * * * * *", "VERIFY_SCHEDULE": "30 * * * * *"}

pytestmark = pytest.mark.wire


@pytest.fixture(scope="module")
def stack():
    """The local servers, with the subscription and the plan that tidemark.toml names."""
    with running_in_thread(lambda: Stack(ANY_PORTS)) as running:
        running.plan_id = running.call(lambda: running.server.add_workload(capacity=1))
        yield running


@pytest.fixture
def settings(stack):
    return {**stack.call(stack.server.settings), **SCHEDULES, "ORDERS_PLAN_ID": stack.plan_id}


def reports(values, *, now, capacity=1):
    """Reports a minute apart, the last at `now`, as the collector would have made them."""
    for index, value in enumerate(values):
        at = round(now - 60.0 * (len(values) - 1 - index), 3)
        yield MetricsReport(
            "plan-orders", at, (MetricSample("backlog", at, value),), (), Capacity(capacity, at, ceiling=30)
        )


def queue(function, body):
    return {"function": function, "queue": body}


@pytest.fixture(scope="module")
def indexed():
    answer = run_worker(ROOT, settings=SCHEDULES)
    assert answer["error"] is None
    return answer


def test_the_worker_indexes_every_function_of_the_app(indexed):
    triggers = {f["name"]: f["bindings"][0] for f in indexed["functions"]} | {
        f["name"]: next(b for b in f["bindings"] if b["type"].endswith("Trigger"))
        for f in indexed["functions"]
    }
    assert {name: binding["type"] for name, binding in triggers.items()} == {
        "collect_metrics": "timerTrigger",
        "consumer_rate": "httpTrigger",
        "consumer_status": "httpTrigger",
        "dashboard": "httpTrigger",
        "health": "httpTrigger",
        "notify_test": "httpTrigger",
        "scaler": "queueTrigger",
        "scaling_calls": "httpTrigger",
        "scaling_control": "httpTrigger",
        "scaling_doctor": "httpTrigger",
        "scaling_drain": "httpTrigger",
        "scaling_history": "httpTrigger",
        "scaling_log": "httpTrigger",
        "scaling_logic": "queueTrigger",
        "scaling_recommendation": "httpTrigger",
        "scaling_status": "httpTrigger",
        "scaling_trial": "httpTrigger",
        "send_notices": "timerTrigger",
        "verify_effects": "timerTrigger",
    }
    assert triggers["collect_metrics"]["schedule"] == "%COLLECT_SCHEDULE%"
    assert triggers["scaling_logic"]["queueName"] == "metrics"
    assert triggers["scaler"]["queueName"] == "actions"
    levels = {name: b["authLevel"] for name, b in triggers.items() if b["type"] == "httpTrigger"}
    assert levels == {
        "consumer_rate": "FUNCTION",
        "consumer_status": "FUNCTION",
        "dashboard": "FUNCTION",
        "health": "ANONYMOUS",
        "notify_test": "FUNCTION",
        "scaling_calls": "FUNCTION",
        "scaling_control": "FUNCTION",
        "scaling_doctor": "FUNCTION",
        "scaling_drain": "FUNCTION",
        "scaling_history": "FUNCTION",
        "scaling_log": "FUNCTION",
        "scaling_recommendation": "FUNCTION",
        "scaling_status": "FUNCTION",
        "scaling_trial": "FUNCTION",
    }


def test_the_local_host_sees_the_same_bindings_as_the_worker(indexed):
    import function_app  # noqa: PLC0415 - the app can be indexed once per process

    host = FunctionHost(
        function_app.app,
        settings=SCHEDULES,
        host_json=load_host_json(ROOT),
        storage_connection="UseDevelopmentStorage=true",
    )

    reported = {f["name"]: (f["bindings"], f["is_async"]) for f in indexed["functions"]}
    assert {f.name: (list(f.raw_bindings), f.is_async) for f in host.functions} == reported


def test_the_doctor_in_the_worker_tells_what_failed_in_its_answer_and_in_the_log(settings):
    """As the portal runs it; twice at once is examined once."""
    broken = {**settings, "VERIFY_SCHEDULE": "0 61 * * * *"}
    whole, unknown = {"http": {}}, {"http": {"query": {"target": "plan-orders,nobody"}}}
    calls = [{"function": "scaling_doctor", **each} for each in (whole, whole, unknown)]
    answer = run_worker(ROOT, calls, broken)

    first, second, refused = answer["invocations"]
    assert "target 'nobody' is not configured" in refused["return"]["value"]["body"]["value"]
    body = json.loads(first["return"]["value"]["body"]["value"])
    assert body["healthy"] is False
    assert [
        (check["check"], check["subject"]) for check in body["checks"] if check["verdict"] == "failed"
    ] == [("schedule", "VERIFY_SCHEDULE")]
    assert second["return"] == first["return"]
    told = [each["message"] for each in first["log"] if each["message"].startswith("doctor: failed")]
    assert [line.partition(": schedule ")[2][:15] for line in told] == ["VERIFY_SCHEDULE"]
    assert not [each for each in second["log"] if each["message"].startswith("doctor:")]


def test_collecting_in_the_worker_reports_backlog_and_capacity(settings, stack):
    plan = stack.call(lambda: stack.server.resource_manager.plan(stack.plan_id))  # another test scales it
    answer = run_worker(ROOT, [{"function": "collect_metrics", "timer": {"IsPastDue": False}}], settings)

    (invocation,) = answer["invocations"]
    assert invocation["ok"], invocation["traceback"]
    (message,) = json.loads(invocation["outputs"]["reports"]["value"])
    report = json.loads(message)["body"]
    assert report["target"] == "plan-orders"
    assert [(s["metric"], s["value"]) for s in report["samples"]] == [("backlog", 0.0)]
    assert (report["capacity"]["current"], report["capacity"]["ceiling"]) == (plan.capacity, 30)


def test_reports_become_an_action_and_the_action_moves_the_plan(settings, stack):
    now = time.time()
    requests = [queue("scaling_logic", encode(r)) for r in reports([900.0] * 5, now=now)]

    *holds, last = run_worker(ROOT, requests, settings)["invocations"]

    assert [invocation["ok"] for invocation in holds] == [True] * 4
    assert all(not invocation["outputs"].get("actions") for invocation in holds)
    (message,) = json.loads(last["outputs"]["actions"]["value"])
    action = decode(ScaleAction, message)
    assert (action.from_capacity, action.to_capacity, action.reason) == (1, 3, Reason.SCALE_OUT)
    assert "average backlog 900 > 250 over 5 min (5 samples)" in action.line

    http = [
        {"function": "scaling_status", "http": {}},
        {"function": "scaling_log", "http": {"query": {"target": "plan-orders", "limit": "3"}}},
        {
            "function": "scaling_control",
            "http": {
                "method": "POST",
                "params": {"target": "plan-orders", "order": "override"},
                "body": '{"capacity": 99, "by": "ann"}',
            },
        },
        {"function": "dashboard", "http": {}},
        {"function": "health", "http": {}},
    ]
    requests = [requests[-1], queue("scaler", message), *http]
    again, done, *answers = run_worker(ROOT, requests, settings)["invocations"]

    assert json.loads(again["outputs"]["actions"]["value"]) == [encode(action)]
    assert done["ok"], done["traceback"]
    assert stack.call(lambda: stack.server.resource_manager.plan(stack.plan_id).capacity) == 3
    status, log, refused, page, health = (invocation["return"]["value"] for invocation in answers)
    (target,) = json.loads(status["body"]["value"])["targets"]
    assert (target["current"], target["expected"], target["pending"]) == (3, 3, None)
    kinds = [entry["kind"] for entry in json.loads(log["body"]["value"])["entries"]]
    assert kinds == ["effect", "decision", "decision"]
    assert refused["status_code"]["value"] == "400"
    assert "accepted are whole numbers 1 to 10" in refused["body"]["value"]
    assert "<title>" in page["body"]["value"]
    assert json.loads(health["body"]["value"])["status"] == "healthy"


READ = ("scaling_status", "scaling_log", "consumer_status", "dashboard", "scaling_doctor")
ORDERS = (
    ("scaling_control", {"target": "plan-orders", "order": "resume"}),
    ("consumer_rate", {"name": "nobody"}),
    ("scaling_trial", {"target": "plan-orders"}),
    ("notify_test", {}),
)


def asked(function, headers, **more):
    return {"function": function, "http": {"headers": headers, **more}}


def every_route(headers):
    """Each function that HTTP reaches and that is not open to everybody, whatever is added to them."""
    indexed = run_worker(ROOT, settings=SCHEDULES)["functions"]
    names = {f["name"] for f in indexed if f["bindings"][0]["type"] == "httpTrigger"} - {"health"}
    assert names >= {*READ, *(function for function, _ in ORDERS)}
    params = {"target": "plan-orders", "order": "resume", "name": "nobody"}
    return [asked(name, headers, method="POST", params=params, body='{"by": "boss"}') for name in names]


def ordered(function, params, headers):
    return asked(function, headers, method="POST", params=params, body='{"by": "boss", "rate": 5}')


def answers_of(requests, settings):
    """The levels of the routes, and of each request the status and what the body holds."""
    answer = run_worker(ROOT, requests, settings)
    assert answer["error"] is None
    routes = [b for f in answer["functions"] for b in f["bindings"] if b["type"] == "httpTrigger"]
    levels = {b["route"]: b["authLevel"] for b in routes}
    values = [invocation["return"]["value"] for invocation in answer["invocations"]]
    return levels, [(int(value["status_code"]["value"]), value["body"]["value"]) for value in values]


def everything(*callers):
    """Each way into the app, tried by each caller: their roles, or None for somebody unknown."""
    for roles in callers:
        headers = order_headers("ann@example.org", *roles or ())
        if roles is None:
            del headers["x-ms-client-principal"]
        yield from (asked(function, headers) for function in READ)
        yield from (ordered(function, params, headers) for function, params in ORDERS)


def test_with_the_platforms_sign_in_roles_open_every_route_and_no_key_is_asked_for(settings):
    asking = list(everything(None, (), ("Tidemark.Reader",), ("Tidemark.Operator",)))

    levels, answers = answers_of(asking, {**settings, **SIGN_IN})

    assert set(levels.values()) == {"ANONYMOUS"}
    assert [status for status, _ in answers] == [
        *(401, 401, 401, 302, 401, 401, 401, 401, 401),
        *(403, 403, 403, 403, 403, 403, 403, 403, 403),
        *(200, 200, 200, 200, 200, 403, 403, 403, 403),
        *(200, 200, 200, 200, 200, 400, 404, 400, 400),
    ]


def test_with_sign_in_no_route_but_health_serves_somebody_unknown_or_without_a_role(settings):
    nobody = every_route(order_headers(x_ms_client_principal=None))
    nothing = every_route(order_headers("ann@example.org"))

    _, answers = answers_of([*nobody, *nothing], {**settings, **SIGN_IN})

    assert {status for status, _ in answers[: len(nobody)]} == {401, 302}
    assert {status for status, _ in answers[len(nobody) :]} == {403}


def test_an_order_is_logged_with_the_name_of_who_is_signed_in(settings):
    headers = order_headers("ann@example.org", "Tidemark.Operator")
    external = {**headers, "sec-fetch-site": "cross-site"}
    resume = {"method": "POST", "params": {"target": "plan-orders", "order": "resume"}}
    asking = [
        asked("scaling_control", external, **resume, body="{}"),
        asked("scaling_control", headers, **resume, body='{"by": "boss@example.org"}'),
        asked("scaling_log", headers, query={"limit": "1"}),
        asked("scaling_status", headers),
    ]

    _, (refused, done, log, status) = answers_of(asking, {**settings, **SIGN_IN})

    (entry,) = json.loads(log[1])["entries"]
    assert (refused[0], done[0]) == (403, 200)
    assert entry["by"] == "ann@example.org"
    assert entry["line"].endswith(f"by ann@example.org (object {OBJECT_ID})")
    assert json.loads(status[1])["signed_in"] == "ann@example.org"


@pytest.mark.parametrize(
    "around",
    [
        {},
        {"TIDEMARK_SIGN_IN": "true"},
        {**SIGN_IN, "WEBSITE_AUTH_ENABLED": "False"},
        {**SIGN_IN, "AZURE_FUNCTIONS_ENVIRONMENT": "Development"},
    ],
)
def test_without_the_platform_keys_are_asked_for_and_forged_headers_are_refused(settings, around):
    asking = every_route(order_headers("boss", "Tidemark.Reader", "Tidemark.Operator"))

    levels, answers = answers_of(asking, {**settings, **around})

    assert levels.pop("health") == "ANONYMOUS"
    assert set(levels.values()) == {"FUNCTION"}
    assert {status for status, _ in answers} == {403}
    assert all("accepted only from App Service authentication" in body for _, body in answers)


def test_with_keys_and_the_platforms_sign_in_the_name_is_the_true_one(settings):
    headers = {"x-ms-client-principal": principal("ann@example.org")}
    cut = {"x-ms-client-principal": principal("ann@example.org")[:-9]}
    control, params = ORDERS[0]
    asking = [
        ordered(control, params, cut),
        asked(control, headers, method="POST", params=params, body='{"by": "boss"}'),
        asked("scaling_log", {}, query={"limit": "1"}),
    ]

    levels, (refused, done, log) = answers_of(asking, {**settings, **PLATFORM})

    assert levels["scaling/{target}/{order}"] == "FUNCTION"
    assert (refused[0], done[0]) == (400, 200)
    assert json.loads(log[1])["entries"][0]["by"] == "ann@example.org"


async def seen(settings, consumer):
    store = TableStatsStore(settings, "AzureWebJobsStorage")
    async with aclosing(store):
        await store.put(ConsumerStats(consumer=consumer, instance="vm-1", at=time.time() - 3600))


def test_a_consumer_is_slowed_down_and_shown_over_http(settings):
    asyncio.run(seen(settings, "flights"))

    def rate(body):
        http = {"method": "POST", "params": {"name": "flights"}, "body": body}
        return {"function": "consumer_rate", "http": http}

    requests = [
        rate('{"rate": 500, "by": "ann"}'),
        rate('{"rate": "fast", "by": "ann"}'),
        {"function": "consumer_status", "http": {}},
        {"function": "scaling_log", "http": {"query": {"limit": "1"}}},
    ]
    given, refused, status, log = (
        invocation["return"]["value"] for invocation in run_worker(ROOT, requests, settings)["invocations"]
    )

    assert given["status_code"]["value"] == "200"
    assert refused["status_code"]["value"] == "400"
    [consumer] = json.loads(status["body"]["value"])["consumers"]
    assert (consumer["consumer"], consumer["order"]["rate"], consumer["live"]) == ("flights", 500.0, 0)
    assert "500 records/s" in json.loads(log["body"]["value"])["entries"][0]["line"]


def test_a_bad_message_fails_its_invocation_with_a_clear_error(settings):
    answer = run_worker(ROOT, [queue("scaling_logic", "garbage"), queue("scaler", "{}")], settings)

    garbage, empty = answer["invocations"]
    assert not garbage["ok"]
    assert "not a report message" in garbage["error"]
    assert not empty["ok"]


def test_a_configuration_with_problems_is_told_by_status_and_health(settings, tmp_path):
    broken = tmp_path / "broken.toml"
    broken.write_text("[targets.x]\nscaler = 'app_service_plan'\nmaximum = 0\n")
    answer = run_worker(
        ROOT,
        [{"function": "scaling_status", "http": {}}, {"function": "health", "http": {}}],
        {**settings, "TIDEMARK_CONFIG": str(broken)},
    )

    status, health = (invocation["return"]["value"] for invocation in answer["invocations"])
    assert status["status_code"]["value"] == "503"
    assert "targets.x.maximum" in status["body"]["value"]
    assert health["status_code"]["value"] == "503"
    assert "maximum" not in health["body"]["value"]
