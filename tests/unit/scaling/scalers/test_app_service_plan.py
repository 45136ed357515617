"""What the App Service scaler knows without a network: ids, limits, refusals, errors, addresses."""

import asyncio
import json
import time
from types import SimpleNamespace

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
)

from scaling.scalers.app_service.plan import plan_id, plan_seen, why_refused
from scaling.scalers.app_service.scaler import AppServicePlanScaler
from scaling.scalers.arm import clients as arm
from scaling.scalers.arm.errors import Kind, classify
from scaling.service.reading import LONGEST_ROUND
from tests.support.virtual_time import virtual_time
from tidemark.foundation.settings_reader import parse_params

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
ID = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg/providers/Microsoft.Web/serverfarms/plan"


def test_a_resource_id_is_read_whatever_its_case():
    found = plan_id(ID.replace("serverfarms", "serverFarms").replace("resourceGroups", "resourcegroups"))

    assert str(found).casefold() == ID.casefold()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("plan", "full resource id"),
        (ID + "/extra", "full resource id"),
        (ID.replace("/subscriptions", "/subscription"), "full resource id /subscriptions/<subscription>/"),
        (ID.replace("serverfarms", "sites"), "found a resource of type 'Microsoft.Web/sites'"),
        (
            ID.replace("Microsoft.Web", "Microsoft.Compute"),
            "'Microsoft.Compute/serverfarms'; accepted is Micro",
        ),
        (ID + "/slots/a", "found a resource of type 'Microsoft.Web/serverfarms/slots'"),
        (ID.replace(SUBSCRIPTION, "prod"), "found subscription 'prod'; accepted is a GUID"),
        (ID.replace("/rg/", "//"), "found '/subscriptions/"),
        (ID.removesuffix("plan"), "full resource id"),
    ],
)
def test_a_malformed_resource_id_names_the_part_at_fault(text, words):
    with pytest.raises(ValueError) as raised:
        plan_id(text)

    assert words in str(raised.value)


def test_the_configuration_reports_a_malformed_resource_id_under_its_option():
    _, problems = parse_params(AppServicePlanScaler.Params, {"resource_id": "plan"})

    assert list(problems) == ["resource_id"]
    assert "full resource id" in problems["resource_id"]


def plan(name="S1", tier="Standard", capacity: int | None = 2, **properties):
    usual = {
        "elasticScaleEnabled": False,
        "maximumNumberOfWorkers": 10,
        "numberOfWorkers": 2,
        "zoneRedundant": False,
        "provisioningState": "Succeeded",
        "targetWorkerCount": 0,
    }
    sku = {"name": name, "tier": tier, "capacity": capacity}
    return {"id": ID, "sku": sku, "properties": {**usual, **properties}}


@pytest.mark.parametrize(
    ("name", "tier"),
    [
        ("B1", "Basic"),
        ("S1", "Standard"),
        ("P1v2", "PremiumV2"),
        ("P0v3", "Premium0V3"),
        ("P1v4", "PremiumV4"),
        ("I1v2", "IsolatedV2"),
    ],
)
def test_plans_with_instances_of_their_own_are_accepted(name, tier):
    assert why_refused(plan(name, tier)) is None


@pytest.mark.parametrize(
    ("name", "tier", "words"),
    [
        ("Y1", "Dynamic", "Consumption"),
        ("FC1", "FlexConsumption", "Flex Consumption"),
        ("EP2", "ElasticPremium", "Elastic Premium"),
        ("EP2", None, "Elastic Premium"),
        ("WS1", "WorkflowStandard", "Workflow Standard"),
        ("F1", "Free", "Free"),
        ("D1", "Shared", "Shared"),
    ],
)
def test_plans_without_instances_of_their_own_are_refused_with_advice(name, tier, words):
    assert words in why_refused(plan(name, tier))


