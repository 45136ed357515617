"""From options, tidemark.toml and the app's settings to what is pulled: see `chosen`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from scaling.config.policy import MetricSpec, PolicySpec
from scaling.resource_id import ResourceId
from tidemark.commands.history.model import PullError, PullPlan
from tidemark.commands.history.sources import (
    EVENT_HUBS,
    SERVICE_BUS,
    STORAGE,
    Service,
    arrivals_of,
    instances_of,
    named,
    resource_of,
    service_of,
)
from tidemark.foundation.azure import connections
from tidemark.foundation.wording import did_you_mean

Settings = Mapping[str, str]


class Options(Struct, frozen=True, kw_only=True):
    """What the command line says; empty is not said."""

    target: str
    metric: str = ""
    resource_id: str = ""
    entity: str = ""
    plan_id: str = ""
    instances: bool = True


class Kind(Struct, frozen=True):
    """What a collector reads: in which service, under which option the entity is named, what the entity is."""

    service: Service
    option: str
    noun: str


KINDS = {
    "event_hub_lag": Kind(EVENT_HUBS, "event_hub", "event hub"),
    "service_bus_queue": Kind(SERVICE_BUS, "queue", "queue"),
    "service_bus_subscription": Kind(SERVICE_BUS, "topic", "topic"),
    "storage_queue": Kind(STORAGE, "queue", "storage queue"),
}
"""Collectors of what Azure Monitor counts the arrivals of."""


class QueueEntity(Struct, frozen=True):
    """An entity as tidemark.toml names it."""

    kind: Kind
    connection: str
    entity: str
    collector: str


def chosen(options: Options, policies: Mapping[str, PolicySpec], settings: Settings) -> PullPlan:
    """What to pull for a target. Options win over the configuration. Raises PullError naming the option to give."""
    spec = policies.get(options.target)
    if spec is None and not options.resource_id:
        raise PullError(_unknown(options.target, policies))
    of_policy = None if spec is None else _entity(options, spec)
    plan = _plan(options, spec)
    resource, option = _resource(options, spec, of_policy, settings)
    service = service_of(resource, option)
    if of_policy is not None and of_policy.kind.service is not service:
        raise PullError(
            f"{option}: found a resource of type {service.type}, but the metric is read by {of_policy.collector}; "
            f"accepted is {of_policy.kind.service.type}"
        )
    name = resource.parts[0][1]
    entity = options.entity or ("" if of_policy is None else of_policy.entity)
    if not entity and service.dimension:
        raise PullError(f"--entity is missing: the queue, topic or event hub of {name} to pull")
    if service.dimension and {"*", "?"} & set(entity):
        raise PullError(
            f"--entity is missing: '{entity}' is a pattern, and the arrivals of one of {name} are pulled"
        )
    return PullPlan(
        options.target,
        f"{name}/{entity if service.dimension else '*'}",
        arrivals_of(resource, service, entity),
        None if plan is None else instances_of(*plan),
        tuple(_notes(name, service, of_policy)),
    )


def _unknown(target: str, policies: Mapping[str, PolicySpec]) -> str:
    if policies:
        known = did_you_mean(target, policies, f"configured are {', '.join(policies)}")
        why = f"which is no target of tidemark.toml ({known})"
    else:
        why = "and there is no tidemark.toml here with a target (--root names another folder)"
    return (
        f"--target: found '{target}', {why}. For a history without one, give "
        "--resource-id of the namespace or storage account, and --entity"
    )


def _entity(options: Options, spec: PolicySpec) -> QueueEntity | None:
    """The entity of the metric asked for, or of the only one; None where --resource-id and --entity say all."""
    if options.metric:
        if options.metric not in spec.metrics:
            raise PullError(
                f"--metric: found '{options.metric}', accepted are the metrics of {spec.target}: {', '.join(spec.metrics)}"
            )
        entity = _found(spec.metrics[options.metric])
        if entity is None:
            raise PullError(
                f"--metric: found '{options.metric}', read by {spec.metrics[options.metric].collector}; accepted are "
                f"metrics read by {', '.join(KINDS)}"
            )
        return entity
    if options.resource_id and options.entity:
        return None
    entities = {
        (watched.kind.option, watched.connection, watched.entity): (name, watched)
        for name, metric in spec.metrics.items()
        if (watched := _found(metric)) is not None
    }
    if len(entities) == 1:
        return next(iter(entities.values()))[1]
    if not entities:
        raise PullError(
            f"target '{spec.target}' has no metric of a queue, topic or event hub; give --resource-id of the namespace "
            "or storage account, and --entity"
        )
    names = (f"{name} ({watched.kind.noun} {watched.entity})" for name, watched in entities.values())
    raise PullError(
        f"target '{spec.target}' watches {len(entities)} entities; give --metric: {', '.join(names)}"
    )


def _found(metric: MetricSpec) -> QueueEntity | None:
    kind = KINDS.get(metric.collector)
    if kind is None:
        return None
    return QueueEntity(
        kind, str(metric.options["connection"]), str(metric.options[kind.option]), metric.collector
    )


def _plan(options: Options, spec: PolicySpec | None) -> tuple[ResourceId, str] | None:
    if not options.instances:
        return None
    if options.plan_id:
        return resource_of(options.plan_id, "--plan-id"), "--plan-id"
    if spec is None or spec.scaler != "app_service_plan":
        return None
    setting = f"resource_id of target '{spec.target}'"
    return resource_of(str(spec.scaler_options["resource_id"]), setting), setting


def _resource(
    options: Options, spec: PolicySpec | None, entity: QueueEntity | None, settings: Settings
) -> tuple[ResourceId, str]:
    """The namespace or account, and what named it. Where nothing does, the one of the connection is looked for in the
    resource group of what the target scales: its name is unique in all of Azure, so a wrong group finds nothing.
    """
    if options.resource_id:
        return resource_of(options.resource_id, "--resource-id"), "--resource-id"
    beside = _scaled_resource(spec)
    name = "" if entity is None else _resource_name(entity, settings)
    if entity is None or beside is None or not name:
        missing = "" if entity is None else f" of the connection {entity.connection}"
        raise PullError(
            f"--resource-id is missing: the resource id of the namespace or storage account{missing}; no setting names it"
        )
    resource = named(beside.subscription, beside.group, entity.kind.service.type, name)
    return resource, f"connection {entity.connection}"


def _scaled_resource(spec: PolicySpec | None) -> ResourceId | None:
    try:
        return None if spec is None else ResourceId.parse(str(spec.scaler_options.get("resource_id")))
    except ValueError:
        return None


def _resource_name(entity: QueueEntity, settings: Settings) -> str:
    """The namespace or account of a connection; empty for an emulator's. Raises PullError for settings that are missing."""
    try:
        if entity.kind.service is STORAGE:
            return _account(settings, entity.connection)
        service_bus = entity.kind.service is SERVICE_BUS
        endpoint = connections.service_bus_endpoint if service_bus else connections.event_hubs_endpoint
        return _label(endpoint(settings, entity.connection).address)
    except connections.ConnectionSettingsError as error:
        raise PullError(f"{error}; or give --resource-id") from error


def _account(settings: Settings, prefix: str) -> str:
    endpoint = connections.storage_endpoint(settings, prefix, "queue")
    if endpoint.connection_string is None:
        return _label(urlsplit(endpoint.address).netloc)
    pairs = (piece.partition("=") for piece in endpoint.connection_string.split(";"))
    parts = {name.strip().casefold(): value.strip() for name, _, value in pairs}
    name = parts.get("accountname", "")
    return "" if name == "devstoreaccount1" else name


def _label(host: str) -> str:
    name, dot, _ = host.partition(":")[0].partition(".")
    return name if dot and not name.isdigit() else ""


def _notes(account: str, service: Service, entity: QueueEntity | None) -> Iterable[str]:
    if not service.dimension:
        yield (
            f"Azure Monitor counts the messages of the storage account {account}, not of one queue: arrivals are "
            "those of all its queues together"
        )
    if entity is not None and entity.collector == "service_bus_subscription":
        yield (
            f"arrivals are those of the topic '{entity.entity}': a subscription whose rules select, gets fewer of them"
        )
