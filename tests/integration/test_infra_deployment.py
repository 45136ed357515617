"""The local Resource Manager accepts what the templates would create, put by the real clients; a second time nothing changes.

The typed clients put what they are for: function apps and their plans, roles of Cosmos DB. The rest goes through the
pipeline that all of them are built on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import HttpResponseError
from azure.core.pipeline.policies import RetryPolicy
from azure.core.rest import HttpRequest
from azure.mgmt.core import ARMPipelineClient
from azure.mgmt.core.policies import ARMChallengeAuthenticationPolicy
from azure.mgmt.cosmosdb import CosmosDBManagementClient
from azure.mgmt.web import WebSiteManagementClient

from devstack.resource_manager import ResourceManagerServer
from devstack.servers.certificates import ensure_certificate
from tests.bicep_language import Deployment, Placed, expand
from tests.support.infra.templates import (
    ELSEWHERE,
    HUB,
    INFRA,
    NAMESPACE,
    PLAN,
    SUBNETS,
    SUBSCRIPTION,
    WORLDS,
    deployed,
    many_targets,
    parameters,
)
from tests.support.servers.threaded import Threaded, running_in_thread

pytestmark = pytest.mark.wire

ARM = "https://management.azure.com"
Body = dict[str, Any]


class _Credential:
    def __init__(self, token: str) -> None:
        self._token = AccessToken(token, int(time.time()) + 3600)

    def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        return self._token


class Azure:
    """A Resource Manager with what exists before a deployment, and the clients that deploy to it."""

    def __init__(self, running: Threaded[ResourceManagerServer]) -> None:
        self._running = running
        server = running.server
        for subscription in (SUBSCRIPTION, ELSEWHERE):
            server.add_subscription(subscription)
        credential = _Credential(running.call(lambda: server.tokens.issue(ARM, "deployer").value))
        options: dict[str, Any] = {
            "base_url": server.base_url,
            "connection_verify": str(server.ca_path),
            "retry_total": 0,
        }
        self._web = WebSiteManagementClient(credential, SUBSCRIPTION, **options).web_apps
        self._plans = WebSiteManagementClient(credential, SUBSCRIPTION, **options).app_service_plans
        self._cosmos = CosmosDBManagementClient(credential, SUBSCRIPTION, **options).sql_resources
        self._pipeline: ARMPipelineClient[Any, Any] = ARMPipelineClient(
            base_url=server.base_url,
            policies=[
                RetryPolicy(retry_total=0),
                ARMChallengeAuthenticationPolicy(credential, f"{ARM}/.default"),
            ],
            connection_verify=str(server.ca_path),
        )
        self._typed: dict[str, Callable[[str, Placed], object]] = {
            "Microsoft.Web/serverfarms": lambda group, placed: self._plans.begin_create_or_update(
                group, placed.name, placed.body, polling_interval=0
            ).result(),
            "Microsoft.Web/sites": lambda group, placed: self._web.begin_create_or_update(
                group, placed.name, placed.body, polling_interval=0
            ).result(),
            "Microsoft.Web/sites/config": self._put_settings,
            "Microsoft.Web/sites/basicPublishingCredentialsPolicies": self._put_policy,
            "Microsoft.DocumentDB/databaseAccounts/sqlRoleDefinitions": self._put_role,
            "Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments": self._put_assignment,
        }

    def prepare(self, deployment: Deployment) -> None:
        """Puts what the templates find or name and do not make, with the groups around."""
        made = {resource.id.lower() for resource in deployment.resources}
        network = SUBNETS.removesuffix("/subnets/")
        delegations = {"app": "Microsoft.App/environments", "consumer": "Microsoft.App/environments"}
        subnets = [
            {
                "name": name,
                "properties": {
                    "delegations": [{"properties": {"serviceName": delegations[name]}}]
                    if name in delegations
                    else []
                },
            }
            for name in ("app", "consumer", "endpoints")
        ]
        wanted = [placed.id for placed in deployment.existing] + [NAMESPACE]
        self.put_by_id(_group_of(network), {"location": "westeurope"})
        self.put_by_id(network, {"location": "westeurope", "properties": {"subnets": subnets}})
        for identifier in wanted:
            if identifier.lower() not in made:
                self.put_by_id(_group_of(identifier), {"location": "westeurope"})
                self._put_existing(identifier)

    def _put_existing(self, identifier: str) -> None:
        body: Body = {"location": "westeurope", "kind": "x", "sku": {"name": "P1v3"}}
        if "/eventhubs/" in identifier:
            self.put_by_id(identifier.partition("/eventhubs/")[0], body)
        self.put_by_id(identifier, body)

    def deploy(self, deployment: Deployment, *, shuffled: int | None = None) -> None:
        order = (
            deployment.resources
            if shuffled is None
            else _shuffled(deployment.resources, random.Random(shuffled))
        )
        for placed in order:
            self.put(placed)

    def put(self, placed: Placed) -> None:
        typed = self._typed.get(placed.type)
        if typed is None:
            self.put_by_id(placed.id, placed.body, version=placed.api_version)
        else:
            typed(placed.id.split("/")[4], placed)

    def put_by_id(self, identifier: str, body: Body, *, version: str = "2024-01-01") -> None:
        request = HttpRequest("PUT", identifier, params={"api-version": version}, json=body)
        request.url = self._pipeline.format_url(request.url)
        answer = self._pipeline.send_request(request)
        if answer.status_code not in {200, 201}:
            raise HttpResponseError(message=answer.text(), response=answer)

    def _put_settings(self, group: str, placed: Placed) -> None:
        site, _, name = placed.name.partition("/")
        update = {
            "appsettings": self._web.update_application_settings,
            "authsettingsV2": self._web.update_auth_settings_v2,
        }[name]
        update(group, site, placed.body)

    def _put_policy(self, group: str, placed: Placed) -> None:
        site, _, name = placed.name.partition("/")
        update = {"ftp": self._web.update_ftp_allowed, "scm": self._web.update_scm_allowed}[name]
        update(group, site, placed.body)

    def _put_role(self, group: str, placed: Placed) -> None:
        account, _, name = placed.name.partition("/")
        self._cosmos.begin_create_update_sql_role_definition(
            name, group, account, placed.body, polling_interval=0
        ).result()

    def _put_assignment(self, group: str, placed: Placed) -> None:
        account, _, name = placed.name.partition("/")
        self._cosmos.begin_create_update_sql_role_assignment(
            name, group, account, placed.body, polling_interval=0
        ).result()

    def state(self) -> dict[str, object]:
        """Of each resource how often it was changed, and of each plan its history."""
        server = self._running.server

        def read() -> dict[str, object]:
            revisions: dict[str, object] = {
                key: resource.revision for key, resource in server.resources.resources.items()
            }
            plans = {plan.id.lower(): (plan.capacity, len(plan.history)) for plan in server.plans}
            return revisions | plans

        return self._running.call(read)


def _group_of(identifier: str) -> str:
    return "/".join(identifier.split("/")[:5])


def _shuffled(resources: list[Placed], rng: random.Random) -> list[Placed]:
    """One of the orders that the dependencies allow."""
    left, done, order = list(resources), set[str](), list[Placed]()
    made = {resource.id for resource in resources}
    while left:
        placed = rng.choice([placed for placed in left if placed.after & made <= done])
        left.remove(placed)
        done.add(placed.id)
        order.append(placed)
    return order


@pytest.fixture
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azure]:
    certificate = ensure_certificate(tmp_path_factory.getbasetemp() / "certificate")
    with running_in_thread(
        lambda: ResourceManagerServer(certificate=certificate, reads=None, writes=None)
    ) as running:
        yield Azure(running)


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_all_that_the_templates_make_is_accepted_and_a_second_time_nothing_changes(
    azure: Azure, world: str
) -> None:
    deployment = deployed(world)
    azure.prepare(deployment)

    azure.deploy(deployment)
    first = azure.state()
    azure.deploy(deployment)

    assert {resource.id.lower() for resource in deployment.resources} <= set(first)
    assert azure.state() == first


@pytest.mark.parametrize("seed", range(5))
def test_it_is_accepted_in_every_order_that_the_dependencies_allow(azure: Azure, seed: int) -> None:
    deployment = deployed("private network")
    azure.prepare(deployment)

    azure.deploy(deployment, shuffled=seed)

    assert {resource.id.lower() for resource in deployment.resources} <= set(azure.state())


def test_ids_in_another_spelling_change_nothing(azure: Azure) -> None:
    """The portal, the command line and Resource Manager write the same id in different cases."""
    deployment = deployed("everything")
    azure.prepare(deployment)
    azure.deploy(deployment)
    first = azure.state()
    given = {
        **WORLDS["everything"],
        "plans": [{"id": PLAN.replace("resourceGroups", "resourcegroups")}],
        "serviceBusNamespaces": [
            {"connection": "OrdersServiceBus", "id": NAMESPACE.replace("Microsoft", "microsoft")}
        ],
        "eventHubId": HUB.replace("eventhubs", "EventHubs"),
    }

    azure.deploy(expand(INFRA / "main.bicep", given, subscription=SUBSCRIPTION))

    changed = {key for key, revision in azure.state().items() if first.get(key) != revision}
    assert {key.rpartition("/")[2] for key in changed} <= {
        "appsettings"
    }  # where ids and names are spelled out


def test_roles_of_our_own_and_built_in_ones_can_take_turns(azure: Azure) -> None:
    for world in ("everything", "built-in roles", "everything"):
        azure.prepare(deployed(world))
        azure.deploy(deployed(world))


def test_another_target_leaves_what_is_there_as_it_is(azure: Azure) -> None:
    few, more = (
        expand(INFRA / "main.bicep", parameters({}, **many_targets(number)), subscription=SUBSCRIPTION)
        for number in (3, 4)
    )
    azure.prepare(more)
    azure.deploy(few)
    first = azure.state()

    azure.deploy(more)

    changed = {key.rpartition("/")[2] for key in first if azure.state()[key] != first[key]}
    assert changed == {"appsettings"}


def test_two_environments_live_side_by_side_on_the_same_targets(azure: Azure) -> None:
    for name in ("prod", "test"):
        deployment = expand(
            INFRA / "main.bicep", {**WORLDS["everything"], "environmentName": name}, subscription=SUBSCRIPTION
        )
        azure.prepare(deployment)
        azure.deploy(deployment)
