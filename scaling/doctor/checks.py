"""Which checks there are for a deployment: those of the app itself, and those of each target it scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from azure.core.exceptions import HttpResponseError
from msgspec import Struct

from scaling.config.policy import PolicySpec
from scaling.doctor import budgets, calls, sign_in, verdicts, webhooks
from scaling.doctor.trouble import story_of
from scaling.model import Capacity
from scaling.ports import Collector, NewerStateError, PoisonQueues, Scaler, Snapshot, StateStore
from scaling.scalers.app_service.scaler import AppServicePlanScaler
from scaling.scalers.arm.clients import CONNECTION, scope
from scaling.scalers.cosmos.scaler import CosmosThroughputScaler
from scaling.scalers.cosmos.throughput import ThroughputId
from scaling.scalers.resource.scaler import AzureResourceScaler
from scaling.service import registry
from scaling.service.assembly import QUEUES, assemble
from scaling.service.autoscaler import Autoscaler
from scaling.storage.decision_log import TableDecisionLog
from scaling.storage.states import TableStateStore
from tidemark.foundation.app_settings import STORAGE
from tidemark.foundation.azure.connections import Settings, connection_string
from tidemark.foundation.azure.trials import blobs_absent, table_absent
from tidemark.foundation.checkup import Check, Finding, Needs, failed, ok, storage
from tidemark.foundation.http.callers import HOSTNAME, door_of, is_deployed
from tidemark.foundation.settings_reader import parse_params
from tidemark.foundation.wording import count_text

STORAGE_SCOPE = "https://storage.azure.com/.default"
HOSTS_CONTAINER = "azure-webjobs-hosts"  # where the Functions host keeps its leases
TIMERS = ("COLLECT_SCHEDULE", "VERIFY_SCHEDULE")
HOSTING, SLICES = (
    "CONSUMER_HOSTING",
    "CONSUME_SCHEDULE",
)  # the schedule is read only where the app consumes in slices

_OF_AZURE_MONITOR = frozenset({"azure_monitor", "log_query"})  # collectors that ask by the app's identity

_PLAN_ROLE = "the role 'Tidemark Plan Scaler' of the templates, or 'Web Plan Contributor',"
_RESOURCE_ROLE = (
    "the role of the templates for its kind (docs/settings.md), or one with the type's read and write,"
)
_AUTOSCALE_ROLE = "the role 'Tidemark Autoscale Reader' of the templates, or 'Monitoring Reader',"
_THROUGHPUT_ROLE = "the role 'Tidemark Throughput Scaler' of the templates, or 'Cosmos DB Operator',"


class Case(Struct, frozen=True):
    """What is examined: an app's settings and its folder; `clock` in seconds since the epoch; `only` these targets,
    or all.
    """

    settings: Settings
    root: Path
    clock: Callable[[], float]
    only: Sequence[str] = ()


def checks_of(case: Case) -> list[Check]:
    """All checks. A configuration that cannot be used is a finding of its own, and the app's own checks are made."""
    try:
        autoscaler = assemble(case.settings, root=case.root, apart=True)  # checks have loops of their own
    except Exception as error:  # besides ConfigError, whatever a class of the user's own raises
        return [_configuration(story_of(error)), *_of_app(case, None)]
    unknown = [name for name in case.only if name not in autoscaler.config.policies]
    if unknown:
        raise ValueError(
            f"target '{unknown[0]}' is not configured; there are {', '.join(autoscaler.config.policies)}"
        )
    targets = case.only or tuple(autoscaler.config.policies)
    ours = [source.entity for source in autoscaler.ports.sources if source.target in targets]
    entities = {entity: autoscaler.ports.collectors[entity] for entity in ours}
    return [
        _configuration("", len(autoscaler.config.policies)),
        *_of_app(case, autoscaler),
        *(_metric(case, entity, collector) for entity, collector in entities.items()),
        *(check for target in targets for check in _of_target(case, target, autoscaler)),
        _decisions(case, autoscaler, targets),
        *(() if case.only else webhooks.checks_of(autoscaler.config.notify, case.settings)),
        *(() if case.only else budgets.checks_of(case.settings, autoscaler)),
    ]


