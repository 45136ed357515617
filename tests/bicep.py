"""Reads Bicep without its compiler: what is declared, what is used, what is called."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any


def code_of(text: str) -> str:
    """The text without comments and string literals; what is interpolated into strings stays."""
    code: list[str] = []
    depth: list[int] = []  # of braces, one entry for each interpolation we are inside of
    inside = False
    position = 0
    while position < len(text):
        rest = text[position:]
        if inside and rest.startswith("${"):
            depth.append(0)
            inside, position = False, position + 2
            code.append(" ")
            continue
        if not inside and rest.startswith("//"):
            position += rest.find("\n")
            continue
        character = text[position]
        if character == "'":
            inside = not inside
        elif not inside and depth and character == "}" and depth[-1] == 0:
            depth.pop()
            inside = True
        elif not inside:
            if depth:
                depth[-1] += {"{": 1, "}": -1}.get(character, 0)
            code.append(character)
        position += 1
    return "".join(code)


DECLARATION = re.compile(
    r"^(?:(?P<unit>param|var)|output|resource|module)\s+(?P<name>\w+)(?:\s+(?:string|int|bool|object|array))?",
    re.MULTILINE,
)
LOOP = re.compile(r"\bfor (?P<item>\w+) in (?P<items>[\w()]+):")
KEYWORDS = {"targetScope", "existing", "if", "true", "false", "null"}


def names(text: str) -> tuple[set[str], set[str], set[str]]:
    """Names declared, of these the parameters and variables, and names used."""
    code = code_of(text)
    declared = {found["name"] for found in DECLARATION.finditer(code)} | {
        found["item"] for found in LOOP.finditer(code)
    }
    units = {found["name"] for found in DECLARATION.finditer(code) if found["unit"]}
    body = LOOP.sub(r"\g<items> ", DECLARATION.sub("", code))
    used = set(re.findall(r"(?<![\w.@])([A-Za-z_]\w*)\b(?![:(])", body)) - KEYWORDS
    return declared, units, used


def walk(node: Any) -> Iterator[Any]:
    """The node of a parsed tree and everything below it."""
    yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(child)


def calls(text: str) -> set[str]:
    """Names of the functions called; decorators are not calls."""
    return set(re.findall(r"(?<![\w.@])([A-Za-z_]\w*)\(", code_of(text)))


def path_of(node: Any) -> str:
    """`a.b.c` of nested property accessors, `a[1]` of an index, `f` of a call without arguments."""
    if "function" in node:
        return str(node["function"]["type"])
    operands = node["operator"]["operands"]
    ends = (operands["operand_1"], operands["operand_2"])
    if node["operator"]["type"] == "index_accessor":
        return f"{ends[0]}[{ends[1]}]"
    return ".".join(end if isinstance(end, str) else path_of(end) for end in ends)
