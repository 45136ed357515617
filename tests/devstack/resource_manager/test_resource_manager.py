"""The local Resource Manager as azure-mgmt-web, azure-mgmt-monitor and azure-identity see it.

Every test of a plan runs twice: with the synchronous SDK, in a thread, and with the asynchronous one.
"""

import asyncio
import json
import ssl
import time
from contextlib import asynccontextmanager
from typing import Any, Self

import aiohttp
import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.identity import ManagedIdentityCredential
from azure.identity.aio import ManagedIdentityCredential as AioManagedIdentityCredential
from azure.mgmt.monitor import MonitorManagementClient
from azure.mgmt.monitor.aio import MonitorManagementClient as AioMonitorManagementClient
from azure.mgmt.web import WebSiteManagementClient
from azure.mgmt.web.aio import WebSiteManagementClient as AioWebSiteManagementClient
from azure.mgmt.web.models import AppServicePlanPatchResource

from devstack.resource_manager import BucketSize, OperationStyle, ResourceManagerServer, Status
from devstack.servers.certificates import ensure_certificate
from devstack.servers.faults import Fault

pytestmark = pytest.mark.wire

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
GROUP = "rg-orders"
NAME = "plan-orders"
ARM = "https://management.azure.com"


class SteppingClock:
    """Moves by `step` seconds at every reading, so that polling ends without waiting."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 1_000_000.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class StaticCredential:
    def __init__(self, token: str) -> None:
        self._token = AccessToken(token, int(time.time()) + 3600)

    def get_token(self, *_scopes: str, **_kwargs: Any) -> AccessToken:
        return self._token


class AioStaticCredential(StaticCredential):
    async def get_token(self, *_scopes: str, **_kwargs: Any) -> AccessToken:
        return self._token

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None: ...


def options_of(server):
    return {"base_url": server.base_url, "connection_verify": str(server.ca_path), "retry_total": 0}


class SyncSdk:
    def __init__(self, server: ResourceManagerServer, subscription: str, token: str, **options: Any) -> None:
        options = options_of(server) | options
        self.web = WebSiteManagementClient(StaticCredential(token), subscription, **options)
        self.monitor = MonitorManagementClient(StaticCredential(token), subscription, **options)

    async def close(self) -> None:
        self.web.close()
        self.monitor.close()

    async def call(self, function, *args, **kwargs):
        return await asyncio.to_thread(function, *args, **kwargs)

    async def pages(self, function, *args):
        return await asyncio.to_thread(lambda: list(function(*args)))

    async def put(self, plan, group=GROUP, name=NAME):
        def run():
            begin = self.web.app_service_plans.begin_create_or_update
            return begin(group, name, plan, polling_interval=0).result()

        return await asyncio.to_thread(run)


class AioSdk:
    def __init__(self, server: ResourceManagerServer, subscription: str, token: str, **options: Any) -> None:
        options = options_of(server) | options
        self.web = AioWebSiteManagementClient(AioStaticCredential(token), subscription, **options)
        self.monitor = AioMonitorManagementClient(AioStaticCredential(token), subscription, **options)

    async def close(self) -> None:
        await self.web.close()
        await self.monitor.close()

    async def call(self, function, *args, **kwargs):
        return await function(*args, **kwargs)

    async def pages(self, function, *args):
        return [item async for item in function(*args)]

    async def put(self, plan, group=GROUP, name=NAME):
        begin = self.web.app_service_plans.begin_create_or_update
        poller = await begin(group, name, plan, polling_interval=0)
        return await poller.result()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return ensure_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def clock():
    return SteppingClock()


@pytest.fixture
async def server(certificate, clock):
    async with ResourceManagerServer(certificate=certificate, clock=clock) as running:
        running.add_plan(SUBSCRIPTION, GROUP, NAME, sku="P1v3", capacity=2, poll_after=0)
        yield running


@pytest.fixture
def plan(server):
    return server.plans[0]


@pytest.fixture(params=[SyncSdk, AioSdk], ids=["sync", "aio"])
def sdk_class(request):
    return request.param


@asynccontextmanager
async def connected(sdk_class, server, subscription=SUBSCRIPTION, token=None, **options):
    token = server.tokens.issue(ARM, "worker").value if token is None else token
    sdk = sdk_class(server, subscription, token, **options)
    try:
        yield sdk
    finally:
        await sdk.close()


@pytest.fixture
async def sdk(server, sdk_class):
    async with connected(sdk_class, server) as connection:
        yield connection


async def read(sdk, group=GROUP, name=NAME):
    return await sdk.call(sdk.web.app_service_plans.get, group, name)


async def set_capacity(sdk, capacity):
    """The documented way: read, change the capacity, put the whole plan back, read again."""
    plan = await read(sdk)
    plan.sku.capacity = capacity
    await sdk.put(plan)
    return await read(sdk)


def body_of(error: HttpResponseError) -> dict[str, Any]:
    return json.loads(error.response.text())


def statuses(server, method):
    return [entry.status for entry in server.ledger if entry.method == method]


# -- reading and changing a plan ----------------------------------------------------------------------


async def test_a_plan_reads_back_with_its_sku_and_workers(sdk, server):
    plan = await read(sdk)

    assert plan.id == server.plans[0].id
    assert (plan.sku.name, plan.sku.tier, plan.sku.capacity) == ("P1v3", "PremiumV3", 2)
    assert (plan.number_of_workers, plan.maximum_number_of_workers, plan.target_worker_count) == (2, 30, 0)
    assert plan.provisioning_state == "Succeeded"
    assert (plan.elastic_scale_enabled, plan.async_scaling_enabled, plan.zone_redundant) == (
        False,
        False,
        False,
    )


async def test_paths_match_whatever_their_case(sdk):
    plan = await read(sdk, group=GROUP.upper(), name=NAME.title())

    assert plan.name == NAME


async def test_a_capacity_that_is_put_reads_back(sdk, server, plan):
    after = await set_capacity(sdk, 5)

    assert (after.sku.capacity, after.number_of_workers, plan.capacity) == (5, 5, 5)
    assert [(e.method, e.status, e.capacity) for e in server.ledger] == [
        ("GET", 200, None),
        ("PUT", 200, 5),
        ("GET", 200, None),
    ]
    assert {entry.principal for entry in server.ledger} == {"worker"}


@pytest.mark.parametrize("style", list(OperationStyle))
async def test_the_poller_follows_a_long_operation_of_every_style_to_its_end(sdk, server, plan, clock, style):
    clock.step = 0.25
    plan.operation_seconds, plan.operation_style = 10, style
    wanted = await read(sdk)
    wanted.sku.capacity = 5
    result = await sdk.put(wanted)
    polls = [entry for entry in server.ledger if entry.method == "GET"][1:]

    assert (result.sku.capacity, result.provisioning_state) == (5, "Succeeded")
    assert len(polls) >= 2
    assert statuses(server, "PUT") == [200 if style is OperationStyle.BODY else 202]


@pytest.mark.parametrize("style", list(OperationStyle))
async def test_the_poller_reports_an_operation_that_ends_as_failed(sdk, server, plan, clock, style):
    clock.step = 0.25
    plan.operation_seconds, plan.operation_style = 10, style
    server.faults.add(Fault("arm.put_plan", "failed_operation"))
    with pytest.raises(HttpResponseError):
        await set_capacity(sdk, 5)
    after = await read(sdk)

    assert (after.sku.capacity, after.provisioning_state) == (2, "Failed")


async def test_a_failure_tells_its_reason_through_the_operation_resource(sdk, server, plan):
    server.faults.add(Fault("arm.put_plan", "failed_operation"))
    with pytest.raises(HttpResponseError, match="change the number of workers failed") as caught:
        await set_capacity(sdk, 5)

    assert caught.value.error.code == "Conflict"


async def test_plans_are_listed_by_group_and_by_subscription(sdk, server):
    server.add_plan(SUBSCRIPTION, "rg-other", "plan-other", sku="S1")
    plans = sdk.web.app_service_plans
    in_group = await sdk.pages(plans.list_by_resource_group, GROUP)
    in_subscription = await sdk.pages(plans.list)

    assert [plan.name for plan in in_group] == [NAME]
    assert [plan.name for plan in in_subscription] == [NAME, "plan-other"]


async def test_the_sites_of_a_plan_are_those_that_run_on_it(sdk, server):
    """L2: the list was a 404. An app of another plan is not in it."""
    server.add_plan(SUBSCRIPTION, GROUP, "plan-other", sku="S1")
    for name, plan in (("one", NAME), ("two", NAME.upper()), ("elsewhere", "plan-other")):
        path = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Web"
        server.add_resource(
            f"{path}/sites/{name}", {"properties": {"serverFarmId": f"{path}/serverfarms/{plan}"}}
        )
    plans = sdk.web.app_service_plans

    assert [site.name for site in await sdk.pages(plans.list_web_apps, GROUP, NAME)] == ["one", "two"]
    with pytest.raises(ResourceNotFoundError):
        await sdk.pages(plans.list_web_apps, GROUP, "nothing")


async def test_the_selectable_skus_tell_the_bounds_of_the_plans_own_sku(sdk):
    answer = await sdk.call(sdk.web.app_service_plans.get_server_farm_skus, GROUP, NAME)
    bounds = {item["sku"]["name"]: item["capacity"] for item in answer["value"]}

    assert bounds["P1v3"] == {"minimum": 1, "maximum": 30, "default": 1, "scaleType": "Manual"}
    assert (bounds["S1"]["maximum"], bounds["B1"]["maximum"]) == (10, 3)


async def test_putting_a_plan_that_does_not_exist_creates_it(sdk, server):
    plan = await read(sdk)
    plan.sku.capacity = 3
    created = await sdk.put(plan, name="plan-new")

    assert (created.name, created.sku.capacity) == ("plan-new", 3)
    assert len(server.plans) == 2


# -- refusals of the App Service provider -------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 409])
async def test_a_second_change_meets_the_operation_in_progress(sdk, server, plan, status):
    plan.operation_seconds, plan.conflict_status, plan.conflict_retry_after = 60, status, 7
    plan.request_capacity(3)
    with pytest.raises(HttpResponseError) as caught:
        await set_capacity(sdk, 5)
    body = body_of(caught.value)

    assert caught.value.status_code == status
    assert isinstance(caught.value, ResourceExistsError) == (status == 409)
    assert caught.value.response.headers["Retry-After"] == "7"
    assert body["Code"] == "Conflict"
    assert body["Message"].startswith("Cannot modify this web hosting plan because another operation is")
    assert body["Details"][2]["ErrorEntity"]["ExtendedCode"] == "59205"


async def test_the_sdk_finds_no_code_in_an_error_of_the_provider_for_it_is_not_spelled_as_arm_does(
    sdk, server
):
    server.faults.add(Fault("arm.put_plan", "conflict"))
    with pytest.raises(HttpResponseError) as caught:
        await set_capacity(sdk, 5)

    assert caught.value.error is None
    assert caught.value.model.error is None


async def test_more_workers_than_the_sku_allows_are_a_conflict(sdk, plan):
    with pytest.raises(ResourceExistsError, match="Number of Web workers exceeds the maximum") as caught:
        await set_capacity(sdk, 31)

    assert body_of(caught.value)["Details"][2]["ErrorEntity"]["ExtendedCode"] == "03002"
    assert plan.capacity == 2


async def test_a_stamp_without_servers_says_how_many_it_can_add(sdk, plan):
    plan.available_workers = 3
    with pytest.raises(HttpResponseError, match="Currently 3 instances are available") as caught:
        await set_capacity(sdk, 9)
    after = await set_capacity(sdk, 5)

    assert caught.value.status_code == 429
    assert after.sku.capacity == 5


async def test_a_plan_that_scales_asynchronously_shows_what_it_still_works_towards(sdk, plan):
    plan.available_workers = 3
    current = await read(sdk)
    current.sku.capacity, current.async_scaling_enabled = 9, True
    await sdk.call(sdk.web.app_service_plans.begin_create_or_update, GROUP, NAME, current, polling=False)
    after = await read(sdk)

    assert (after.sku.capacity, after.target_worker_count, after.provisioning_state) == (5, 9, "InProgress")


async def test_an_elastic_premium_plan_ignores_the_capacity(sdk, server):
    server.add_plan(SUBSCRIPTION, GROUP, "plan-elastic", sku="EP1", capacity=1)
    plan = await read(sdk, name="plan-elastic")
    plan.sku.capacity = 6
    result = await sdk.put(plan, name="plan-elastic")

    assert (result.elastic_scale_enabled, result.sku.tier, result.sku.capacity) == (True, "ElasticPremium", 1)


async def test_a_zone_redundant_plan_reaches_another_capacity_than_was_asked(sdk, plan):
    plan.zone_redundant = True
    after = await set_capacity(sdk, 1)

    assert (after.zone_redundant, after.sku.capacity) == (True, 2)


async def test_too_many_changes_in_an_hour_are_refused(sdk, plan):
    plan.changes_per_hour = 1
    await set_capacity(sdk, 3)
    with pytest.raises(HttpResponseError, match="maximum amount of scale changes within the past hour"):
        await set_capacity(sdk, 4)


async def test_the_typed_patch_which_has_no_place_for_a_sku_keeps_the_workers(sdk, plan):
    patch = AppServicePlanPatchResource(per_site_scaling=False)
    answer = await sdk.call(sdk.web.app_service_plans.update, GROUP, NAME, patch)

    assert (answer.sku.name, answer.sku.capacity, plan.capacity) == ("P1v3", 2, 2)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, (2, False, {})),
        ({"properties": {"asyncScalingEnabled": True}}, (2, True, {})),
        ({"tags": {"team": "a"}}, (2, False, {"team": "a"})),
        ({"sku": {"capacity": 4}}, (4, False, {})),
        (
            {"sku": {"name": "P1v3", "capacity": 4}, "properties": {"asyncScalingEnabled": True}},
            (4, True, {}),
        ),
    ],
)
async def test_a_patch_changes_what_it_says_and_nothing_else(server, plan, document, expected):
    status, answer = await raw(server, "PATCH", json.dumps(document).encode())

    assert status in (200, 202), answer
    assert (plan.capacity, plan.async_scaling_enabled, plan.tags) == expected


@pytest.mark.parametrize(
    ("body", "position"),
    [
        (b'{"sku": {"name" "P1v3"}}', "line 1, position 17"),
        (b'{\n  "sku": nope\n}', "line 2, position 10"),
        (b'{"location": "\xff"}', "line 1, position 15"),
        (b"[1]", "line 1, position 1"),
        (b'"text"', "line 1, position 1"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_what_is_no_json_object_is_refused_with_the_place(server, plan, method, body, position):
    status, answer = await raw(server, method, body)

    assert (status, answer["error"]["code"]) == (400, "InvalidRequestContent")
    assert answer["error"]["message"].startswith(
        "The request content was invalid and could not be deserialized: '"
    )
    assert position in answer["error"]["message"]
    assert plan.capacity == 2


PLAN = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Web/serverfarms/{NAME}"


async def raw(server, method, body=None, *, path=f"{PLAN}?api-version=2024-04-01", authorized=True):
    """A request as no SDK would send it; status and document of the answer."""
    token = server.tokens.issue(ARM, "worker").value
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(server.ca_path)))
    async with (
        aiohttp.ClientSession(server.base_url, connector=connector) as session,
        session.request(
            method, path, data=body, headers={"Authorization": f"Bearer {token}"} if authorized else {}
        ) as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize(
    ("sku", "message"),
    [
        (None, "The parameter SKU cannot be null"),
        ({"name": "P1v3", "capacity": "4"}, "sku.capacity is '4'"),
        ({"name": "P1v3", "capacity": True}, "sku.capacity is True"),
        ({"name": "P1v3", "capacity": 0}, "sku.capacity is 0"),
        ({"name": "P2v3", "capacity": 2}, "sku.name is 'P2v3'"),
    ],
)
async def test_a_put_that_makes_no_sense_is_a_bad_request(sdk, plan, sku, message):
    document = json.dumps({"location": "westeurope", "sku": sku}).encode()
    with pytest.raises(HttpResponseError, match=message) as caught:
        await sdk.put(document)

    assert (caught.value.status_code, plan.capacity) == (400, 2)


# -- refusals of Resource Manager ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "code"),
    [({"name": "plan-missing"}, "ResourceNotFound"), ({"group": "rg-missing"}, "ResourceGroupNotFound")],
    ids=["plan", "group"],
)
async def test_what_is_unknown_is_not_found(sdk, place, code):
    with pytest.raises(ResourceNotFoundError) as caught:
        await read(sdk, **place)

    assert caught.value.error.code == code


async def test_an_unknown_subscription_is_not_found(server, sdk_class):
    async with connected(sdk_class, server, subscription="99999999-0000-0000-0000-000000000000") as sdk:
        with pytest.raises(ResourceNotFoundError) as caught:
            await read(sdk)

    assert caught.value.error.code == "SubscriptionNotFound"


@pytest.mark.parametrize("resource", [None, "https://storage.azure.com"], ids=["unknown", "wrong-audience"])
async def test_a_token_that_is_not_for_resource_manager_is_refused(server, sdk_class, resource):
    token = "made-up" if resource is None else server.tokens.issue(resource, "worker").value
    async with connected(sdk_class, server, token=token) as sdk:
        with pytest.raises(ClientAuthenticationError) as caught:
            await read(sdk)

    assert caught.value.error.code == "InvalidAuthenticationToken"


async def test_an_expired_token_is_refused(server, sdk_class):
    token = server.tokens.issue(ARM, "worker", lifetime=-1).value
    async with connected(sdk_class, server, token=token) as sdk:
        with pytest.raises(ClientAuthenticationError, match="expired"):
            await read(sdk)


@pytest.mark.parametrize(
    ("method", "path", "authorized", "status", "code"),
    [
        ("GET", "?api-version=1", False, 401, "InvalidAuthenticationToken"),
        ("GET", "", True, 400, "MissingApiVersionParameter"),
        ("DELETE", "?api-version=1", True, 405, "MethodNotAllowed"),
        ("GET", "/nothing?api-version=1", True, 404, "InvalidResourceType"),
    ],
)
async def test_a_request_no_sdk_would_send_is_refused(server, plan, method, path, authorized, status, code):
    answered, document = await raw(server, method, path=plan.id + path, authorized=authorized)

    assert (answered, document["error"]["code"]) == (status, code)


async def test_calls_beyond_the_bucket_are_throttled_for_this_principal_until_it_refills(
    certificate, clock, sdk_class
):
    bucket = BucketSize(size=2, refill_per_second=0.25)
    async with ResourceManagerServer(certificate=certificate, clock=clock, reads=bucket) as server:
        server.add_plan(SUBSCRIPTION, GROUP, NAME)
        async with connected(sdk_class, server) as sdk:
            await read(sdk)
            await read(sdk)
            with pytest.raises(HttpResponseError) as caught:
                await read(sdk)
            other_token = server.tokens.issue(ARM, "somebody-else").value
            async with connected(sdk_class, server, token=other_token) as other:
                await read(other)
            clock.now += 4
            await read(sdk)

    assert (caught.value.status_code, caught.value.error.code) == (429, "SubscriptionRequestsThrottled")
    assert caught.value.response.headers["Retry-After"] == "5"
    assert caught.value.response.headers["x-ms-ratelimit-remaining-subscription-reads"] == "0"
    assert statuses(server, "GET") == [200, 200, 429, 200, 200]


# -- faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [409, 429, 500, 503])
async def test_an_error_can_be_asked_for_on_get_and_put(sdk, server, plan, status):
    server.faults.add(Fault("arm.put_plan", "error", status=status, condition="Busy", retry_after=3))
    with pytest.raises(HttpResponseError) as on_put:
        await set_capacity(sdk, 4)
    server.faults.add(Fault("arm.get_plan", "error", status=status))
    with pytest.raises(HttpResponseError) as on_get:
        await read(sdk)

    assert (on_put.value.status_code, on_put.value.error.code) == (status, "Busy")
    assert on_put.value.response.headers["Retry-After"] == "3"
    assert (on_get.value.status_code, on_get.value.error.code) == (status, "InjectedFault")
    assert "Retry-After" not in on_get.value.response.headers
    assert plan.capacity == 2


async def test_latency_delays_the_answer(sdk, server):
    server.faults.add(Fault("arm.get_plan", "latency", seconds=0.2))
    started = time.monotonic()
    await read(sdk)

    assert time.monotonic() - started >= 0.2


async def test_a_capacity_can_be_ignored_in_silence(sdk, server):
    server.faults.add(Fault("arm.put_plan", "ignored_capacity"))
    after = await set_capacity(sdk, 6)

    assert (after.sku.capacity, after.provisioning_state) == (2, "Succeeded")


async def test_an_operation_can_be_accepted_and_never_finish(sdk, server, plan, clock):
    server.faults.add(Fault("arm.put_plan", "stuck_operation"))
    current = await read(sdk)
    current.sku.capacity = 4
    await sdk.call(sdk.web.app_service_plans.begin_create_or_update, GROUP, NAME, current, polling=False)
    clock.now += 1e6
    later = await read(sdk)
    with pytest.raises(HttpResponseError, match="another operation is in progress"):
        await sdk.put(current)

    assert statuses(server, "PUT") == [202, 429]
    assert (later.sku.capacity, later.provisioning_state) == (2, "InProgress")


async def test_a_stuck_operation_with_a_length_fails_after_it(sdk, server, clock, plan):
    server.faults.add(Fault("arm.put_plan", "stuck_operation", seconds=30))
    current = await read(sdk)
    await sdk.call(sdk.web.app_service_plans.begin_create_or_update, GROUP, NAME, current, polling=False)
    clock.now += 30

    assert plan.provisioning_state is Status.FAILED


@pytest.mark.parametrize(("kind", "capacity"), [("drop_ack", 4), ("drop_connection", 2)])
async def test_a_dropped_connection_leaves_the_caller_in_doubt_about_the_put(
    sdk, server, plan, kind, capacity
):
    server.faults.add(Fault("arm.put_plan", kind, count=None))
    with pytest.raises((ServiceResponseError, ServiceRequestError)):
        await set_capacity(sdk, 4)

    assert plan.capacity == capacity
    assert set(statuses(server, "PUT")) == {0}


@pytest.mark.parametrize(
    ("sdk_class", "retries"),
    [(SyncSdk, 3), (AioSdk, 3), (AioSdk, 0)],
    ids=["sync", "aio", "aiohttp by itself"],
)
async def test_a_put_whose_answer_was_lost_is_sent_again(server, plan, sdk_class, retries):
    """aiohttp does so even when the SDK is told not to retry: it takes a lost answer on a connection that was used before
    for a connection that had gone stale.
    """
    server.faults.add(Fault("arm.put_plan", "drop_ack"))
    async with connected(sdk_class, server, retry_total=retries, retry_backoff_factor=0) as sdk:
        after = await set_capacity(sdk, 4)

    assert after.sku.capacity == 4
    assert statuses(server, "PUT") == [0, 200]


async def test_a_put_that_is_sent_again_can_meet_its_own_first_attempt(server, plan, sdk_class):
    plan.operation_seconds, plan.conflict_retry_after = 60, 0
    server.faults.add(Fault("arm.put_plan", "drop_ack"))
    async with connected(sdk_class, server, retry_total=1, retry_backoff_factor=0) as sdk:
        with pytest.raises(HttpResponseError, match="another operation is in progress"):
            await set_capacity(sdk, 4)

    assert statuses(server, "PUT")[:2] == [0, 429]
    assert plan.provisioning_state is Status.IN_PROGRESS


async def test_the_sdk_waits_and_sends_again_even_a_409_when_it_carries_retry_after(server, plan, sdk_class):
    server.faults.add(Fault("arm.put_plan", "error", status=409, retry_after=0.01))
    async with connected(sdk_class, server, retry_total=3) as sdk:
        after = await set_capacity(sdk, 4)

    assert after.sku.capacity == 4
    assert statuses(server, "PUT") == [409, 200]


async def test_the_sdk_outwaits_an_operation_in_progress(server, plan, clock, sdk_class):
    clock.step, plan.operation_seconds, plan.conflict_retry_after = 1, 20, 0
    plan.request_capacity(3)
    async with connected(sdk_class, server, retry_total=20, retry_status=20, retry_backoff_factor=0) as sdk:
        after = await set_capacity(sdk, 5)

    assert after.sku.capacity == 5
    assert set(statuses(server, "PUT")) == {429, 202}


async def test_a_fault_the_server_does_not_know_is_named(sdk, server):
    server.faults.add(Fault("arm.get_plan", "stuck_operation"))
    with pytest.raises(
        HttpResponseError, match=r"arm\.get_plan knows no fault 'stuck_operation', accepted: "
    ):
        await read(sdk)


# -- autoscale settings -------------------------------------------------------------------------------


async def test_autoscale_settings_are_listed_by_group_and_subscription_with_their_target(sdk, server, plan):
    other = server.add_plan(SUBSCRIPTION, "rg-other", "plan-other")
    server.add_autoscale_setting(plan.id, "by-cpu")
    server.add_autoscale_setting(other, "by-night", enabled=False)
    settings = sdk.monitor.autoscale_settings
    in_group = await sdk.pages(settings.list_by_resource_group, GROUP)
    in_subscription = await sdk.pages(settings.list_by_subscription)

    assert [(s.name, s.enabled) for s in in_group] == [("by-cpu", True)]
    assert [(s.name, s.enabled) for s in in_subscription] == [("by-cpu", True), ("by-night", False)]
    assert in_group[0].target_resource_uri != plan.id
    assert in_group[0].target_resource_uri.lower() == plan.id.lower()
    assert in_group[0].profiles[0].capacity.maximum == "30"


async def test_one_autoscale_setting_is_read_by_name_and_a_missing_one_is_not_found(sdk, server, plan):
    server.add_autoscale_setting(plan.id, "by-Cpu")
    get = sdk.monitor.autoscale_settings.get
    setting = await sdk.call(get, GROUP, "BY-CPU")
    with pytest.raises(ResourceNotFoundError):
        await sdk.call(get, GROUP, "by-night")

    assert setting.name == "by-Cpu"


# -- managed identity ---------------------------------------------------------------------------------


@pytest.fixture
def identity_environment(server, monkeypatch):
    monkeypatch.setenv("IDENTITY_ENDPOINT", server.identity_endpoint)
    monkeypatch.setenv("IDENTITY_HEADER", server.identity_header)


async def test_a_managed_identity_gets_a_token_that_is_accepted(server, identity_environment):
    def run():
        with (
            ManagedIdentityCredential() as credential,
            WebSiteManagementClient(credential, SUBSCRIPTION, **options_of(server)) as client,
        ):
            return client.app_service_plans.get(GROUP, NAME)

    plan = await asyncio.to_thread(run)

    assert plan.name == NAME
    assert server.ledger[-1].principal == server.identity.client_id


async def test_a_managed_identity_of_the_aio_sdk_gets_a_token_that_is_accepted(server, identity_environment):
    async with (
        AioManagedIdentityCredential() as credential,
        AioWebSiteManagementClient(credential, SUBSCRIPTION, **options_of(server)) as client,
    ):
        plan = await client.app_service_plans.get(GROUP, NAME)

    assert plan.name == NAME
    assert server.ledger[-1].principal == server.identity.client_id


async def test_a_user_assigned_identity_is_known_by_its_client_id(server, identity_environment):
    server.identity.user_assigned.add("worker-identity")
    async with AioManagedIdentityCredential(client_id="worker-identity") as credential:
        token = await credential.get_token(f"{ARM}/.default")
    async with AioManagedIdentityCredential(client_id="nobody") as credential:
        with pytest.raises(ClientAuthenticationError, match="No User Assigned"):
            await credential.get_token(f"{ARM}/.default")

    assert server.tokens.principal(f"Bearer {token.token}") == "worker-identity"
    assert token.expires_on > time.time() + 3600


async def test_the_identity_endpoint_wants_its_secret_header(server, identity_environment, monkeypatch):
    monkeypatch.setenv("IDENTITY_HEADER", "wrong")
    async with AioManagedIdentityCredential() as credential:
        with pytest.raises(ClientAuthenticationError, match="X-IDENTITY-HEADER is missing or wrong"):
            await credential.get_token(f"{ARM}/.default")


async def test_the_identity_endpoint_can_fail_on_request(server, identity_environment):
    server.faults.add(Fault("identity.token", "error", status=400, condition="identity is being assigned"))
    async with AioManagedIdentityCredential() as credential:
        with pytest.raises(ClientAuthenticationError, match="identity is being assigned"):
            await credential.get_token(f"{ARM}/.default")


# -- control port -------------------------------------------------------------------------------------


async def control(server, method, path, **options):
    async with (
        aiohttp.ClientSession(server.control_url) as session,
        session.request(method, path, **options) as response,
    ):
        return response.status, await response.json()


async def test_the_control_port_shows_the_instances_and_lets_somebody_change_the_plan(server, plan, clock):
    plan.start_delay = 60
    status, _ = await control(server, "POST", f"/plans/{NAME}/capacity", json={"capacity": 3})
    _, document = await control(server, "GET", "/plans")
    (state,) = document["plans"]

    assert status == 200
    assert (state["capacity"], state["ready"]) == (3, 2)
    assert [instance["ready"] for instance in state["instances"]] == [True, True, False]
    assert [entry["capacity"] for entry in state["history"]] == [2, 3]


@pytest.mark.parametrize(
    ("name", "body", "status", "message"),
    [
        ("nothing", '{"capacity": 3}', 404, "there is no plan 'nothing'"),
        (NAME, '{"capacity": 31}', 400, "accepted for SKU P1v3: 1 to 30"),
        (NAME, '{"capacity": true}', 400, "accepted: "),
        (NAME, "three", 400, ""),
    ],
)
async def test_the_control_port_refuses_what_makes_no_sense(server, plan, name, body, status, message):
    answered, document = await control(server, "POST", f"/plans/{name}/capacity", data=body)

    assert (answered, plan.capacity) == (status, 2)
    assert message in document["error"]


async def test_the_control_port_does_not_guess_between_plans_of_one_name(server, plan):
    server.add_plan(SUBSCRIPTION, "rg-other", NAME)
    answer = await control(server, "POST", f"/plans/{NAME}/capacity", json={"capacity": 3})

    assert answer == (409, {"error": f"2 plans are called '{NAME}'"})
    assert plan.capacity == 2


async def test_faults_are_added_over_the_control_port(sdk, server):
    fault = {"where": "arm.*", "kind": "error", "status": 503}
    assert (await control(server, "POST", "/faults", json=fault))[0] == 201
    with pytest.raises(HttpResponseError) as caught:
        await read(sdk)

    assert caught.value.status_code == 503


# -- life ---------------------------------------------------------------------------------------------


async def test_a_stopped_server_gives_its_ports_back(certificate):
    server = ResourceManagerServer(certificate=certificate)
    await server.start()
    port = int(server.base_url.rsplit(":", 1)[1])
    await server.stop()
    async with ResourceManagerServer(certificate=certificate, port=port) as second:
        assert second.base_url.endswith(f":{port}")


async def test_a_server_that_cannot_have_a_port_leaves_none_open(certificate):
    async with ResourceManagerServer(certificate=certificate) as first:
        taken = int(first.control_url.rsplit(":", 1)[1])
        second = ResourceManagerServer(certificate=certificate, control_port=taken)
        with pytest.raises(OSError, match="address already in use"):
            await second.start()
        with pytest.raises(RuntimeError, match="no address before start"):
            _ = second.base_url
