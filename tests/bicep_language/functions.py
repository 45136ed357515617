"""Bicep's functions, as far as infra/ calls them.

Hashes (`uniqueString`, `guid`) have the form of the real ones, not their values.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import ipaddress
import json
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bicep_language.scopes import Scope

Function = Callable[..., Any]
SUFFIXES = {"storage": "core.windows.net", "sqlServerHostname": ".database.windows.net"}
ENVIRONMENT = {
    "name": "AzureCloud",
    "resourceManager": "https://management.azure.com/",
    "suffixes": SUFFIXES,
    "authentication": {"loginEndpoint": "https://login.microsoftonline.com/"},
}


def union(*given: Any) -> Any:
    """Of objects, of which later ones win and nested ones are united; of arrays, each value once."""
    if all(isinstance(each, list) for each in given):
        found: list[Any] = []
        found.extend(item for each in given for item in each if item not in found)
        return [item for index, item in enumerate(found) if item not in found[:index]]
    if not all(isinstance(each, dict) for each in given):
        raise TypeError(f"union of {[type(each).__name__ for each in given]}: all objects, or all arrays")
    merged: dict[str, Any] = {}
    for each in given:
        for key, value in each.items():
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = union(merged[key], value) if both else value
    return merged


def to_object(items: list[Any], key: Function, value: Function | None = None) -> dict[str, Any]:
    return {key(item): item if value is None else value(item) for item in items}


def unique_string(*given: str) -> str:
    """Thirteen characters of a to z and 2 to 7, as the real one gives."""
    digest = hashlib.sha256("-".join(given).encode()).digest()
    return base64.b32encode(digest).decode().lower()[:13]


def guid(*given: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "-".join(given)))


def text_of(value: Any) -> str:
    """What an interpolation gives. Raises TypeError for what has no text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, str | int):
        return str(value)
    return json.dumps(value, separators=(",", ":"))


def text_format(template: str, *given: Any) -> str:
    return re.sub(r"\{(\d+)\}", lambda found: text_of(given[int(found.group(1))]), template)


def contains(whole: Any, part: Any) -> bool:
    if isinstance(whole, dict):
        return str(part).lower() in {key.lower() for key in whole}
    return part in whole


def fail(message: str) -> None:
    raise ValueError(message)


def cidr_subnet(network: str, size: int, index: int) -> str:
    return str(list(ipaddress.ip_network(network).subnets(new_prefix=size))[index])


def take(whole: Any, number: int) -> Any:
    return whole[: max(number, 0)]


def replaced(text: str, old: str, new: str) -> str:
    return text.replace(old, new)


FUNCTIONS: dict[str, Function] = {
    "any": lambda value: value,
    "array": lambda value: value if isinstance(value, list) else [value],
    "bool": lambda value: str(value).lower() in {"true", "1"},
    "cidrSubnet": cidr_subnet,
    "concat": lambda *given: (
        "".join(given) if isinstance(given[0], str) else [item for each in given for item in each]
    ),
    "contains": contains,
    "empty": lambda value: value is None or len(value) == 0,
    "endsWith": lambda text, end: text.lower().endswith(end.lower()),
    "environment": lambda: ENVIRONMENT,
    "fail": fail,
    "filter": lambda items, test: [item for item in items if test(item)],
    "first": lambda items: items[0] if items else None,
    "flatten": lambda items: [item for each in items for item in each],
    "format": text_format,
    "guid": guid,
    "indexOf": lambda text, part: text.lower().find(part.lower()),
    "int": int,
    "intersection": lambda one, other: [item for item in one if item in other],
    "items": lambda given: [{"key": key, "value": given[key]} for key in sorted(given)],
    "join": lambda items, between: between.join(items),
    "json": json.loads,
    "last": lambda items: items[-1] if items else None,
    "length": len,
    "map": lambda items, change: [change(item) for item in items],
    "max": max,
    "min": min,
    "objectKeys": sorted,
    "padLeft": lambda text, width, fill=" ": str(text).rjust(width, fill),
    "range": lambda start, count: list(range(start, start + count)),
    "reduce": lambda items, start, step: functools.reduce(step, items, start),
    "replace": replaced,
    "skip": lambda whole, number: whole[number:],
    "split": lambda text, mark: text.split(mark),
    "startsWith": lambda text, start: text.lower().startswith(start.lower()),
    "string": text_of,
    "substring": lambda text, start, length=None: text[start : None if length is None else start + length],
    "take": take,
    "toLower": str.lower,
    "toObject": to_object,
    "toUpper": str.upper,
    "trim": str.strip,
    "union": union,
    "uniqueString": unique_string,
}


def functions_in(scope: Scope, folder: Path) -> dict[str, Function]:
    """Those of the table, and those that depend on where the template is and what it is deployed to."""

    def resource_group(*given: str) -> Any:
        if not given:
            return scope.document()
        subscription, name = given if len(given) == 2 else (scope.subscription, given[0])
        return Scope(subscription, name).document()

    def load(path: str, *_encoding: str) -> str:
        return (folder / path).read_text(encoding="utf-8")

    return {
        **FUNCTIONS,
        "deployment": lambda: {"name": "main"},
        "extensionResourceId": lambda owner, kind, *names: f"{owner}/providers/{typed(kind, names)}",
        "loadJsonContent": lambda path: json.loads(load(path)),
        "loadTextContent": load,
        "resourceGroup": resource_group,
        "resourceId": lambda kind, *names: f"{scope.id}/providers/{typed(kind, names)}",
        "subscription": lambda: Scope(scope.subscription).document(),
        "subscriptionResourceId": lambda kind, *names: (
            f"/subscriptions/{scope.subscription}/providers/{typed(kind, names)}"
        ),
        "tenant": lambda: {"tenantId": "99999999-0000-0000-0000-000000000000"},
    }


def typed(kind: str, names: tuple[str, ...] | list[str]) -> str:
    """`Microsoft.Web/sites/x/config/y` of a type and a name for each of its segments. Raises ValueError for a wrong number."""
    provider, *segments = kind.split("/")
    if len(segments) != len(names):
        raise ValueError(f"{kind} takes {len(segments)} names, found {list(names)}")
    return "/".join([provider, *(f"{segment}/{name}" for segment, name in zip(segments, names, strict=True))])
