"""Which metric counts the arrivals of what, and which the instances of a plan. Pure.

* Service Bus and Event Hubs: `IncomingMessages` of the namespace, by `EntityName` (the queue, topic or event hub).
* Storage queues: `Transactions` of the account's queue service with `ApiName` PutMessage. There is no dimension for the
  queue: messages of all queues of the account are counted together.
* Plans have no metric that is their number of instances. `CpuPercentage` is reported by each instance every minute, so
  the number of series by `Instance` with a value is the number that ran.
"""

from __future__ import annotations

from msgspec import Struct

from scaling.resource_id import ResourceId
from tidemark.commands.history.model import PullError, Source


class Service(Struct, frozen=True):
    """A kind of resource whose metrics count arrivals. Without `dimension` they are those of the whole resource."""

    type: str
    metric: str
    dimension: str = ""
    filter: str = ""
    below: str = ""


SERVICE_BUS = Service("Microsoft.ServiceBus/namespaces", "IncomingMessages", "EntityName")
EVENT_HUBS = Service("Microsoft.EventHub/namespaces", "IncomingMessages", "EntityName")
STORAGE = Service(
    "Microsoft.Storage/storageAccounts",
    "Transactions",
    filter="ApiName eq 'PutMessage' and ResponseType eq 'Success'",
    below="/queueServices/default",
)
SERVICES = {service.type.casefold(): service for service in (SERVICE_BUS, EVENT_HUBS, STORAGE)}
PLAN_TYPE = "Microsoft.Web/serverfarms"


def resource_of(text: str, option: str) -> ResourceId:
    """Raises PullError naming the `option` or setting that holds the id."""
    try:
        return ResourceId.parse(text)
    except ValueError as error:
        raise PullError(f"{option}: {error}") from None


def named(subscription: str, group: str, kind: str, name: str) -> ResourceId:
    """The id of a resource of a `kind` such as Microsoft.ServiceBus/namespaces."""
    provider, _, type_ = kind.partition("/")
    return ResourceId(subscription, group, provider, ((type_, name),))


def service_of(resource: ResourceId, option: str) -> Service:
    """Raises PullError for a resource whose metrics count no arrivals."""
    (type_, name), *_ = resource.parts
    whole = named(resource.subscription, resource.group, f"{resource.provider}/{type_}", name)
    below = str(resource).removeprefix(str(whole))
    service = SERVICES.get(whole.type.casefold())
    if service is None or below.casefold() not in {"", service.below.casefold()}:
        accepted = ", ".join(known.type for known in SERVICES.values())
        raise PullError(f"{option}: found a resource of type {whole.type}{below}; accepted are {accepted}")
    return service


def arrivals_of(resource: ResourceId, service: Service, entity: str) -> Source:
    """What counts the messages that arrived at an entity of the resource, per minute."""
    whole = named(resource.subscription, resource.group, service.type, resource.parts[0][1])
    chosen = service.filter or f"{service.dimension} eq '{quoted(entity)}'"
    return Source(f"{whole}{service.below}", service.metric, "total", chosen)


def instances_of(plan: ResourceId, option: str) -> Source:
    """What counts the instances of a plan. Raises PullError for another kind of resource."""
    if plan.type.casefold() != PLAN_TYPE.casefold():
        raise PullError(f"{option}: found a resource of type {plan.type}; accepted is {PLAN_TYPE}")
    return Source(str(plan), "CpuPercentage", "average", "Instance eq '*'")


def every_entity(source: Source) -> Source | None:
    """The same metric by all entities, to find their names; None where it knows none."""
    dimension, _, _ = source.filter.partition(" eq ")
    if " and " in source.filter:
        return None
    return Source(source.resource_id, source.metric, source.aggregation, f"{dimension} eq '*'")


def quoted(value: str) -> str:
    """A dimension's value inside the quotes of a filter. Round brackets are encoded twice, as the API documents it: here,
    and with everything else on the way.
    """
    return value.replace("'", "''").replace("%", "%25").replace("(", "%28").replace(")", "%29")
