"""Which metric tells the arrivals of what, and which the instances of a plan. Pure.

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
    """A kind of resource whose metrics tell arrivals. Without `dimension` they are those of the whole resource."""

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


class Measured(Struct, frozen=True):
    """A resource that has metrics; `type` as in Microsoft.ServiceBus/namespaces, `rest` what is below it."""

    subscription: str
    group: str
    type: str
    name: str
    rest: str = ""

    @classmethod
    def parse(cls, text: str, option: str) -> Measured:
        """Raises PullError naming the `option` or setting that holds it."""
        try:
            found = ResourceId.parse(text)
        except ValueError as error:
            raise PullError(f"{option}: {error}") from None
        (kind, name), *below = found.parts
        rest = "".join(f"/{each}/{named}" for each, named in below)
        return cls(found.subscription, found.group, f"{found.provider}/{kind}", name, rest)

    def __str__(self) -> str:
        return (
            f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"
            f"/providers/{self.type}/{self.name}{self.rest}"
        )


def service_of(resource: Measured, option: str) -> Service:
    """Raises PullError for a resource whose metrics tell no arrivals."""
    service = SERVICES.get(resource.type.casefold())
    if service is None or resource.rest.casefold() not in {"", service.below.casefold()}:
        accepted = ", ".join(each.type for each in SERVICES.values())
        raise PullError(
            f"{option}: found a resource of type {resource.type}{resource.rest}; accepted are {accepted}"
        )
    return service


def arrivals_of(resource: Measured, service: Service, entity: str) -> Source:
    """What tells the messages that arrived at an entity of the resource, per minute."""
    whole = Measured(resource.subscription, resource.group, service.type, resource.name, service.below)
    chosen = service.filter or f"{service.dimension} eq '{quoted(entity)}'"
    return Source(str(whole), service.metric, "total", chosen)


def instances_of(plan: Measured, option: str) -> Source:
    """What tells the instances of a plan. Raises PullError for another kind of resource."""
    if plan.type.casefold() != PLAN_TYPE.casefold() or plan.rest:
        raise PullError(f"{option}: found a resource of type {plan.type}{plan.rest}; accepted is {PLAN_TYPE}")
    return Source(str(plan), "CpuPercentage", "average", "Instance eq '*'")


def every_entity(source: Source) -> Source | None:
    """The same metric by all entities, to tell their names; None where it knows none."""
    dimension, _, _ = source.filter.partition(" eq ")
    if " and " in source.filter:
        return None
    return Source(source.resource_id, source.metric, source.aggregation, f"{dimension} eq '*'")


def quoted(value: str) -> str:
    """A dimension's value inside the quotes of a filter. Round brackets are encoded twice, as the API documents it: here,
    and with everything else on the way.
    """
    return value.replace("'", "''").replace("%", "%25").replace("(", "%28").replace(")", "%29")