def _configuration(problems: str, targets: int = 0) -> Check:
    async def call() -> list[Finding]:
        if not problems:
            return [
                ok(
                    "configuration",
                    "tidemark.toml",
                    f"{count_text(targets, 'target')}, with every setting named",
                )
            ]
        remedy = "correct what is named; tidemark lint checks again before you deploy"
        return [failed("configuration", "tidemark.toml", problems, remedy)]

    return Check("configuration", "tidemark.toml", Needs("nothing", "tidemark.toml"), call)


# -- the app -----------------------------------------------------------------------------------------------


def _of_app(case: Case, autoscaler: Autoscaler | None) -> Iterator[Check]:
    settings = case.settings
    for prefix, asked in _identities(settings, autoscaler):
        yield _identity(settings, prefix, asked)
    for table in (TableStateStore.TABLE, TableDecisionLog.TABLE):
        yield _table(settings, table)
    for queue in QUEUES:
        yield _queue(case, queue)
    yield _blobs(settings)
    if autoscaler is not None:
        yield _poison(autoscaler.ports.poison)
    yield _clock(case)
    yield from _schedules(case)
    yield _versions(case)
    yield from _sign_in(case.settings)


def _identities(settings: Settings, autoscaler: Autoscaler | None) -> Iterator[tuple[str, Callable[[], str]]]:
    """Connections that are made by identity, and what its token is asked for."""
    if connection_string(settings, STORAGE) is None:
        yield STORAGE, lambda: STORAGE_SCOPE
    specs = autoscaler.config.policies.values() if autoscaler is not None else ()
    metrics = [metric for policy in specs for metric in policy.spec.metrics.values()]
    if any(policy.spec.scaler_options.get("resource_id") for policy in specs) or any(
        metric.collector in _OF_AZURE_MONITOR or metric.options.get("azure") for metric in metrics
    ):
        yield CONNECTION, partial(scope, settings)


def _identity(settings: Settings, prefix: str, asked: Callable[[], str]) -> Check:
    async def call() -> list[Finding]:
        return [verdicts.identity(prefix, await calls.token_claims(settings, prefix, asked()))]

    return Check("identity", prefix, Needs("a managed identity", "the function app"), call)


def _storage_needs(role: str) -> Needs:
    return Needs(f"the '{role}' role (or the right key in {STORAGE})", f"the storage account of {STORAGE}")


def _table(settings: Settings, name: str) -> Check:
    subject = f"table {name}"

    async def call() -> list[Finding]:
        absent = await table_absent(settings, STORAGE, name)
        return [storage(subject, absent=absent)]

    return Check("storage", subject, _storage_needs("Storage Table Data Contributor"), call)


def _queue(case: Case, name: str) -> Check:
    subject = f"queue {name}"

    async def call() -> list[Finding]:
        waiting = await calls.queue_waiting(case.settings, STORAGE, name)
        there = storage(subject, absent=waiting is None)
        return [there] if waiting is None else [there, verdicts.queue(name, waiting, case.clock())]

    return Check("storage", subject, _storage_needs("Storage Queue Data Contributor"), call)


def _blobs(settings: Settings) -> Check:
    subject = f"container {HOSTS_CONTAINER}"

    async def call() -> list[Finding]:
        absent = await blobs_absent(settings, STORAGE, HOSTS_CONTAINER)
        return [storage(subject, absent=absent)]

    return Check("storage", subject, _storage_needs("Storage Blob Data Owner"), call)


def _poison(queues: PoisonQueues) -> Check:
    async def call() -> list[Finding]:
        try:
            count, messages = await queues.peek()
        finally:
            await queues.aclose()
        return [verdicts.poison(count, messages)]

    return Check("poison", "queues", _storage_needs("Storage Queue Data Reader"), call)


