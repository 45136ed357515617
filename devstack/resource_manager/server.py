"""Resource Manager on local sockets: HTTPS for the SDKs, plain HTTP for managed identity and for control.

Fault points (devstack.servers.faults) are the names of the routes in `routes.ROUTES` and "identity.token".
At every route:

    latency           waits `seconds`, then answers as usual
    error             answers `status` with code `condition` and `retry_after`, nothing is done
    drop_connection   closes the connection, nothing is done
    drop_ack          does what was asked, then closes the connection: the outcome is unknown

at arm.put_plan those listed in `api`, at arm.get_metrics that in `metrics`, at arm.put_resource and arm.patch_resource those
in `resources.changes`. Another kind is answered with 500 that names it.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from aiohttp import web

from devstack.cosmos.store.account import Account
from devstack.processes.child import free_ports
from devstack.resource_manager.api import ResourceManagerApi
from devstack.resource_manager.common.documents import (
    Answer,
    ArmError,
    Call,
    autoscale_document,
    front_door_error,
    parsed,
)
from devstack.resource_manager.common.plans import Clock, Plan
from devstack.resource_manager.common.skus import find_sku
from devstack.resource_manager.control import control_application
from devstack.resource_manager.cosmos import PUT_KINDS, CosmosAccount
from devstack.resource_manager.identity import ENDPOINT_PATH, IdentityEndpoint, TokenIssuer
from devstack.resource_manager.ledger import LedgerEntry, sent_capacity
from devstack.resource_manager.metrics import METRICS_KINDS, MetricsApi
from devstack.resource_manager.resources.changes import CHANGE_KINDS, Changing
from devstack.resource_manager.resources.store import ResourcesApi
from devstack.resource_manager.routes import find_route
from devstack.resource_manager.throttling import READS, WRITES, BucketSize, Throttle
from devstack.servers.certificates import Certificate
from devstack.servers.faults import Fault, FaultRegistry
from devstack.servers.http import served
from devstack.servers.started import Started

DROPPED = 0  # the status in the ledger of a request that was not answered
_COMMON_KINDS = {"latency", "error", "drop_connection", "drop_ack"}
_OWN_KINDS = {
    "arm.put_plan": {"stuck_operation", "failed_operation", "ignored_capacity", "conflict"},
    "arm.put_throughput": PUT_KINDS,
    "arm.get_metrics": METRICS_KINDS,
    "arm.patch_resource": CHANGE_KINDS,
    "arm.delete_instances": CHANGE_KINDS,
    "arm.put_resource": CHANGE_KINDS,
}


class ResourceManagerServer(Started):
    """Serves plans and autoscale settings added with `add_plan` and `add_autoscale_setting`.

    `reads` and `writes` limit the calls of each principal to each subscription; the defaults are the
    published sizes, None switches a limit off. Ports of 0 are chosen by the system. Addresses are
    known once started.
    """

    def __init__(
        self,
        *,
        certificate: Certificate,
        port: int = 0,
        identity_port: int = 0,
        control_port: int = 0,
        clock: Clock = time.time,
        faults: FaultRegistry | None = None,
        reads: BucketSize | None = READS,
        writes: BucketSize | None = WRITES,
    ) -> None:
        self.faults = FaultRegistry() if faults is None else faults
        self._throttle = Throttle(reads, writes)
        self.ledger: list[LedgerEntry] = []
        self.tokens = TokenIssuer()
        self.identity = IdentityEndpoint(self.tokens, self.faults)
        self._api = ResourceManagerApi(clock)
        self._clock = clock
        self._certificate = certificate
        self._wanted_ports = (port, identity_port, control_port)
        self._ports: tuple[int, int, int] | None = None
        self._serving = AsyncExitStack()

    # -- addresses --------------------------------------------------------------------------------

    @property
    def base_url(self) -> str:
        return f"https://localhost:{self._started()[0]}"

    @property
    def ca_path(self) -> Path:
        return self._certificate.ca_path

    @property
    def identity_endpoint(self) -> str:
        """The value of IDENTITY_ENDPOINT in the app's environment."""
        return f"http://localhost:{self._started()[1]}{ENDPOINT_PATH}"

    @property
    def identity_header(self) -> str:
        """The value of IDENTITY_HEADER in the app's environment."""
        return self.identity.header

    @property
    def control_url(self) -> str:
        return f"http://localhost:{self._started()[2]}"

    def _started(self) -> tuple[int, int, int]:
        if self._ports is None:
            raise RuntimeError("the server has no address before start()")
        return self._ports

    # -- contents ---------------------------------------------------------------------------------

    def add_plan(
        self,
        subscription: str,
        resource_group: str,
        name: str,
        *,
        sku: str = "P1v3",
        capacity: int = 1,
        **settings: Any,
    ) -> str:
        """Adds a plan and returns its resource id. `settings` are the public fields of Plan.

        Raises ValueError for an unknown SKU or a capacity it does not allow.
        """
        plan = Plan(
            subscription=subscription,
            resource_group=resource_group,
            name=name,
            sku=find_sku(sku),
            initial_capacity=capacity,
            clock=self._clock,
            **settings,
        )
        self._api.plans[plan.id.lower()] = plan
        return plan.id

    def plan(self, plan_id: str) -> Plan:
        """The plan with this resource id, whatever its case. Raises KeyError."""
        return self._api.plans[plan_id.lower()]

    @property
    def plans(self) -> list[Plan]:
        return list(self._api.plans.values())

    @property
    def resources(self) -> ResourcesApi:
        """Groups, and resources of any type that were put."""
        return self._api.resources

    def add_resource(self, resource_id: str, document: dict[str, Any], **options: Any) -> Changing:
        """Adds a resource of any type; `options` are those of `Changing`, such as how long its changes take."""
        return self._api.resources.add(resource_id, document, **options)

    def add_subscription(self, subscription: str) -> None:
        """Makes an empty subscription known, for a deployment into it."""
        self._api.resources.subscriptions.add(subscription.lower())

    @property
    def metrics(self) -> MetricsApi:
        """What Azure Monitor tells of resources: see `MetricsApi.add`."""
        return self._api.metrics

    @property
    def permissions(self) -> list[dict[str, Any]]:
        """What Resource Manager says callers may do with any resource, an entry for each role; to be changed in place."""
        return self._api.permissions

    def remove_plan(self, plan_id: str) -> None:
        del self._api.plans[plan_id.lower()]

    def add_autoscale_setting(
        self, plan_id: str, name: str, *, enabled: bool = True, resource_group: str | None = None
    ) -> str:
        """Adds an Azure Monitor autoscale setting that targets the plan, or another resource, and returns its own id. It
        may lie in a resource group of its own.
        """
        plan = self._api.plans.get(plan_id.lower())
        maximum = 10 if plan is None else plan.sku.maximum
        document = autoscale_document(plan_id, name, enabled=enabled, maximum=maximum)
        if resource_group is not None:
            before, after = document["id"].split("/resourceGroups/")
            document["id"] = f"{before}/resourceGroups/{resource_group}/{after.partition('/')[2]}"
        setting_id: str = document["id"]
        self._api.settings[setting_id.lower()] = document
        return setting_id

    def add_cosmos_account(
        self,
        subscription: str,
        resource_group: str,
        name: str,
        data: Account,
        *,
        operation_seconds: float = 0.0,
        poll_after: int = 1,
    ) -> str:
        """Adds a Cosmos DB account, whose data plane is `data`, and returns its resource id."""
        account_id = (
            f"/subscriptions/{subscription}/resourceGroups/{resource_group}"
            f"/providers/Microsoft.DocumentDB/databaseAccounts/{name}"
        )
        account = CosmosAccount(account_id, data, operation_seconds, poll_after)
        self._api.cosmos.accounts[account_id.lower()] = account
        return account_id

    # -- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Opens the three ports; if one cannot be had, none stays open."""
        arm = web.Application()
        arm.router.add_route("*", "/{path:.*}", self._handle)
        applications = (
            arm,
            self.identity.application(),
            control_application(lambda: self.plans, self.faults, self.metrics),
        )
        contexts = (self._certificate.server_context(), None, None)
        async with AsyncExitStack() as serving:
            first, second, third = [
                await serving.enter_async_context(served(app, port=port or free_ports(1)[0], context=context))
                for app, context, port in zip(applications, contexts, self._wanted_ports, strict=True)
            ]
            self._ports, self._serving = (first, second, third), serving.pop_all()

    async def stop(self) -> None:
        self._ports = None
        await self._serving.aclose()

    # -- requests ---------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        document: Any = None
        principal: str | None = None
        headers: dict[str, str] = {}
        try:
            principal = self._authenticate(request)
            self._admit(request, principal, headers)
            document = parsed(body)
            answer = await self._answer(request, document)
        except ArmError as error:
            answer = error.answer
        status = DROPPED if answer is None else answer.status
        self.ledger.append(
            LedgerEntry(
                self._clock(), request.method, request.path, status, sent_capacity(document), principal
            )
        )
        if answer is None:
            return _drop(request)
        return _response(answer, headers)

    def _authenticate(self, request: web.Request) -> str:
        try:
            return self.tokens.principal(request.headers.get("Authorization", ""))
        except PermissionError as error:
            raise front_door_error(
                401,
                "InvalidAuthenticationToken",
                str(error),
                WWW_Authenticate='Bearer authorization_uri="https://login.windows.net/common", '
                'error="invalid_token"',
            ) from None

    def _admit(self, request: web.Request, principal: str, headers: dict[str, str]) -> None:
        """What Resource Manager checks before the provider: version, subscription, number of calls."""
        if "api-version" not in request.query:
            raise front_door_error(
                400,
                "MissingApiVersionParameter",
                "The api-version query parameter (?api-version=) is required for all requests.",
            )
        _, parts = find_route(request.method, request.path)
        subscription = parts["subscription"]
        if not self._api.knows_subscription(subscription):
            raise front_door_error(
                404, "SubscriptionNotFound", f"The subscription '{subscription}' could not be found."
            )
        is_read = request.method == "GET"
        bucket = self._throttle.bucket(subscription, principal, is_read=is_read)
        if bucket is None:
            return
        wait = bucket.take(self._clock())
        kind = "read" if is_read else "write"
        headers[f"x-ms-ratelimit-remaining-subscription-{kind}s"] = str(bucket.remaining)
        if wait:
            seconds = int(wait) + 1
            raise front_door_error(
                429,
                "SubscriptionRequestsThrottled",
                f"Number of '{kind}' requests for subscription '{subscription}' and principal '{principal}' "
                f"exceeded. Please try again after '{seconds}' seconds after additional tokens are available. "
                "Refer to https://aka.ms/arm-throttling for additional information.",
                retry_after=seconds,
            )

    async def _answer(self, request: web.Request, document: Any) -> Answer | None:
        """The provider's answer; None when a fault has the connection dropped."""
        route, parts = find_route(request.method, request.path)
        fault = self.faults.take(route.point)
        if fault is not None:
            _check_kind(fault, route.point)
            await asyncio.sleep(fault.seconds if fault.kind == "latency" else 0)
            if fault.kind == "drop_connection":
                return None
            if fault.kind == "error":
                raise front_door_error(
                    fault.status,
                    fault.condition or "InjectedFault",
                    "A fault was asked for.",
                    retry_after=fault.retry_after,
                )
        answer = route.handler(
            self._api,
            Call(request.method, request.path, parts, document, self.base_url, fault, request.query),
        )
        return None if fault is not None and fault.kind == "drop_ack" else answer


def _check_kind(fault: Fault, point: str) -> None:
    accepted = _COMMON_KINDS | _OWN_KINDS.get(point, set())
    if fault.kind not in accepted:
        raise front_door_error(
            500,
            "UnknownFault",
            f"{point} knows no fault {fault.kind!r}, accepted: {', '.join(sorted(accepted))}",
        )


def _response(answer: Answer, headers: dict[str, str]) -> web.Response:
    sent = {**headers, **answer.headers}
    if answer.body is None:
        return web.Response(status=answer.status, headers=sent)
    return web.json_response(answer.body, status=answer.status, headers=sent)


def _drop(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()  # goes nowhere: the connection is gone
