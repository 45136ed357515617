"""The JSON Schema of tidemark.toml, for editors. It is recorded from the reader of the file: a key that the reader asks for is a
property, with the types that its converter accepts. Options of rules, collectors and scalers are those of their `Params`. Pure.

Limits that depend on other keys are the reader's alone (`tidemark lint`), and no key is required that `[defaults]` may give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from scaling.config.notify_table import read_notify
from scaling.config.rule_registry import RULES
from scaling.config.target_table import PlugIns, TargetTable
from scaling.schedules.timetable import timetable
from tidemark.foundation.settings_reader import Options, Reader, Shared

_T = TypeVar("_T")
Json = dict[str, Any]

_PROBES: Mapping[str, tuple[Any, ...]] = {
    "boolean": (True, False),
    "integer": (1, 2, 50),
    "number": (0.5,),
    "string": ("5m", "1", "a", "A_B", "1%", "UTC"),
    "array": (["*"], ["scaled"]),
    "object": ({"X-Name": "A_B"},),
}
"""Values by which a converter shows what types it accepts."""

_NAMES = "*"  # stands for every name, where a table has tables by names of the user
_OWN = {"pattern": ":"}  # `module:Class` of the user


class _Ignored(Shared):
    """Takes no problems: nothing is in the table that is recorded."""

    def problem(self, path: str, text: str) -> None:
        pass


class _Recorder(Reader):
    """A reader of a table with nothing in it, which notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__({}, "", _Ignored("", {}, {}))
        self.asked: dict[str, Json | _Recorder] = {}
        self.required: list[str] = []

    def has(self, key: str) -> bool:
        return bool(key)

    def take(self, key: str, default: _T, convert: Callable[[Any], _T]) -> _T:
        self.asked[key] = _types_of(convert)
        return default

    def require(self, key: str, default: _T, convert: Callable[[Any], _T]) -> _T:
        self.required.append(key)
        return self.take(key, default, convert)

    def table(self, key: str, *, defaults: Reader | None = None) -> Reader | None:
        del defaults
        inner = self.asked[key] = _Recorder()
        return inner

    def apart(self, key: str, inherited: Iterable[str]) -> Reader | None:
        del inherited
        return self.table(key)

    def tables(self, key: str) -> list[Reader]:
        inner = _Recorder()
        self.asked[key] = {"type": "array", "items": inner}
        return [inner]

    def names(self) -> tuple[str, ...]:
        return (_NAMES,)

    def options(self) -> Options:
        return Options({}, {})

    def schema(self, *, loose: bool = False) -> Json:
        """`loose`: a key that is missing may come from another table."""
        properties = {key: _plain(asked, loose=loose) for key, asked in self.asked.items()}
        if _NAMES in properties:
            return {"type": "object", "additionalProperties": properties[_NAMES]}
        return _object(properties, [] if loose else self.required)


def _plain(asked: Json | _Recorder, *, loose: bool) -> Json:
    if isinstance(asked, _Recorder):
        return asked.schema(loose=loose)
    items = asked.get("items")
    return {**asked, "items": items.schema()} if isinstance(items, _Recorder) else asked


def _object(properties: Json, required: Iterable[str] = ()) -> Json:
    described: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**described, "required": sorted(required)} if required else described


def _types_of(convert: Callable[[Any], Any]) -> Json:
    if isinstance(convert, partial) and convert.func.__name__ == "_one_of":
        return {"enum": list(convert.args[0])}
    accepted = [kind for kind, values in _PROBES.items() if any(_accepts(convert, value) for value in values)]
    if accepted == ["string"] and _accepts(convert, "5m") and not _accepts(convert, "a"):
        zero: Json = {"type": ["string", "integer"], "minimum": 0, "maximum": 0}  # the limits are for numbers
        return {**(zero if _accepts(convert, 0) else {"type": "string"}), "examples": ["5m"]}
    return {"type": accepted[0] if len(accepted) == 1 else accepted}


def _accepts(convert: Callable[[Any], Any], value: Any) -> bool:
    try:
        convert(value)
    except (ValueError, TypeError):
        return False
    return True


def schema(plug_ins: PlugIns, collectors: Iterable[str], scalers: Iterable[str]) -> Json:
    """The schema, in draft 7."""
    target = _Recorder()
    TargetTable(target, _NAMES, timetable("0 * * * * *", "UTC"), plug_ins).read()
    target.asked["changes_per_hour"] = {"type": ["integer", "string"]}
    definitions: Json = {}
    rules = _by_kind("type", {name: RULES[name].Params for name in RULES}, ("name",), definitions)
    metrics = _recorded_metric(target)
    of_target = target.schema(loose=True)
    shadow = of_target["properties"]["shadow"]["properties"]
    of_target["properties"]["rules"]["items"] = shadow["rules"]["items"] = {"$ref": "#/definitions/rule"}
    params = {name: plug_ins.collector_class(name).Params for name in collectors}
    metric = _by_kind("collector", params, (), definitions, metrics.schema(loose=True)["properties"])
    of_target["properties"]["metrics"] = {
        "type": "object",
        "additionalProperties": {"$ref": "#/definitions/metric"},
    }
    shared = [key for key, value in of_target["properties"].items() if "properties" in value]
    definitions |= {"rule": rules, "metric": metric, **{key: of_target["properties"][key] for key in shared}}
    of_target["properties"] |= {key: {"$ref": f"#/definitions/{key}"} for key in shared}
    params = {name: plug_ins.scaler_class(name).Params for name in scalers}
    whole = _by_kind("scaler", params, (), definitions, of_target["properties"], loose=True)
    notify = _Recorder()
    read_notify(notify)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "tidemark.toml",
        **_object(
            {
                "version": {"const": 1},
                "defaults": {"type": "object"},
                "targets": {"type": "object", "additionalProperties": whole},
                "notify": notify.schema(),
            },
            ["targets"],
        ),
        "definitions": definitions,
    }


def _recorded_metric(target: _Recorder) -> _Recorder:
    metrics = target.asked["metrics"]
    assert isinstance(metrics, _Recorder)
    metric = metrics.asked[_NAMES]
    assert isinstance(metric, _Recorder)
    return metric


def _by_kind(
    key: str,
    params: Mapping[str, Any],
    texts: Iterable[str],
    definitions: Json,
    beside: Json | None = None,
    *,
    loose: bool = False,
) -> Json:
    """A table whose options depend on the kind that `key` names; a kind of the user's own has any."""
    common = {**(beside or {}), **{name: {"type": "string"} for name in texts}}
    kinds: list[Json] = []
    for name, struct in params.items():
        (reference,), parts = msgspec.json.schema_components(
            [struct], ref_template="#/definitions/" + key + "." + name + ".{name}"
        )
        title = reference["$ref"].rpartition(".")[2]
        fields = parts.pop(title)
        definitions.update({f"{key}.{name}.{part}": value for part, value in parts.items()})
        required = [] if loose else [key, *fields.get("required", ())]
        table = _object({**common, **fields["properties"], key: {"const": name}}, required)
        kinds.append({**table, "description": fields.get("description", "")})
    kinds.append(
        {"type": "object", "properties": {**common, key: {"type": "string", **_OWN}}, "required": [key]}
    )
    if loose:  # the kind may come from [defaults]: nothing is known then
        kinds.append({"type": "object", "not": {"required": [key]}})
    return {"anyOf": kinds}