def test_automatic_scaling_is_refused_and_a_plan_without_sku_too():
    for on in (True, "true", "soon"):  # what is not known to be off may be on
        assert "turn it off" in why_refused(plan("P1v3", "PremiumV3", elasticScaleEnabled=on))
    assert why_refused(plan("P1v3", "PremiumV3", elasticScaleEnabled="false")) is None
    assert why_refused({"sku": None}) == "the platform does not tell its SKU"


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        ({}, {"ceiling": 10, "floor": 1, "ready": 2, "pending": False, "target": None}),
        ({"maximumNumberOfWorkers": 9}, {"ceiling": 9}),
        ({"maximumNumberOfWorkers": 0}, {"ceiling": 10}),
        ({"maximumNumberOfWorkers": None, "tier": "PremiumV9"}, {"ceiling": None}),
        ({"zoneRedundant": True}, {"floor": 3}),
        ({"zoneRedundant": True, "maximumNumberOfWorkers": 2}, {"floor": 2}),
        ({"provisioningState": "InProgress"}, {"pending": True}),
        ({"asyncScalingEnabled": True, "targetWorkerCount": 5}, {"pending": True, "target": 5}),
        ({"asyncScalingEnabled": True, "targetWorkerCount": 2}, {"pending": False, "target": None}),
        ({"asyncScalingEnabled": False, "targetWorkerCount": 5}, {"pending": False, "target": None}),
        ({"numberOfWorkers": 0}, {"ready": None}),
    ],
)
def test_limits_and_what_is_under_way_are_read_from_the_plan_else_as_documented(properties, found):
    seen = plan_seen(plan(**properties), 3)

    assert {name: getattr(seen, name) for name in found} == found


def test_a_plan_without_a_capacity_is_an_error_not_a_zero():
    with pytest.raises(ValueError, match=r"sku\.capacity"):
        plan_seen(plan(capacity=None), 2)


def refusal(status: int, text: str, kind=HttpResponseError, **headers: str):
    response = SimpleNamespace(
        status_code=status, reason="", headers=headers, text=lambda encoding=None: text, request=None
    )
    return kind(response=response)


def provider(message: str, code: str | None = None) -> str:
    entity = {"ErrorEntity": {"ExtendedCode": code, "Message": message}}
    return json.dumps({"Code": "Conflict", "Message": message, "Details": [entity]})


def manager(code: str) -> str:
    return json.dumps({"error": {"code": code, "message": "Resource Manager says so."}})


@pytest.mark.parametrize(
    ("status", "text", "kind", "number"),
    [
        (429, provider("Cannot modify this plan.", "59205"), Kind.BUSY, None),
        (409, provider("because another operation is in progress. Details: 7"), Kind.BUSY, None),
        (409, provider("Number of Web workers exceeds the maximum.", "03002"), Kind.OVER_MAXIMUM, None),
        (409, provider("Number of workers exceeds the maximum of 7.", "03002"), Kind.OVER_MAXIMUM, 7),
        (
            429,
            provider(
                "Not enough available reserved instance servers to satisfy this request. "
                "Currently 3 instances are available. then you can add extra 2 instances at this moment."
            ),
            Kind.NO_SERVERS,
            2,
        ),
        (
            429,
            provider("Not enough available reserved instance servers. Currently 3 instances are available."),
            Kind.NO_SERVERS,
            3,
        ),
        (429, provider("exceeded the maximum amount of scale changes (20)"), Kind.TOO_MANY_CHANGES, None),
        (429, "", Kind.THROTTLED, None),
        (409, "not json", Kind.BUSY, None),
        (409, provider("Conflict of some other kind."), Kind.BUSY, None),
        (409, manager("AnotherOperationInProgress"), Kind.BUSY, None),
        (409, manager("ScopeLocked"), Kind.LOCKED, None),
        (409, manager("ReadOnlyDisabledSubscription"), Kind.INVALID, None),
        (409, manager("SkuNotAvailable"), Kind.INVALID, None),
        (401, "", Kind.FORBIDDEN, None),
        (403, "", Kind.FORBIDDEN, None),
        (404, "", Kind.NOT_FOUND, None),
        (400, provider("The parameter SKU cannot be null."), Kind.INVALID, None),
        (503, "", Kind.UNKNOWN, None),
        (200, '{"status": "Failed"}', Kind.UNKNOWN, None),
    ],
)
def test_refusals_are_told_apart_by_text_before_status(status, text, kind, number):
    failure = classify(refusal(status, text))

    assert (failure.kind, failure.number) == (kind, number)


