"""Tables of keys from a JSON Schema: key, what is accepted, default."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tidemark.foundation.wording import duration_text

Json = Mapping[str, Any]

_WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "array": "list",
    "object": "table",
}


def accepted(schema: Json, definitions: Json) -> str:
    """What a value may be, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        definition = definitions[name]
        own_name = (
            "." in name and definition.get("type") == "object"
        )  # described below, such as the periods of a schedule
        return f"`{name.rpartition('.')[2]}`" if own_name else accepted(definition, definitions)
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value)
    if "anyOf" in schema:
        texts = [accepted(part, definitions) for part in schema["anyOf"] if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(texts))
    kinds = schema.get("type", "")
    if "examples" in schema:
        return f"duration such as `{schema['examples'][0]}`{' or `0`' if 'maximum' in schema else ''}"
    if isinstance(kinds, list):
        # A number may be a text, too: of an app setting, which %NAME% stands for.
        return "number" if "number" in kinds else _WORDS[next(kind for kind in kinds if kind != "null")]
    if kinds == "array" and "items" in schema and "anyOf" not in schema["items"]:
        inner = accepted(schema["items"], definitions)
        return f"list of {inner}" if inner.startswith("`") else f"list ({inner})"
    return _WORDS.get(kinds, str(kinds)) + _range(schema)


def _range(schema: Json) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    above = schema.get("exclusiveMinimum")
    texts = [
        f"above {_number(above)}" if above is not None else "",
        f"from {_number(least)}" if least is not None else "",
        f"to {_number(most)}" if most is not None else "",
    ]
    return "".join(f" {text}" for text in texts if text)


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def default_text(value: object, *, seconds: bool = False) -> str:
    """A default as a file would have it; empty where there is none."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float) and seconds:
        return f"`{duration_text(value).replace(' min', 'm').replace(' ', '')}`" if value else ""
    if not isinstance(value, str | int | float | list | tuple) or value in ("", [], ()):
        return ""
    if isinstance(value, float):
        return f"`{value:g}`"
    if isinstance(value, list | tuple):
        return ", ".join(f"`{member}`" for member in value)
    return f"`{value}`"


def table(
    properties: Json,
    required: Collection[str],
    definitions: Json,
    *,
    without: Collection[str] = (),
    defaults: Mapping[str, object] | None = None,
) -> list[str]:
    """The lines of a table; none if no key is left. `defaults` are those that the schema does not have; floats are seconds if the
    key takes a text.
    """
    lines = []
    for key, schema in properties.items():
        if key in without:
            continue
        known = (defaults or {}).get(key)
        text = default_text(schema.get("default")) or default_text(
            known, seconds=schema.get("type") == "string" or "examples" in schema
        )
        lines.append(
            f"| `{key}` | {accepted(schema, definitions)} | {'required' if key in required else text} |"
        )
    return ["| key | accepted | default |", "|---|---|---|", *lines, ""] if lines else []


def first_paragraph(schema: Json) -> list[str]:
    """The description, as far as its first empty line."""
    text = " ".join(schema.get("description", "").split("\n\n")[0].split())
    return [text, ""] if text and not text.startswith(tuple(f"{word}(" for word in ("Params",))) else []
