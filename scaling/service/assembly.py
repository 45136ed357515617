"""Puts an Autoscaler together from app settings and tidemark.toml; one per process."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from scaling.calls.budgets import budgets_of
from scaling.calls.limiter import limiter_of
from scaling.calls.noting import Noting
from scaling.collectors.matching import Matching, MatchingCollector
from scaling.config import toml
from scaling.config.checks import Severity
from scaling.config.policy import Policy
from scaling.config.policy_file import DEFAULT_RETENTION, Config, build_config, decoded, load_config
from scaling.notices.announcer import QUEUE as NOTICES
from scaling.notices.announcer import Announcer, sender_of, unusable
from scaling.ports import Collector, PoisonQueues, Scaler
from scaling.service import registry
from scaling.service.autoscaler import Autoscaler
from scaling.service.reading import MetricSource
from scaling.service.shell import Ports
from scaling.storage.decision_log import TableDecisionLog
from scaling.storage.documents import TableCallCounts
from scaling.storage.poison_queues import QueuePoisonQueues
from scaling.storage.states import TableStateStore
from tidemark.foundation.app_settings import ROOT, STORAGE, policy_file, read_beside
from tidemark.foundation.azure.connections import transport_options
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.log.process import quiet_sdks
from tidemark.foundation.sanitize import describe_error
from tidemark.foundation.secrets.known import hide_settings, leave_names
from tidemark.foundation.settings_reader import ConfigError, Problem, Shared, parse_params, read_log_level
from tidemark.foundation.wording import file_problem

QUEUES = ("metrics", "actions")

_SETTING = re.compile(r"%[A-Za-z_][A-Za-z0-9_]*%")

clock: Callable[[], float] = time.time
"""Seconds since the epoch, for all that is decided in this process. A host that replays a day sets a faster one."""


def read_config(settings: Mapping[str, str], *, root: Path = ROOT) -> Config:
    """The configuration named by the setting TIDEMARK_CONFIG (default tidemark.toml beside host.json).

    Raises ConfigError with every problem found.
    """
    hide_settings(settings)
    path = policy_file(root, settings)
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        where = (
            "is not there; give its folder as --root, or in an app its path as the setting TIDEMARK_CONFIG;"
            " `tidemark init` or `tidemark discover` writes a first one"
        )
        raise ConfigError([Problem(str(path), where)]) from error
    except OSError as error:
        raise ConfigError([Problem(str(path), f"cannot be read: {file_problem(error)}")]) from error
    text = decoded(data, name=path.name)
    config = load_config(
        text, name=path.name, settings=settings, plug_ins=registry, read_file=read_beside(path)
    )
    for name, policy in config.policies.items():
        leave_names({name, *policy.windows, *(rule.name for rule in policy.spec.rules)})
    return config


def with_shadow(settings: Mapping[str, str], target: str, text: str, *, root: Path = ROOT) -> Policy:
    """The policy of a target as configured, but with a table `shadow` of these keys, which are TOML.

    Raises ConfigError, and ValueError naming what is wrong with the keys. Code of the user's own is not loaded for it: whoever
    may look at a target may ask.
    """
    hide_settings(settings)
    path = policy_file(root, settings)
    try:
        shadow = toml.parsed(text)
    except ValueError as error:
        raise ValueError(f"policy: {error}") from None
    for key, value in _texts_in(shadow):
        if key == "type" and ":" in value:
            raise ValueError("policy: rules of code of your own (`module:Class`) are not tried here")
        if _SETTING.search(value):  # the answer would show it
            raise ValueError(f"policy: {key}: app settings (%NAME%) are not looked up here")
    tree = toml.parsed(decoded(path.read_bytes(), name=path.name))
    tree["targets"].setdefault(target, {})["shadow"] = shadow
    shared = Shared("policy", {}, settings)
    config = build_config(tree, shared, plug_ins=registry, read_file=read_beside(path))
    about = (finding for finding in config.findings if finding.kind == "shadow" and finding.target == target)
    wrong = [finding.text for finding in about if finding.severity is Severity.ERROR]
    if wrong or config.policies[target].shadow is None:
        raise ValueError("; ".join(wrong) or "policy: has no rules")
    return config.policies[target]


def _texts_in(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a tree, and every key, with the key it stands under."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for item in value:
            yield from _texts_in(item, key)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name, name
            yield from _texts_in(item, name)


def assemble(settings: Mapping[str, str], *, root: Path = ROOT, apart: bool = False) -> Autoscaler:
    """Builds adapters for everything the configuration names. Clients connect on first use; they are shared, or for adapters
    that are used in event loops of their own, `apart`.

    Raises ConfigError, also for connection settings that are missing.
    """
    config = read_config(settings, root=root)
    problems: list[Problem] = []
    for check in (
        transport_options,  # clients look at it when they connect; a missing file is reported here, once
        read_log_level,
        budgets_of,
    ):
        try:
            check(settings)
        except (ValueError, SettingsError) as error:
            problems.append(Problem("app settings", str(error)))
    collectors, sources = _collectors(config, settings, problems)
    scalers = _scalers(config, settings, problems)
    if not apart:
        _introduce(collectors.values())
        _introduce(scalers.values())
    problems += unusable(config.notify, settings)
    if problems:
        raise ConfigError(problems)
    return Autoscaler(config, _ports(config, settings, collectors, sources, scalers), clock=clock)


def assemble_log(settings: Mapping[str, str]) -> Autoscaler:
    """One that has nothing configured: its log can be read, whatever the settings say of targets.

    Raises ConfigError for connection settings that are missing.
    """
    config = Config({}, 60.0, DEFAULT_RETENTION)
    return Autoscaler(config, _ports(config, settings, {}, [], {}), clock=clock)


def _ports(
    config: Config,
    settings: Mapping[str, str],
    collectors: Mapping[str, Collector],
    sources: Sequence[MetricSource],
    scalers: Mapping[str, Scaler],
) -> Ports:
    has_webhooks = bool(config.notify.webhooks)
    try:
        poison = QueuePoisonQueues(settings, STORAGE, queues=(*QUEUES, NOTICES) if has_webhooks else QUEUES)
        return Ports(
            collectors=collectors,
            sources=sources,
            scalers=scalers,
            states=TableStateStore(settings, STORAGE),
            log=TableDecisionLog(settings, STORAGE),
            poison=poison,
            announcer=_announcer(config, settings, poison) if has_webhooks else None,
            calls=Noting(limiter_of(settings), TableCallCounts(settings, STORAGE), _process()),
        )
    except SettingsError as error:
        raise ConfigError([Problem("app settings", str(error))]) from error
    except ValueError as error:
        raise ConfigError([Problem(f"app setting {STORAGE}", str(error))]) from error


def _process() -> str:
    """The name of this process among others of the app."""
    machine = os.environ.get("WEBSITE_INSTANCE_ID", "").strip()[:12] or platform.node()
    return f"{machine}/{os.getpid()}"


def _announcer(config: Config, settings: Mapping[str, str], poison: PoisonQueues) -> Announcer:
    from scaling.storage.documents import TableOutbox  # noqa: PLC0415 - only where a webhook is configured

    return Announcer(
        config.notify, TableOutbox(settings, STORAGE), poison, settings, sender_of(config.policies, settings)
    )


def _collectors(
    config: Config, settings: Mapping[str, str], problems: list[Problem]
) -> tuple[dict[str, Collector], list[MetricSource]]:
    """One collector per entity, whatever the number of metrics read from it."""
    collectors: dict[str, Collector] = {}
    sources: list[MetricSource] = []
    for target, policy in config.policies.items():
        for metric, spec in policy.spec.metrics.items():
            cls = registry.collector_class(spec.collector)
            params, _ = parse_params(cls.Params, spec.options)
            try:
                cls = registry.reader_class(cls, spec.count)
                many = isinstance(params, Matching) and bool(params.pattern)
                read = f"{cls.entity(params)}{MatchingCollector.entity(params) if many else ''}"
                # Most of them name their collector themselves; people read it in what the doctor says.
                entity = read if read.startswith(f"{spec.collector}:") else f"{spec.collector} {read}"
                if entity not in collectors:
                    made = MatchingCollector(cls, params, settings) if many else cls(params, settings)
                    collectors[entity] = made
            except Exception as error:  # a class of the user's own may raise anything
                problems.append(Problem(f"targets.{target}.metrics.{metric}", _words(error)))
                continue
            sources.append(MetricSource(target, metric, entity, spec.count, spec.counter, spec.fingerprint))
    return collectors, sources


def _introduce(ports: Iterable[Collector | Scaler]) -> None:
    """Introduces those to each other whose classes have a `together` of their own, or the same one: they may ask together."""
    groups: dict[Any, list[Any]] = {}
    for port in ports:
        if (together := getattr(type(port), "together", None)) is not None:
            groups.setdefault(getattr(together, "__func__", together), []).append(port)
    for group in groups.values():
        type(group[0]).together(group)


def _scalers(config: Config, settings: Mapping[str, str], problems: list[Problem]) -> dict[str, Scaler]:
    scalers: dict[str, Scaler] = {}
    for target, policy in config.policies.items():
        cls = registry.scaler_class(policy.spec.scaler)
        params, _ = parse_params(cls.Params, policy.spec.scaler_options)
        try:
            scalers[target] = cls(params, settings)
        except Exception as error:  # as above
            problems.append(Problem(f"targets.{target}", _words(error)))
    return scalers


def _words(error: Exception) -> str:
    """A ValueError is about what is written in the file; of any other, the kind says as much as the text."""
    return str(error) if isinstance(error, ValueError) else describe_error(error)


@cache
def autoscaler() -> Autoscaler:
    """The process's autoscaler: a Functions worker process hosts exactly one app. Raises ConfigError as long as it cannot be built."""
    quiet_sdks(os.environ)
    return assemble(dict(os.environ))
