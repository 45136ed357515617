"""What can only be checked of a configuration as a whole, or with the app settings beside it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from math import isfinite
from typing import Any

from msgspec import Struct

from scaling.config.policy import TARGET_CAPACITY, Policy
from scaling.rules.combine import metrics_of
from scaling.rules.request_units.within import WithinRequestUnitsRule
from scaling.target_facts import Settable, TargetFacts
from tidemark.foundation.sanitize import one_line, secret_in
from tidemark.foundation.settings_reader import Reader, Shared
from tidemark.foundation.wording import did_you_mean

CONNECTIONS = ("connection", "storage", "url_setting")
"""Options of the registered collectors and scalers that take the name of an app setting, of a connection or an address; `headers` has a table
of names of settings.
"""


class Severity(StrEnum):
    """`error`: the policy cannot work as written; `warning`: hardly meant so; `note`: good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(Struct, frozen=True):
    """One finding. `kind` names the check; `text` begins with the target's key path in tidemark.toml."""

    severity: Severity
    kind: str
    target: str
    text: str


def one_target_each(resources: Mapping[str, str], shared: Shared) -> None:
    """Two targets on one resource would undo each other's changes, each taking the other for an external change."""
    owners: dict[str, str] = {}
    for target, resource in resources.items():
        owner = owners.setdefault(resource, target)
        if owner != target:
            shared.problem(
                f"targets.{target}",
                f"scales the same resource as targets.{owner}; accepted is one target for each resource, which may "
                "have several metrics and rules",
            )


def no_circle(policies: Mapping[str, Policy], shared: Shared, targets: Collection[str]) -> None:
    """A target may follow another one's capacity, but not its own through others: it would chase itself.

    A rule that only bounds (`within_request_units`) follows nobody, so two targets in lock step are no circle.
    """
    follows: dict[str, dict[str, str]] = {}
    for name, policy in policies.items():
        others = {
            metric: str(spec.options.get("target", name))  # a missing one is a problem of its own
            for metric, spec in policy.spec.metrics.items()
            if spec.collector == TARGET_CAPACITY
        }
        _no_strangers(policy, shared, targets)
        for metric, other in others.items():
            path = f"targets.{name}.metrics.{metric}.target"
            if other not in targets:
                known = ", ".join(target for target in targets if target != name) or "none"
                shared.problem(path, f"found '{other}'; the other targets are {known}")
            elif other == name and "target" in policy.spec.metrics[metric].options:
                shared.problem(path, f"found '{name}', the target itself; use `instances` in an expression")
        voting = (rule for rule in policy.flat_rules if not isinstance(rule, WithinRequestUnitsRule))
        read = dict.fromkeys(metric for rule in voting for metric in metrics_of(rule) if metric in others)
        follows[name] = {others[metric]: metric for metric in read if others[metric] != name}
    for circle in _circles(follows):
        metric = follows[circle[0]][circle[1]]
        shared.problem(
            f"targets.{circle[0]}.metrics.{metric}.target",
            f"targets follow each other in a circle: {' -> '.join(circle)}; none could ever come to rest",
        )


def _no_strangers(policy: Policy, shared: Shared, targets: Collection[str]) -> None:
    """The targets whose instances hold messages that an age leaves out have to be there, or each read of it fails."""
    for metric, spec in policy.spec.metrics.items():
        other = spec.options.get("instances_of")
        if isinstance(other, str) and other not in targets and ":" not in spec.collector:
            path = f"targets.{policy.target}.metrics.{metric}.instances_of"
            shared.problem(path, f"found '{other}'; the targets are {', '.join(targets)}")


