"""The JSON Schema of the consumer's file, from the Structs by which it is read."""

from __future__ import annotations

from typing import Any

import msgspec

from consumer.definition.hub_settings import CONNECTIONS, keys_of_settings
from consumer.formats import OPTIONS
from consumer.mapping.steps.routes import RouteOptions
from consumer.mapping.steps.table import STEPS
from consumer.sinks.types import BUILT_IN, find_sink_type
from tidemark.foundation.errors import SettingsError

Json = dict[str, Any]
_PLAIN = {"type": ["string", "number", "boolean"]}


def schema() -> Json:
    """For the types of sinks whose packages are installed. A sink of another type, such as a plug-in, may have any keys."""
    sinks = {}
    for name in BUILT_IN:
        try:
            sinks[name] = find_sink_type(name).options
        except SettingsError:  # its package is not installed
            continue
    steps = [step.options for step in STEPS.values()]
    _, parts = msgspec.json.schema_components(
        [RouteOptions, *steps, *OPTIONS.values(), *sinks.values()], ref_template="#/$defs/{name}"
    )
    parts["steps"] = {"type": "array", "items": {"anyOf": [_ref(step) for step in steps]}}
    parts["RouteOptions"]["properties"]["steps"] = {"$ref": "#/$defs/steps"}
    decoders = [
        _tagged(parts[kind.__name__], "format", name, required=name != "auto")
        for name, kind in OPTIONS.items()
    ]
    kinds = [_tagged(parts[kind.__name__], "type", name, required=True) for name, kind in sinks.items()]
    other = {"properties": {"type": {"not": {"enum": list(sinks)}}}, "required": ["type"]}
    hub = {
        **{key: {"type": "string"} for key in CONNECTIONS},
        **{
            key: {**_PLAIN, "description": f"The setting {name}."} for key, name in keys_of_settings().items()
        },
        "decode": {"anyOf": decoders},
        "steps": {"$ref": "#/$defs/steps"},
        "routes": {"type": "array", "items": _ref(RouteOptions)},
    }
    top = {
        "version": {"const": 1},
        "rate": {"type": "number", "minimum": 0},
        "hubs": {"type": "object", "additionalProperties": _object(hub, ["hub"])},
        "sinks": {"type": "object", "additionalProperties": {"type": "object", "anyOf": [*kinds, other]}},
    }
    whole = _object(top, ["version", "hubs", "sinks"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tidemark's consumer",
        **whole,
        "$defs": parts,
    }


def _ref(kind: type[msgspec.Struct]) -> Json:
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _object(properties: Json, required: list[str]) -> Json:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _tagged(options: Json, key: str, name: str, *, required: bool) -> Json:
    """The table of the options that `key` chooses by `name`."""
    needed = [*([key] if required else []), *options.get("required", ())]
    return _object({key: {"const": str(name)}, **options["properties"]}, needed)