def test_a_refusal_tells_its_words_and_how_long_to_wait():
    failure = classify(refusal(429, provider("Please wait."), **{"Retry-After": "17"}))

    assert (failure.story, failure.retry_after) == ("429: Please wait.", 17.0)
    assert classify(refusal(429, "", **{"Retry-After": "soon"})).retry_after is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "120"}, 120.0),
        ({"Retry-After": "-5"}, 0.0),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": ""}, None),
        ({}, None),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:27:00 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0.0),
        ({"Retry-After": "Wed, 99 Oct 2026 07:27:00 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
    ],
)
def test_how_long_to_wait_is_told_in_seconds_or_as_a_date(headers, seconds):
    assert classify(refusal(429, "", **headers)).retry_after == seconds


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
@pytest.mark.parametrize("date", ["Wed, 21 Oct 2026 07:28:30 GMT", "Wed Oct 21 07:28:30 2026"])
def test_a_date_to_wait_for_counts_from_now_where_the_answer_has_none_of_its_own(monkeypatch, date, zone):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        monkeypatch.setattr("time.time", lambda: 1_792_567_680.0)  # 2026-10-21 07:28:00 GMT
        assert classify(refusal(503, "", **{"Retry-After": date})).retry_after == 30.0
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "error", [KeyError("status"), RuntimeError(), ZeroDivisionError("x"), StopIteration()]
)
def test_what_nobody_thought_of_is_an_unknown_outcome(error):
    failure = classify(error)

    assert failure.kind is Kind.UNKNOWN
    assert type(error).__name__ in failure.story


def test_what_never_got_an_answer_is_unknown_and_a_missing_token_is_not():
    assert classify(ServiceRequestError("connection reset")).kind is Kind.UNKNOWN
    assert classify(TimeoutError()).kind is Kind.UNKNOWN
    assert classify(ClientAuthenticationError("no managed identity")).kind is Kind.NO_IDENTITY
    assert classify(refusal(400, "", ClientAuthenticationError)).kind is Kind.NO_IDENTITY
    assert classify(refusal(401, "", ClientAuthenticationError)).kind is Kind.FORBIDDEN


@pytest.mark.parametrize(
    ("settings", "address", "scope"),
    [
        ({}, "https://management.azure.com", "https://management.azure.com/.default"),
        (
            {arm.ENDPOINT: "https://management.chinacloudapi.cn/"},
            "https://management.chinacloudapi.cn",
            "https://management.chinacloudapi.cn/.default",
        ),
        (
            {arm.ENDPOINT: "https://localhost:9000"},
            "https://localhost:9000",
            "https://management.azure.com/.default",
        ),
        (
            {arm.ENDPOINT: "https://arm.stack.local", arm.AUDIENCE: "https://management.stack.local/id"},
            "https://arm.stack.local",
            "https://management.stack.local/id/.default",
        ),
    ],
)
def test_each_cloud_has_its_address_and_audience(settings, address, scope):
    assert (arm.endpoint(settings), arm.scope(settings)) == (address, scope)


@pytest.mark.parametrize("text", ["http://localhost:1", "management.azure.com", "https://host/path"])
def test_a_malformed_address_names_its_setting(text):
    with pytest.raises(ValueError, match=arm.ENDPOINT):
        arm.endpoint({arm.ENDPOINT: text})


# -- what is read beside the plan --------------------------------------------------------------------------


class Resources:
    """A plan, and autoscale settings that never answer; how often they were asked."""

    def __init__(self):
        self.calls = 0

    async def get(self, *_names):
        return plan()

    async def autoscale_settings(self, _scope):
        self.calls += 1
        await asyncio.Event().wait()
        yield


def test_a_plan_is_read_in_time_though_what_is_read_beside_it_never_answers():
    scaler = AppServicePlanScaler(AppServicePlanScaler.Params(resource_id=ID), {})
    scaler._arm.resources._client = resources = Resources()
    scaler._arm.web(SUBSCRIPTION)._client = SimpleNamespace(app_service_plans=resources)

    async def ticks():
        for tick in range(3):
            async with asyncio.timeout(LONGEST_ROUND / 2):
                assert (await scaler.current("plan", now=60.0 * tick)).current == 2

    with virtual_time() as run:
        run(ticks())
    assert resources.calls == 1