def _circles(follows: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """All circles, each as a path back to its beginning; two that share an edge are reported once."""
    while True:
        try:
            TopologicalSorter(follows).prepare()
        except CycleError as error:
            circle = error.args[1][:0:-1]  # from the followed to the follower, and back to the first
            begin = circle.index(next(node for node in follows if node in circle))
            path = [*circle[begin:], *circle[:begin], circle[begin]]
            yield path
            reported = set(pairwise(path))
            follows = {
                node: [follower for follower in follows[node] if (node, follower) not in reported]
                for node in follows
            }
        else:
            return


def missing_connections(reader: Reader, target: str, options: Mapping[str, Any]) -> list[Finding]:
    """Connections, and headers, without an app setting. They end what needs them, not the app, so they are findings; the value
    of a setting in place of its name is a problem.
    """
    findings: list[Finding] = []
    settings = reader.shared.settings
    headers = options.get("headers")
    named = {option: options.get(option) for option in CONNECTIONS}
    named |= (
        {f"headers.{header}": name for header, name in headers.items()}
        if isinstance(headers, Mapping)
        else {}
    )
    for option, name in named.items():
        if not isinstance(name, str) or not name or has_connection(settings, name):
            continue
        if (secret := secret_in(name)) is not None:
            text = f"found the value of an app setting, which looks like {secret}; accepted is the setting's name"
            reader.problem(option, f"{text}, without the % signs")
            continue
        hint = did_you_mean(name, {key.partition("__")[0] for key in settings})
        where = reader.shared.where(f"{reader.path}.{option}")
        text = f"{where}: there is no app setting '{name}', nor any that begins with '{name}__'"
        text += f"; {hint}" if hint else ""
        text = f"{where}: the app setting '{name}' is empty" if name in settings else text
        findings.append(Finding(Severity.ERROR, "no_connection", target, one_line(text)))
    return findings


def refused_addresses(reader: Reader, target: str, params: Any) -> list[Finding]:
    """Addresses that no read would call, by the app settings. They end the metric, not the app, so they are findings."""
    refused = getattr(params, "refused", None)
    problems = {} if refused is None else refused(reader.shared.settings)
    return [
        Finding(
            Severity.ERROR,
            "refused_address",
            target,
            one_line(f"{reader.shared.where(f'{reader.path}.{option}')}: {text}"),
        )
        for option, text in problems.items()
    ]


def check_counter(reader: Reader, count: str, options: Mapping[str, Any], growing: Collection[str]) -> None:
    """Notes what cannot be a counter: a number that only grows, and has a value whenever it is read."""
    if count not in ("value", *growing):
        text = f"found true for the count '{count}', which also falls; accepted for numbers that only grow"
        reader.problem("counter", text)
    if (aggregation := options.get("aggregation")) in {"total", "count"}:
        text = f"found true with aggregation = '{aggregation}', which is the increase of each grain already; leave it out"
        reader.problem("counter", text)
    if "empty" in options:
        text = "found a number for no value, beside counter = true: it would look as if the count began anew; leave it out"
        reader.problem("empty", text)


def check_every(reader: Reader, every: float, interval: float) -> None:
    """Notes a time between two reads that is no number of collections: then samples would come at another pace than the window expects,
    and look like gaps, in which nothing is scaled in.
    """
    if every > interval and abs(every / interval - round(every / interval)) > 1e-6:
        text = f"found {every:g} s; accepted are multiples of the {interval:g} s between two collections (COLLECT_SCHEDULE, or the target's interval)"
        reader.problem("every", text)


def facts_of(scaler: type[Any], params: Any) -> TargetFacts:
    """The facts of a scaler's kind of target; by default it counts instances."""
    facts_from = getattr(scaler, "facts", None)
    try:
        facts = TargetFacts() if facts_from is None or params is None else facts_from(params)
    except Exception:  # a class of the user's own may raise anything; it is words and steps only
        return TargetFacts()
    return facts if isinstance(facts, TargetFacts) else TargetFacts()


def check_settable(reader: Reader, settable: Settable, minimum: int, maximum: int) -> None:
    """Bounds that no value lies between could never be kept."""
    if minimum <= maximum and settable.down(maximum) < minimum:
        reader.problem(
            "maximum",
            f"between minimum {minimum} and {maximum} lies no value that can be set: {settable.words}",
        )


def has_connection(settings: Mapping[str, str], name: str) -> bool:
    """Whether an app setting of that name, or one of its identity family (`name__...`), has a value."""
    prefix = f"{name}__".casefold()
    return bool(settings.get(name, "").strip()) or any(
        key.replace(":", "__").casefold().startswith(prefix) and value.strip()
        for key, value in settings.items()
    )


def number(low: float, high: float) -> Callable[[Any], float]:
    """A converter for numbers from `low` to `high`."""

    def convert(value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"found {value!r}; accepted are numbers from {low:g} to {high:g}")
        return float(value)

    return convert


def positive(value: Any) -> float:
    """A converter for numbers above 0; one from an app setting is a text."""
    try:
        amount = float("" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        amount = 0.0
    if not (amount > 0 and isfinite(amount)):
        raise ValueError(f"found {value!r}; accepted are numbers above 0")
    return amount