def _clock(case: Case) -> Check:
    async def call() -> list[Finding]:
        ahead = await calls.ahead_of_service(case.settings, STORAGE, case.clock)
        return [verdicts.clock(calls.machine(), ahead)]

    return Check("clock", calls.machine(), _storage_needs("Storage Table Data Reader"), call)


def _schedules(case: Case) -> Iterator[Check]:
    sliced = case.settings.get(HOSTING, "").strip().casefold() == "slices"

    async def call() -> list[Finding]:
        names = (*TIMERS, SLICES) if sliced else TIMERS
        found = [verdicts.schedule(name, case.settings.get(name), case.clock()) for name in names]
        return [*found, verdicts.time_zone(case.settings.get("WEBSITE_TIME_ZONE"))]

    yield Check("schedule", "timers", Needs("nothing", "the app settings"), call)


def _versions(case: Case) -> Check:
    async def call() -> list[Finding]:
        return verdicts.versions(calls.runtime(case.settings, case.root))

    return Check("versions", "app", Needs("nothing", "the function app"), call)


def _sign_in(settings: Settings) -> Iterator[Check]:
    """Whether the app and the platform in front of it agree; nothing where there is none."""
    if not is_deployed(settings):
        return
    needs = Needs("the 'Reader' role", "the function app")
    site, host = sign_in.site_id(settings), settings.get(HOSTNAME, "").strip()

    async def by_environment() -> list[Finding]:
        return sign_in.by_environment(settings)

    async def by_platform() -> list[Finding]:
        if site is None:
            return [sign_in.not_told(f"{sign_in.OWNER} or {sign_in.GROUP} is not set")]
        try:
            return sign_in.by_platform(settings, await calls.platform_sign_in(settings, site))
        except HttpResponseError as error:
            if error.status_code != 403:
                raise
            return [sign_in.not_told(f"the identity may not read {site}")]

    async def by_answers() -> list[Finding]:
        try:
            answers = await calls.knocked(f"https://{host}", settings)
        except OSError as error:  # a private app may not reach itself
            return [sign_in.not_knocked(host, str(error) or type(error).__name__)]
        return sign_in.by_answers(host, *answers, sign_in=door_of(settings).sign_in)

    yield Check(sign_in.CHECK, "app", needs, by_environment)
    yield Check(sign_in.CHECK, "authsettingsV2", needs, by_platform)
    if host:
        yield Check(sign_in.CHECK, host, needs, by_answers)


# -- what is scaled, and by what ---------------------------------------------------------------------------


def _metric(case: Case, entity: str, collector: Collector) -> Check:
    role = str(getattr(collector, "ROLE", "what the collector asks for"))

    async def call() -> list[Finding]:
        try:
            reading = await collector.collect(now=case.clock())
        finally:
            await collector.aclose()
        values = ", ".join(f"{name} {value:g}" for name, value in reading.values.items())
        return [ok("metric", entity, values)]

    return Check("metric", entity, Needs(role, entity), call)


def _of_target(case: Case, target: str, autoscaler: Autoscaler) -> Iterator[Check]:
    spec = autoscaler.config.policies[target].spec
    yield _capacity(case, target, spec, autoscaler.ports.scalers[target])
    params = _params(spec)
    if (needed := right_of(params)) is not None:
        yield _right(case, target, needed)
    if isinstance(params, AppServicePlanScaler.Params | AzureResourceScaler.Params):
        yield _autoscale(case, target, params.resource_id)
    if isinstance(params, AppServicePlanScaler.Params):
        yield _apps(case, target, params.resource_id, spec.maximum)


def _params(spec: PolicySpec) -> Any:
    return parse_params(registry.scaler_class(spec.scaler).Params, spec.scaler_options)[0]


class Right(Struct, frozen=True):
    """What a scaler does to a resource, beyond reading it."""

    resource_id: str
    action: str
    role: str


