"""What a file holds: JSON, or YAML where its package is installed. All scalars of YAML are texts, so `on`, `no` and `1:30` mean no more than they say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from tidemark.commands.importing.common.given import UnreadableError, objects_in
from tidemark.foundation.sanitize import describe_error, one_line
from tidemark.foundation.version import install_hint

MOST_BYTES = 4 << 20
"""Largest file that is read. Chosen: a template with hundreds of settings has a quarter of that."""

MOST_OBJECTS = 500

_BRACES = re.compile(r"\{\{.*?\}\}")


_DEPLOYED = "give what is deployed, by `az monitor autoscale show`"
_LANGUAGES = {
    ".bicep": f"is Bicep: {_DEPLOYED}, or compile it, by `az bicep build`, where it has no expressions",
    ".bicepparam": f"is Bicep: {_DEPLOYED}",
    ".tf": f"is Terraform: {_DEPLOYED}",
}
"""What is no document but a program that makes one."""


def objects_of(data: bytes, name: str) -> list[Any]:
    """The objects of a file. Raises UnreadableError."""
    if (why := _LANGUAGES.get(PurePath(name).suffix.casefold())) is not None:
        raise UnreadableError(f"{name}: {why}")
    if len(data) > MOST_BYTES:
        raise UnreadableError(f"{name}: the file has more than {MOST_BYTES} bytes")
    try:
        text = data.decode("utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableError(f"{name}: is not UTF-8; save it as UTF-8") from None
    objects = [member for document in _documents(text, name) for member in objects_in(document)]
    if len(objects) > MOST_OBJECTS:
        raise UnreadableError(f"{name}: has {len(objects)} objects; accepted are {MOST_OBJECTS}")
    return objects


def _documents(text: str, name: str) -> Iterator[Any]:
    if text.lstrip()[:1] in {"{", "["} and not text.lstrip().startswith("{{"):
        try:
            yield json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UnreadableError(f"{name}: is no JSON: {describe_error(error)}") from None
        return
    yield from _yaml(text, name)


def _yaml(text: str, name: str) -> list[Any]:
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise UnreadableError(
            f"{name}: is no JSON. Give JSON (kubectl get scaledobject NAME -o json, az monitor autoscale show), or for YAML {install_hint('yaml')}"
        ) from None
    try:
        return list(yaml.load_all(text, Loader=yaml.BaseLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        for number, line in enumerate(text.splitlines(), start=1):
            if _BRACES.search(line) and not line.lstrip().startswith("#"):
                raise UnreadableError(
                    f"{name}:{number}: found '{one_line(line.strip())[:60]}', a template of Helm; render it first: helm template CHART"
                ) from None
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark is not None else name
        raise UnreadableError(
            f"{where}: is no YAML: {one_line(str(getattr(error, 'problem', None) or describe_error(error)))[:200]}"
        ) from None
