"""Whether a resource is one that Azure's published types know: its properties, their types, their values.

tests/data/azure_resource_types.json has what these types say of the resources in infra/: `types` names a shape for each type
and version, `shapes` the properties of each that may be written. A kind is `string`, `int`, `bool`, `any`, `one of a|b`,
`list of <kind>` or the name of a shape, with `!` where the property is required. In a shape `*` is the kind of all other
properties, `?by` the property that decides between the shapes of `?of`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[2] / "data" / "azure_resource_types.json"
PLAIN: dict[str, type] = {"string": str, "int": int, "bool": bool}
Shape = dict[str, Any]


@functools.cache
def table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return found


def problems(kind: str, version: str, name: str, body: dict[str, Any]) -> list[str]:
    """What is wrong with a resource, each with its place; `name` is the last segment of its name."""
    types = table()["types"]
    if f"{kind}@{version}" not in types:
        versions = [known for known in types if known.lower().startswith(f"{kind}@".lower())]
        return [f"{kind}@{version} is not in {TABLE.name}; of this type there are {versions}"]
    return list(_against(types[f"{kind}@{version}"], {"name": name, **body}, kind))


def _against(kind: str, value: Any, place: str) -> Iterator[str]:
    kind = kind.removesuffix("!")
    if kind == "any":
        return
    if kind.startswith("one of "):
        accepted = kind.removeprefix("one of ").split("|")
        if value not in accepted:
            yield f"{place} is {value!r}, accepted: {accepted}"
    elif kind.startswith("list of "):
        if not isinstance(value, list):
            yield f"{place} is {value!r}, a list is accepted"
            return
        for index, item in enumerate(value):
            yield from _against(kind.removeprefix("list of "), item, f"{place}[{index}]")
    elif kind in PLAIN:
        wanted = PLAIN[kind]
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            yield f"{place} is {value!r}, {kind} is accepted"
    elif isinstance(value, dict):
        yield from _members(table()["shapes"][kind], value, place)
    else:
        yield f"{place} is {value!r}, an object is accepted"


def _members(shape: Shape, value: dict[str, Any], place: str) -> Iterator[str]:
    known = {name: kind for name, kind in shape.items() if not name.startswith("?")}
    others = known.pop("*", None)
    if "?by" in shape:
        chosen = shape["?of"].get(value.get(shape["?by"]))
        if chosen is None:
            yield f"{place}.{shape['?by']} is {value.get(shape['?by'])!r}, accepted: {sorted(shape['?of'])}"
            return
        known |= table()["shapes"][chosen]
        others = known.pop("*", others)
    for name, kind in known.items():
        if name in value:
            yield from _against(kind, value[name], f"{place}.{name}")
        elif kind.endswith("!"):
            yield f"{place}.{name} is missing"
    for name in value.keys() - known.keys():
        if others is None:
            yield f"{place}.{name} is unknown, accepted: {sorted(known)}"
        else:
            yield from _against(others, value[name], f"{place}.{name}")