def right_of(params: object) -> Right | None:
    """The right that a scaler of ours needs; None where Resource Manager is not the one to ask."""
    if isinstance(params, AppServicePlanScaler.Params):
        return Right(params.resource_id, "Microsoft.Web/serverfarms/write", _PLAN_ROLE)
    if isinstance(params, AzureResourceScaler.Params):
        return Right(params.resource_id, f"{params.known.type}/write", _RESOURCE_ROLE)
    if isinstance(params, CosmosThroughputScaler.Params) and params.resource_id:
        of_container = ThroughputId.parse(params.resource_id).container is not None
        kind = "sqlDatabases/containers" if of_container else "sqlDatabases"
        action = f"Microsoft.DocumentDB/databaseAccounts/{kind}/throughputSettings/write"
        return Right(params.resource_id, action, _THROUGHPUT_ROLE)
    return None


def _capacity(case: Case, target: str, spec: PolicySpec, scaler: Scaler) -> Check:
    async def call() -> list[Finding]:
        try:
            capacity = await scaler.current(target, now=case.clock())
        finally:
            await scaler.aclose()
        text = _capacity_text(capacity)
        return [verdicts.capacity(target, capacity, text, spec.minimum, spec.maximum)]

    needed = right_of(_params(spec))
    if needed is not None:
        return Check("capacity", target, Needs(needed.role, needed.resource_id), call)
    place = str(spec.scaler_options.get("connection") or target)
    return Check(
        "capacity", target, Needs("what the scaler asks for, such as a key that may write,", place), call
    )


def _capacity_text(capacity: Capacity) -> str:
    if capacity.advised:
        return "nothing is changed here: what is decided is told to who asks"
    ceiling = "" if capacity.ceiling is None else f", at most {capacity.ceiling}"
    return f"{capacity.current} now{ceiling}"


def _right(case: Case, target: str, needed: Right) -> Check:
    async def call() -> list[Finding]:
        try:
            entries = await calls.permitted(case.settings, needed.resource_id)
        except HttpResponseError as error:
            if error.status_code != 403:
                raise
            return [verdicts.right_not_told(target, needed.action)]
        return [verdicts.right(target, entries, needed.action, needs)]

    needs = Needs(needed.role, needed.resource_id)
    return Check("right", target, needs, call)


def _autoscale(case: Case, target: str, resource_id: str) -> Check:
    async def call() -> list[Finding]:
        return [verdicts.autoscale(target, await calls.autoscale_holder(case.settings, resource_id))]

    place = "the resource group of what is scaled, or its subscription"
    return Check("autoscale", target, Needs(_AUTOSCALE_ROLE, place), call)


def _apps(case: Case, target: str, plan_id: str, maximum: int) -> Check:
    async def call() -> list[Finding]:
        try:
            workers = await calls.workers_of_apps(case.settings, plan_id)
        except HttpResponseError as error:
            if error.status_code != 403:
                raise
            return [verdicts.apps_not_told(target)]
        return [verdicts.apps(target, workers, maximum)]

    return Check("apps", target, Needs("the 'Reader' role", "the plan and its apps"), call)


def _decisions(case: Case, autoscaler: Autoscaler, targets: Sequence[str]) -> Check:
    states: StateStore = autoscaler.ports.states
    every, policies = autoscaler.config.interval, autoscaler.config.policies

    async def call() -> list[Finding]:
        try:
            # The store would make a table that is missing, which is the app's to do.
            name = TableStateStore.TABLE
            absent = await table_absent(case.settings, STORAGE, name, write=False)
            snapshots = {} if absent else await states.load_all(targets)
        except NewerStateError as error:
            return [verdicts.newer_state(str(error))]
        finally:
            await states.aclose()
        now = case.clock()
        return [
            verdicts.decisions(
                target, _decided_at(snapshots.get(target)), max(policies[target].interval, every), now
            )
            for target in targets
        ]

    needs = _storage_needs("Storage Table Data Contributor")
    return Check("decisions", "targets", needs, call)


def _decided_at(snapshot: Snapshot | None) -> float | None:
    return None if snapshot is None or snapshot.state.last is None else snapshot.state.last.at
