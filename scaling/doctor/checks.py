"""Which checks there are for a deployment: those of the app itself, and those of each target it scales."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path

from azure.core.exceptions import HttpResponseError
from msgspec import Struct

from scaling.config.policy import PolicySpec
from scaling.doctor import budgets, calls, sign_in, verdicts, webhooks
from scaling.doctor.running import story_of
from scaling.ports import Collector, NewerStateError, PoisonQueues, Scaler
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
from tidemark.foundation.http.callers import HOSTNAME, auth_mode_of, is_deployed
from tidemark.foundation.settings_reader import parse_params
from tidemark.foundation.wording import count_text

STORAGE_SCOPE = "https://storage.azure.com/.default"
HOSTS_CONTAINER = "azure-webjobs-hosts"  # where the Functions host keeps its leases
TIMERS = ("COLLECT_SCHEDULE", "VERIFY_SCHEDULE")
HOSTING, SLICES = (
    "CONSUMER_HOSTING",
    "CONSUME_SCHEDULE",
)  # the schedule is read only by an app that consumes in slices

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
        Check(
            "decisions",
            "targets",
            _on_storage("Storage Table Data Contributor"),
            partial(_decisions, case, autoscaler, targets),
        ),
        *(() if case.only else webhooks.checks_of(autoscaler.config.notify, case.settings)),
        *(() if case.only else budgets.checks_of(case.settings, autoscaler)),
    ]


def _configuration(problems: str, targets: int = 0) -> Check:
    subject = "configuration", "tidemark.toml"

    async def call() -> list[Finding]:
        if not problems:
            return [ok(*subject, f"{count_text(targets, 'target')}, with every setting named")]
        remedy = "correct what is named; tidemark lint checks again before you deploy"
        return [failed(*subject, problems, remedy)]

    return Check(*subject, Needs("nothing", "tidemark.toml"), call)


async def _unless_forbidden(findings: Awaitable[list[Finding]], otherwise: Finding) -> list[Finding]:
    """`otherwise` where the identity may not even look."""
    try:
        return await findings
    except HttpResponseError as error:
        if error.status_code != 403:
            raise
        return [otherwise]


# -- the app -----------------------------------------------------------------------------------------------


def _on_storage(role: str) -> Needs:
    return Needs(f"the '{role}' role (or the right key in {STORAGE})", f"the storage account of {STORAGE}")


def _of_app(case: Case, autoscaler: Autoscaler | None) -> Iterator[Check]:
    settings, app = case.settings, "the function app"
    tables = _on_storage("Storage Table Data Contributor")
    queues = _on_storage("Storage Queue Data Contributor")
    for prefix, asked in _identities(settings, autoscaler):
        needs = Needs("a managed identity", app)
        yield Check("identity", prefix, needs, partial(_identity, settings, prefix, asked))
    for table in (TableStateStore.TABLE, TableDecisionLog.TABLE):
        yield Check("storage", f"table {table}", tables, partial(_table, settings, table))
    for queue in QUEUES:
        yield Check("storage", f"queue {queue}", queues, partial(_queue, case, queue))
    blobs = _on_storage("Storage Blob Data Owner")
    yield Check("storage", f"container {HOSTS_CONTAINER}", blobs, partial(_blobs, settings))
    if autoscaler is not None:
        needs = _on_storage("Storage Queue Data Reader")
        yield Check("poison", "queues", needs, partial(_poison, autoscaler.ports.poison))
    needs = _on_storage("Storage Table Data Reader")
    yield Check("clock", calls.machine(), needs, partial(_clock, case))
    yield Check("schedule", "timers", Needs("nothing", "the app settings"), partial(_schedules, case))
    yield Check("versions", "app", Needs("nothing", app), partial(_versions, case))
    yield from _sign_in(settings)


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


async def _identity(settings: Settings, prefix: str, asked: Callable[[], str]) -> list[Finding]:
    return [verdicts.identity(prefix, await calls.token_claims(settings, prefix, asked()))]


async def _table(settings: Settings, name: str) -> list[Finding]:
    return [storage(f"table {name}", absent=await table_absent(settings, STORAGE, name))]


async def _queue(case: Case, name: str) -> list[Finding]:
    waiting = await calls.queue_waiting(case.settings, STORAGE, name)
    there = storage(f"queue {name}", absent=waiting is None)
    return [there] if waiting is None else [there, verdicts.queue(name, waiting, case.clock())]


async def _blobs(settings: Settings) -> list[Finding]:
    absent = await blobs_absent(settings, STORAGE, HOSTS_CONTAINER)
    return [storage(f"container {HOSTS_CONTAINER}", absent=absent)]


async def _poison(queues: PoisonQueues) -> list[Finding]:
    async with aclosing(queues):
        return [verdicts.poison(*await queues.peek())]


async def _clock(case: Case) -> list[Finding]:
    ahead = await calls.ahead_of_service(case.settings, STORAGE, case.clock)
    return [verdicts.clock(calls.machine(), ahead)]


async def _schedules(case: Case) -> list[Finding]:
    sliced = case.settings.get(HOSTING, "").strip().casefold() == "slices"
    names = (*TIMERS, SLICES) if sliced else TIMERS
    findings = [verdicts.schedule(name, case.settings.get(name), case.clock()) for name in names]
    return [*findings, verdicts.time_zone(case.settings.get("WEBSITE_TIME_ZONE"))]


async def _versions(case: Case) -> list[Finding]:
    return verdicts.versions(calls.runtime(case.settings, case.root))


def _sign_in(settings: Settings) -> Iterator[Check]:
    """Whether the app and the platform in front of it agree; nothing where there is none."""
    if not is_deployed(settings):
        return
    needs = Needs("the 'Reader' role", "the function app")
    site, host = sign_in.site_id(settings), settings.get(HOSTNAME, "").strip()

    async def by_environment() -> list[Finding]:
        return sign_in.by_environment(settings)

    async def by_setting(site: str) -> list[Finding]:
        return sign_in.by_platform(settings, await calls.platform_sign_in(settings, site))

    async def by_platform() -> list[Finding]:
        if site is None:
            return [sign_in.unknown_setting(f"{sign_in.OWNER} or {sign_in.GROUP} is not set")]
        unreadable = sign_in.unknown_setting(f"the identity may not read {site}")
        return await _unless_forbidden(by_setting(site), unreadable)

    async def by_answers() -> list[Finding]:
        try:
            answers = await calls.knocked(f"https://{host}", settings)
        except OSError as error:  # a private app may not reach itself
            return [sign_in.unreached(host, error)]
        return sign_in.by_answers(host, *answers, sign_in=auth_mode_of(settings).sign_in)

    yield Check(sign_in.CHECK, "app", needs, by_environment)
    yield Check(sign_in.CHECK, "authsettingsV2", needs, by_platform)
    if host:
        yield Check(sign_in.CHECK, host, needs, by_answers)


# -- what is scaled, and by what ---------------------------------------------------------------------------


def _metric(case: Case, entity: str, collector: Collector) -> Check:
    async def call() -> list[Finding]:
        async with aclosing(collector):
            reading = await collector.collect(now=case.clock())
        return [
            ok("metric", entity, ", ".join(f"{name} {value:g}" for name, value in reading.values.items()))
        ]

    role = str(getattr(collector, "ROLE", "what the collector asks for"))
    return Check("metric", entity, Needs(role, entity), call)


def _of_target(case: Case, target: str, autoscaler: Autoscaler) -> Iterator[Check]:
    spec, settings = autoscaler.config.policies[target].spec, case.settings
    params = parse_params(registry.scaler_class(spec.scaler).Params, spec.scaler_options)[0]
    needed = right_of(params)
    place = str(spec.scaler_options.get("connection") or target)
    needs = Needs("what the scaler asks for, such as a key that may write,", place)
    if needed is not None:
        needs = Needs(needed.role, needed.resource_id)
    call = partial(_capacity, case, target, spec, autoscaler.ports.scalers[target])
    yield Check("capacity", target, needs, call)
    if needed is not None:
        yield Check("right", target, needs, partial(_right, settings, target, needed))
    if isinstance(params, AppServicePlanScaler.Params | AzureResourceScaler.Params):
        place = "the resource group of what is scaled, or its subscription"
        held = partial(_autoscale, settings, target, params.resource_id)
        yield Check("autoscale", target, Needs(_AUTOSCALE_ROLE, place), held)
    if isinstance(params, AppServicePlanScaler.Params):
        apps = partial(_apps, settings, target, params.resource_id, spec.maximum)
        yield Check("apps", target, Needs("the 'Reader' role", "the plan and its apps"), apps)


class Right(Struct, frozen=True):
    """What a scaler does to a resource, beyond reading it."""

    resource_id: str
    actions: tuple[str, ...]
    role: str


def right_of(params: object) -> Right | None:
    """The right that a scaler of ours needs; None where Resource Manager is not the one to ask."""
    if isinstance(params, AppServicePlanScaler.Params):
        return Right(params.resource_id, ("Microsoft.Web/serverfarms/write",), _PLAN_ROLE)
    if isinstance(params, AzureResourceScaler.Params):
        known = params.known
        removes = (f"{known.type}/{known.removal}/action",) if params.remove_acknowledged else ()
        return Right(params.resource_id, (f"{known.type}/write", *removes), _RESOURCE_ROLE)
    if isinstance(params, CosmosThroughputScaler.Params) and params.resource_id:
        of_container = ThroughputId.parse(params.resource_id).container is not None
        kind = "sqlDatabases/containers" if of_container else "sqlDatabases"
        action = f"Microsoft.DocumentDB/databaseAccounts/{kind}/throughputSettings/write"
        return Right(params.resource_id, (action,), _THROUGHPUT_ROLE)
    return None


async def _capacity(case: Case, target: str, spec: PolicySpec, scaler: Scaler) -> list[Finding]:
    async with aclosing(scaler):
        capacity = await scaler.current(target, now=case.clock())
    return [verdicts.capacity(target, capacity, spec.minimum, spec.maximum)]


async def _right(settings: Settings, target: str, needed: Right) -> list[Finding]:
    async def allowed() -> list[Finding]:
        entries = await calls.permitted(settings, needed.resource_id)
        needs = Needs(needed.role, needed.resource_id)
        return [verdicts.right(target, entries, action, needs) for action in needed.actions]

    return await _unless_forbidden(allowed(), verdicts.unknown_right(target, needed.actions[0]))


async def _autoscale(settings: Settings, target: str, resource_id: str) -> list[Finding]:
    return [verdicts.autoscale(target, await calls.autoscale_holder(settings, resource_id))]


async def _apps(settings: Settings, target: str, plan_id: str, maximum: int) -> list[Finding]:
    async def apps() -> list[Finding]:
        return [verdicts.apps(target, await calls.workers_of_apps(settings, plan_id), maximum)]

    return await _unless_forbidden(apps(), verdicts.unknown_apps(target))


async def _decisions(case: Case, autoscaler: Autoscaler, targets: Sequence[str]) -> list[Finding]:
    states, config = autoscaler.ports.states, autoscaler.config
    try:
        # The store would make a table that is missing, which is the app's to do.
        absent = await table_absent(case.settings, STORAGE, TableStateStore.TABLE, write=False)
        snapshots = {} if absent else await states.load_all(targets)
    except NewerStateError as error:
        return [verdicts.newer_state(str(error))]
    finally:
        await states.aclose()
    findings = []
    for target in targets:
        last = snapshots[target].state.last if target in snapshots else None
        every = max(config.policies[target].interval, config.interval)
        findings.append(verdicts.decisions(target, None if last is None else last.at, every, case.clock()))
    return findings
