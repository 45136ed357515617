"""Bicep's functions, as far as infra/ calls them.

Hashes (`uniqueString`, `guid`) have the form of the real ones, not their values.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import ipaddress
import json
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
    if isinstance(value, str | int):
        return str(value)
    return json.dumps(value, separators=(",", ":"))


def contains(whole: Any, part: Any) -> bool:
    if isinstance(whole, dict):
        return str(part).lower() in {key.lower() for key in whole}
    return part in whole


def fail(message: str) -> None:
    raise ValueError(message)


def cidr_subnet(network: str, size: int, index: int) -> str:
    return str(list(ipaddress.ip_network(network).subnets(new_prefix=size))[index])


FUNCTIONS: dict[str, Function] = {
    "any": lambda value: value,
    "cidrSubnet": cidr_subnet,
    "concat": lambda *given: (
        "".join(given) if isinstance(given[0], str) else [item for each in given for item in each]
    ),
    "contains": contains,
    "empty": lambda value: value is None or len(value) == 0,
    "environment": lambda: ENVIRONMENT,
    "fail": fail,
    "filter": lambda items, test: [item for item in items if test(item)],
    "flatten": lambda items: [item for each in items for item in each],
    "guid": guid,
    "int": int,
    "items": lambda given: [{"key": key, "value": given[key]} for key in sorted(given)],
    "join": lambda items, between: between.join(items),
    "last": lambda items: items[-1] if items else None,
    "map": lambda items, change: [change(item) for item in items],
    "max": max,
    "range": lambda start, count: list(range(start, start + count)),
    "reduce": lambda items, start, step: functools.reduce(step, items, start),
    "replace": str.replace,
    "skip": lambda whole, number: whole[number:],
    "split": lambda text, mark: text.split(mark),
    "string": text_of,
    "take": lambda whole, number: whole[: max(number, 0)],
    "toLower": str.lower,
    "toObject": to_object,
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

    return {
        **FUNCTIONS,
        "loadTextContent": lambda path, *_: (folder / path).read_text(encoding="utf-8"),
        "resourceGroup": resource_group,
        "resourceId": lambda kind, *names: f"{scope.id}/providers/{typed(kind, names)}",
        "subscription": lambda: Scope(scope.subscription).document(),
        "subscriptionResourceId": lambda kind, *names: (
            f"/subscriptions/{scope.subscription}/providers/{typed(kind, names)}"
        ),
    }


def typed(kind: str, names: tuple[str, ...] | list[str]) -> str:
    """`Microsoft.Web/sites/x/config/y` of a type and a name for each of its segments. Raises ValueError for a wrong number."""
    provider, *segments = kind.split("/")
    if len(segments) != len(names):
        raise ValueError(f"{kind} takes {len(segments)} names, found {list(names)}")
    return "/".join([provider, *(f"{segment}/{name}" for segment, name in zip(segments, names, strict=True))])
