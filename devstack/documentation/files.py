"""The pages on tidemark.toml and on the consumer's file, key by key, from the schemas that the readers give."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import structs

from consumer.definition.schema import schema as consumer_schema
from devstack.documentation.schema_tables import Json, first_paragraph, table
from scaling.config import policy
from scaling.config.limits_table import DEFAULT_COOLDOWN
from scaling.config.metric_window import DEFAULT_WINDOW
from scaling.config.notify_table import HELD_AFTER, MISSING_AFTER
from scaling.config.target_table import DEFAULT_ACTION_TTL
from scaling.service import registry
from tidemark.commands.schema import schema as policy_schema

HOW = "`make reference` writes this page from the code."


def _defaults(kind: type) -> dict[str, object]:
    return {field.name: field.default for field in structs.fields(kind) if not field.required}


_PACE = {**_defaults(policy.Pace), "cooldown": DEFAULT_COOLDOWN}
_TABLES: dict[str, tuple[str, dict[str, object]]] = {
    "out": ("Limits of scaling out. A rule that learns has no cooldown by default.", _PACE),
    "in": ("Limits of scaling in. A rule that learns has no cooldown by default.", _PACE),
    "plateau": ("When more instances do not help.", _defaults(policy.Plateau)),
    "fallback": ("What is done when metrics are missing for long.", _defaults(policy.Fallback)),
    "drain": ("Asking workers before a scale-in.", _defaults(policy.DrainSpec)),
    "budget": ("A limit of a day.", _defaults(policy.Budget)),
    "shadow": (
        "A second set of rules, simulated beside the first; keys that it lacks are those of the target.",
        {},
    ),
}
_TARGET = {**_defaults(policy.PolicySpec), "minimum": 1, "action_ttl": DEFAULT_ACTION_TTL}
_METRIC = {**_defaults(policy.MetricSpec), "window": DEFAULT_WINDOW}


def tidemark_toml() -> str:
    """docs/reference/tidemark-toml.md."""
    whole = policy_schema(registry, registry.COLLECTORS, registry.SCALERS)
    definitions = whole["definitions"]
    target = whole["properties"]["targets"]["additionalProperties"]
    lines = [
        "# tidemark.toml, key by key",
        "",
        "Here you look up what a key accepts, and what holds without it. [Policies](../policies.md) explains what the keys mean.",
        "",
        f"{HOW} A text may be `%NAME%`, the value of the app setting NAME, also in place of a number. Durations are texts such as `90s`,",
        "`10m`, `1h30m`.",
        "",
        *("## The file", ""),
        *table(whole["properties"], whole["required"], definitions),
        "`[defaults]` has keys and tables of a target, for all targets; what a target says itself wins.",
        "",
        *_by_kind("## `[targets.NAME]`", target, "scaler", definitions, ("maximum",), _TARGET),
        *_by_kind(
            "## `[targets.NAME.metrics.METRIC]`", definitions["metric"], "collector", definitions, (), _METRIC
        ),
        *_by_kind("## `[[targets.NAME.rules]]`", definitions["rule"], "type", definitions, (), {}),
        *_parts(definitions),
        "## Tables of a target",
        "",
    ]
    for name, (lead, defaults) in _TABLES.items():
        definition = definitions[name]
        lines += [f"### `[targets.NAME.{name}]`", "", lead, ""]
        lines += table(
            definition["properties"], definition.get("required", ()), definitions, defaults=defaults
        )
    return "\n".join([*lines, *_notify(whole["properties"]["notify"], definitions)]).rstrip() + "\n"


def _notify(notify: Json, definitions: Json) -> list[str]:
    times = {"held_after": HELD_AFTER, "missing_after": MISSING_AFTER}
    webhook = notify["properties"]["webhooks"]["additionalProperties"]
    return [
        *("## `[notify]`", "", "[Notifications](../notifications.md) explains them.", ""),
        *table(notify["properties"], (), definitions, defaults=times),
        *("### `[notify.webhooks.NAME]`", ""),
        *table(webhook["properties"], webhook["required"], definitions),
    ]


def _by_kind(
    title: str,
    either: Json,
    key: str,
    definitions: Json,
    required: Collection[str],
    defaults: Mapping[str, object],
) -> list[str]:
    """The keys of all kinds, and below them for each kind what it says of itself, and its own keys."""
    kinds = _kinds(either, key)
    shared = _common(kinds, key)
    lines = [title, "", *table(shared, [key, *required], definitions, defaults=defaults)]
    for name, kind in kinds.items():
        rows = table(kind["properties"], kind.get("required", ()), definitions, without=shared)
        lines += [
            f'### `{key} = "{name}"`',
            "",
            *first_paragraph(kind),
            *(rows or ["It has no further keys.", ""]),
        ]
    return lines


def _kinds(either: Json, key: str) -> dict[str, Json]:
    """The tables of a schema by the kind that `key` names, without those of the user's own."""
    tables = [table for table in either["anyOf"] if "const" in table.get("properties", {}).get(key, {})]
    return {table["properties"][key]["const"]: table for table in tables}


