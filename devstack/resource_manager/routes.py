"""Which path the local Resource Manager answers, and by what: the first route that fits."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from devstack.resource_manager.api import ResourceManagerApi
from devstack.resource_manager.common.documents import Answer, Call, front_door_error
from devstack.resource_manager.cosmos import CosmosApi
from devstack.resource_manager.resources.store import ResourcesApi

_SUBSCRIPTION = r"/subscriptions/(?P<subscription>[^/]+)"
_GROUP = _SUBSCRIPTION + r"/resourceGroups/(?P<group>[^/]+)"
_PLANS = r"/providers/Microsoft\.Web/serverfarms"
_SETTINGS = r"/providers/Microsoft\.Insights/autoscalesettings"
_WEB_LOCATION = _SUBSCRIPTION + r"/providers/Microsoft\.Web/locations/[^/]+"
_COSMOS = r"/providers/Microsoft\.DocumentDB"
_DATABASE = (
    _GROUP + _COSMOS + r"/databaseAccounts/(?P<account>[^/]+)/sqlDatabases/(?P<database>[^/]+)"
    r"(?:/containers/(?P<container>[^/]+))?/throughputSettings/default"
)
_ANYTHING = _SUBSCRIPTION + r"(?:/resourceGroups/(?P<group>[^/]+))?(?:/providers/[^/]+(?:/[^/]+/[^/]+)+)+"
_RESOURCE = _GROUP + r"/providers/(?P<type>[^/]+/[^/]+)/(?P<name>[^/]+)(?P<rest>(?:/[^/]+/[^/]+)*)"
_SCOPE = r"(?P<scope>" + _RESOURCE + ")"
_PERMISSIONS = r"/providers/Microsoft\.Authorization/permissions"
_COSMOS_LOCATION = _SUBSCRIPTION + _COSMOS + r"/locations/[^/]+"
_LOCATION = _SUBSCRIPTION + r"/providers/[^/]+/locations/[^/]+"
_LIST = _SUBSCRIPTION + r"(?:/resourceGroups/(?P<group>[^/]+))?/providers/[^/]+/(?:[^/]+/[^/]+/)*[^/]+"


Handler = Callable[[ResourceManagerApi, Call], Answer]


@dataclass(frozen=True, slots=True)
class Route:
    point: str
    method: str
    pattern: re.Pattern[str]
    handler: Handler


def _route(point: str, method: str, path: str, handler: Handler) -> Route:
    return Route(point, method, re.compile(path, re.IGNORECASE), handler)


def _cosmos(point: str, method: str, path: str, handler: Callable[[CosmosApi, Call], Answer]) -> Route:
    return _route(point, method, path, lambda api, call: handler(api.cosmos, call))


def _any(point: str, method: str, path: str, handler: Callable[[ResourcesApi, Call], Answer]) -> Route:
    return _route(point, method, path, lambda api, call: handler(api.resources, call))


_NAME = r"/(?P<name>[^/]+)"
_ID = r"/(?P<id>[^/]+)"
_API = ResourceManagerApi
ROUTES: tuple[Route, ...] = (
    _route("arm.get_plan", "GET", _GROUP + _PLANS + _NAME, _API.get_plan),
    _route("arm.put_plan", "PUT", _GROUP + _PLANS + _NAME, _API.put_plan),
    _route("arm.patch_plan", "PATCH", _GROUP + _PLANS + _NAME, _API.patch_plan),
    _route("arm.get_skus", "GET", _GROUP + _PLANS + _NAME + "/skus", _API.get_skus),
    _route("arm.list_plan_sites", "GET", _GROUP + _PLANS + _NAME + "/sites", _API.list_plan_sites),
    _route("arm.list_plans", "GET", _GROUP + _PLANS, _API.list_plans),
    _route("arm.list_plans", "GET", _SUBSCRIPTION + _PLANS, _API.list_plans),
    _route("arm.get_operation", "GET", _WEB_LOCATION + "/operations" + _ID, _API.get_operation),
    _route("arm.get_operation", "GET", _WEB_LOCATION + "/operationresults" + _ID, _API.get_operation_result),
    _route("arm.get_autoscale", "GET", _GROUP + _SETTINGS + _NAME, _API.get_setting),
    _route("arm.list_autoscale", "GET", _GROUP + _SETTINGS, _API.list_settings),
    _route("arm.list_autoscale", "GET", _SUBSCRIPTION + _SETTINGS, _API.list_settings),
    _route("arm.get_permissions", "GET", _SCOPE + _PERMISSIONS, _API.get_permissions),
    _route("arm.get_metrics", "GET", _RESOURCE + "/providers/Microsoft.Insights/metrics", _API.get_metrics),
    _cosmos("arm.get_throughput", "GET", _DATABASE, CosmosApi.get_throughput),
    _cosmos("arm.put_throughput", "PUT", _DATABASE, CosmosApi.put_throughput),
    _cosmos(
        "arm.migrate_throughput", "POST", _DATABASE + "/migrateToAutoscale", CosmosApi.migrate_to_autoscale
    ),
    _cosmos(
        "arm.migrate_throughput",
        "POST",
        _DATABASE + "/migrateToManualThroughput",
        CosmosApi.migrate_to_manual,
    ),
    _cosmos(
        "arm.get_operation", "GET", _COSMOS_LOCATION + "/operationsStatus" + _ID, CosmosApi.get_operation
    ),
    _cosmos(
        "arm.get_operation",
        "GET",
        _COSMOS_LOCATION + "/operationResults" + _ID,
        CosmosApi.get_operation_result,
    ),
    # After all others: whatever else there is.
    _any("arm.get_operation", "GET", _LOCATION + "/asyncOperations" + _ID, ResourcesApi.get_operation),
    _any("arm.get_operation", "GET", _LOCATION + "/asyncResults" + _ID, ResourcesApi.get_operation_result),
    _any("arm.put_group", "PUT", _GROUP, ResourcesApi.put_group),
    _any("arm.get_group", "GET", _GROUP, ResourcesApi.get),
    _any("arm.put_resource", "PUT", _ANYTHING, ResourcesApi.put),
    _any("arm.patch_resource", "PATCH", _ANYTHING, ResourcesApi.patch),
    _any("arm.delete_instances", "POST", _ANYTHING + "/delete", ResourcesApi.delete_instances),
    _any("arm.get_resource", "GET", _ANYTHING, ResourcesApi.get),
    _any("arm.list_resources", "GET", _LIST, ResourcesApi.list_type),
)


def find_route(method: str, path: str) -> tuple[Route, dict[str, str]]:
    """The route of a request and the parts of its path.

    Raises ArmError: 404 for a path that is not served, 405 for a method it does not take.
    """
    path_is_known = False
    for route in ROUTES:
        match = route.pattern.fullmatch(path)
        if match is None:
            continue
        if route.method == method:
            return route, {name: part for name, part in match.groupdict().items() if part is not None}
        path_is_known = True
    if path_is_known:
        raise front_door_error(405, "MethodNotAllowed", f"{path} does not take {method}.")
    raise front_door_error(404, "InvalidResourceType", f"The local Resource Manager does not serve {path}.")
