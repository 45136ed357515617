"""From decorated functions to what the host runs, with every problem found before anything starts."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import azure.functions as func

from devstack.function_host.settings import HostError, parse_duration, resolve

TIMER, QUEUE, HTTP, EVENT_HUB = "timerTrigger", "queueTrigger", "httpTrigger", "eventHubTrigger"
RETURN = "$return"

_TRIGGERS = (TIMER, QUEUE, HTTP, EVENT_HUB)
_OUTPUTS = ("queue", "http")
_RESOLVED = ("schedule", "queueName", "route", "eventHubName", "consumerGroup")
# binding properties in which %SETTING% is replaced


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy of fixed delay. A count of -1 has no end."""

    count: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class IndexedFunction:
    """One function of the app, its bindings with settings resolved."""

    name: str
    call: Callable[..., Any]
    trigger: Mapping[str, Any]
    outputs: Sequence[Mapping[str, Any]]
    raw_bindings: Sequence[Mapping[str, Any]]
    """As the decorators gave them, in the app's order."""
    wants_context: bool
    disabled: bool
    retry: Retry | None = None

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.call)


def index(app: func.FunctionApp, settings: Mapping[str, str]) -> list[IndexedFunction]:
    """Index an app, once for each app object. Raises HostError naming the function and binding at fault."""
    return [_indexed(function, settings) for function in app.get_functions()]


def _indexed(function: Any, settings: Mapping[str, str]) -> IndexedFunction:
    name = str(function.get_function_name())
    raw_bindings = [json.loads(text) for text in function.get_raw_bindings()]
    bindings = [_resolved(binding, settings, name) for binding in raw_bindings]
    call = function.get_user_function()
    wants_context = _check_parameters(name, call, bindings)
    trigger = next(binding for binding in bindings if binding["type"] in _TRIGGERS)
    if trigger["type"] == EVENT_HUB and trigger.get("cardinality") != "MANY":
        raise HostError(f"function {name}: cardinality is {trigger.get('cardinality')}, accepted here: MANY")
    return IndexedFunction(
        name=name,
        call=call,
        trigger=trigger,
        outputs=[binding for binding in bindings if binding["type"] in _OUTPUTS],
        raw_bindings=raw_bindings,
        wants_context=wants_context,
        disabled=settings.get(f"AzureWebJobs.{name}.Disabled", "").lower() in {"1", "true"},
        retry=_retry(name, trigger, function.get_settings_dict("retry_policy")),
    )


def _retry(name: str, trigger: Mapping[str, Any], policy: Mapping[str, str] | None) -> Retry | None:
    if not policy:
        return None
    if trigger["type"] != EVENT_HUB or policy["strategy"] != "fixed_delay":
        raise HostError(
            f"function {name} has a retry policy, which this host cannot follow; accepted: fixed_delay of an {EVENT_HUB}"
        )
    delay = parse_duration(policy["delay_interval"], where=f"function {name}: delay_interval")
    return Retry(int(policy["max_retry_count"]), delay)


def _resolved(binding: Mapping[str, Any], settings: Mapping[str, str], name: str) -> dict[str, Any]:
    if binding["type"] not in (*_TRIGGERS, *_OUTPUTS):
        raise HostError(
            f"function {name}: binding {binding['name']} is of type {binding['type']}, "
            f"accepted here: {', '.join((*_TRIGGERS, *_OUTPUTS))}"
        )
    where = f"function {name}: binding {binding['name']}"
    texts = {key: resolve(binding[key], settings, where=where) for key in _RESOLVED if key in binding}
    return {**binding, **texts}


def _check_parameters(name: str, call: Callable[..., Any], bindings: Sequence[Mapping[str, Any]]) -> bool:
    """Hold parameters against bindings as the worker does; tell whether there is a context parameter to fill."""
    parameters = set(inspect.signature(call).parameters)
    bound = {binding["name"] for binding in bindings} - {RETURN}
    if bound - parameters:
        raise HostError(
            f"function {name} has no parameter for its binding {', '.join(sorted(bound - parameters))}"
        )
    unbound = parameters - bound - {"context"}
    if unbound:
        raise HostError(f"function {name} has no binding for its parameter {', '.join(sorted(unbound))}")
    return "context" in parameters - bound