def _common(kinds: Mapping[str, Json], key: str) -> dict[str, Any]:
    first, *others = kinds.values()
    shared = set(first["properties"]).intersection(*(other["properties"] for other in others))
    properties = {name: value for name, value in first["properties"].items() if name in shared}
    return {**properties, key: {"enum": [*kinds, "module:Class"]}}


def _parts(definitions: Json) -> list[str]:
    """Tables within rules, such as the periods of a schedule."""
    lines = []
    for name, part in definitions.items():
        if name.startswith(("type.", "collector.", "scaler.")) and "properties" in part:
            lines += [
                f"### `{name.rpartition('.')[2]}` of `{name.split('.')[1]}`",
                "",
                *first_paragraph(part),
            ]
            lines += table(part["properties"], part.get("required", ()), definitions)
    return lines


def consumer_file() -> str:
    """docs/reference/consumer-file.md."""
    whole = consumer_schema()
    parts = whole["$defs"]
    hub = whole["properties"]["hubs"]["additionalProperties"]
    route = parts["RouteOptions"]
    lines = [
        "# The consumer's file, key by key",
        "",
        "Here you look up what a key accepts, and what holds without it. [Routes](../routes.md) explains the file.",
        "",
        HOW,
        "",
        *("## The file", ""),
        *table(whole["properties"], whole["required"], parts),
        *("## `[hubs.NAME]`", ""),
        *_hub(hub, parts),
        *("## `[[hubs.NAME.routes]]`", ""),
        *table(route["properties"], route.get("required", ()), parts),
        *("## Steps", "", "One of these keys makes a step; [routes](../routes.md) has examples.", ""),
    ]
    for step in parts["steps"]["items"]["anyOf"]:
        part = parts[step["$ref"].rpartition("/")[2]]
        lines += [f"### `{next(iter(part['properties']))}`", "", *first_paragraph(part)]
        lines += table(part["properties"], part.get("required", ()), parts)
    sinks = whole["properties"]["sinks"]["additionalProperties"]
    lines += ["## `decode`", "", *_chosen(hub["properties"]["decode"], "format", parts)]
    lines += ["## `[sinks.NAME]`", "", *_chosen(sinks, "type", parts)]
    return "\n".join(lines).rstrip() + "\n"


def _hub(hub: Json, parts: Json) -> list[str]:
    """Its own keys, and those that are settings for this hub alone."""
    settings = {
        key: value["description"] for key, value in hub["properties"].items() if "description" in value
    }
    names = {key: text.removeprefix("The setting ").rstrip(".") for key, text in settings.items()}
    return [
        *table(hub["properties"], hub["required"], parts, without=settings),
        "These keys are [settings](../settings.md#settings-of-the-consumer) for this hub alone, with the same values:",
        *("", "| key | setting |", "|---|---|"),
        *(f"| `{key}` | `{name}` |" for key, name in names.items()),
        "",
    ]


def _chosen(either: Json, key: str, parts: Json) -> list[str]:
    lines = []
    for name, kind in _kinds(either, key).items():
        rows = table(kind["properties"], kind["required"], parts, without=[key])
        lines += [f'### `{key} = "{name}"`', "", *(rows or ["It has no further keys.", ""])]
    return lines
