"""Writes tests/data/azure_resource_types.json: what Azure's published types say of the resources in infra/.

    git clone --filter=blob:none https://github.com/Azure/bicep-types-az
    python -m tests.data.make_azure_types bicep-types-az [commit]

Which types and versions is read from the templates, so that a new one in infra/ takes a run of this and no more. The commit
(default HEAD) stands in what is written. See tests/support/infra/azure_types.py for what the table means.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.infra.azure_types import TABLE
from tests.support.infra.templates import EXAMPLES, TEMPLATES

REQUIRED, READ_ONLY = 1, 2
PLAIN = {"StringType": "string", "IntegerType": "int", "BooleanType": "bool", "AnyType": "any"}
Node = dict[str, Any]


class Checkout:
    """A checkout of Azure/bicep-types-az at one commit; a bare one does."""

    def __init__(self, folder: Path, commit: str) -> None:
        self._folder = folder
        self.commit, self.day = self._git("show", "-s", "--format=%H %cs", commit).split()
        listed = self._git("ls-tree", "-r", "--name-only", self.commit, "generated/").splitlines()
        self._paths = [path for path in listed if path.endswith("/types.json")]

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self._folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def holding(self, provider: str, version: str) -> Iterator[list[Node]]:
        """The files of a provider and version; there are several where teams share a provider."""
        for path in self._paths:
            if path.lower().endswith(f"/{provider}/{version}/types.json"):
                yield json.loads(self._git("show", f"{self.commit}:{path}"))


class Table:
    """Shapes by name; a name that was given to another object already gets a number."""

    def __init__(self) -> None:
        self.shapes: dict[str, Node] = {}
        self._named: dict[tuple[int, int], str] = {}

    def kind(self, nodes: list[Node], reference: Node, place: str) -> str:
        """The kind of what `reference` points to, with all shapes below it; `place` begins their names."""
        index = int(reference["$ref"].removeprefix("#/"))
        node = nodes[index]
        match node["$type"]:
            case "StringLiteralType":
                return f"one of {node['value']}"
            case "UnionType":
                return self._union([self.kind(nodes, each, place) for each in node["elements"]])
            case "ArrayType":
                return f"list of {self.kind(nodes, node['itemType'], place)}"
            case "ObjectType" | "DiscriminatedObjectType":
                return self._shape(nodes, index, place)
            case plain:
                return PLAIN[plain]

    @staticmethod
    def _union(kinds: list[str]) -> str:
        """Beside a string, literals are the values that were known when the type was published: we use no others."""
        literals = [kind.removeprefix("one of ") for kind in kinds if kind.startswith("one of ")]
        if literals:
            return f"one of {'|'.join(literals)}"
        return kinds[0] if len(set(kinds)) == 1 else "any"

    def _shape(self, nodes: list[Node], index: int, place: str) -> str:
        key = id(nodes), index
        if key in self._named:
            return self._named[key]
        node = nodes[index]
        name = self._named[key] = self._free(f"{place}/{node['name']}")
        shape = self.shapes[name] = {}
        if "discriminator" in node:
            shape["?by"] = node["discriminator"]
        properties = node.get("baseProperties" if "discriminator" in node else "properties", {})
        for each, told in properties.items():
            if not told["flags"] & READ_ONLY:
                needed = "!" if told["flags"] & REQUIRED else ""
                shape[each] = self.kind(nodes, told["type"], place) + needed
        if others := node.get("additionalProperties"):
            shape["*"] = self.kind(nodes, others, place)
        if "discriminator" in node:
            chosen = node["elements"].items()
            shape["?of"] = {value: self.kind(nodes, each, place) for value, each in chosen}
        return name

    def _free(self, name: str) -> str:
        number = 2
        found = name
        while found in self.shapes:
            found, number = f"{name} ({number})", number + 1
        return found


def used() -> list[str]:
    """Type and version of every resource in infra/ and of the examples, those that are there already too."""
    templates = (*TEMPLATES.values(), *EXAMPLES.values())
    resources = (each for template in templates for each in template.resources.values())
    return sorted({f"{each.type}@{each.api_version}" for each in resources})


def made(checkout: Checkout, wanted: list[str]) -> Node:
    """The table. Raises SystemExit naming a type that was not published."""
    table, types = Table(), {}
    files: dict[tuple[str, str], list[list[Node]]] = {}
    for name in wanted:
        provider, _, rest = name.lower().partition("/")
        version = rest.rpartition("@")[2]
        found = files.setdefault((provider, version), [*checkout.holding(provider, version)])
        for nodes in found:
            bodies = [
                n["body"] for n in nodes if n["$type"] == "ResourceType" and n["name"].lower() == name.lower()
            ]
            if bodies:
                place = f"{provider.removeprefix('microsoft.')}/{version}"
                types[name] = table.kind(nodes, bodies[0], place)
                break
        else:
            raise SystemExit(f"{name} is not published in commit {checkout.commit}")
    source = f"github.com/Azure/bicep-types-az, commit {checkout.commit} of {checkout.day} (MIT licence); read-only properties are left out"
    return {"source": source, "types": types, "shapes": dict(sorted(table.shapes.items()))}


def text_of(table: Node) -> str:
    """A line for each type and shape, so that differences can be read."""
    blocks = []
    for name, value in table.items():
        if isinstance(value, str):
            blocks.append(f" {json.dumps(name)}: {json.dumps(value)}")
            continue
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in value.items())
        blocks.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


if __name__ == "__main__":
    if len(sys.argv) not in {2, 3}:
        raise SystemExit(__doc__)
    made_from = Checkout(Path(sys.argv[1]), *(sys.argv[2:] or ["HEAD"]))
    TABLE.write_text(text_of(made(made_from, used())), encoding="utf-8")
