"""Partial updates: the operations of a patch applied to a document."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from devstack.cosmos.protocol.errors import CosmosError, bad_request
from devstack.cosmos.query import parse_condition

MAX_OPERATIONS = 10


class _Step(Struct, rename={"origin": "from"}):
    op: str
    path: str
    value: Any = None
    origin: str | None = None


class _Patch(Struct):
    operations: list[_Step]
    condition: str | None = None


def patched(document: bytes, instructions: bytes) -> bytes:
    """The document after all steps, in order; none is applied if one fails. A bare list of steps has no condition.

    Raises CosmosError: 400 for steps that do not fit the document, 412 if the condition fails.
    """
    try:
        if instructions.lstrip()[:1] == b"[":
            patch = _Patch(msgspec.json.decode(instructions, type=list[_Step]))
        else:
            patch = msgspec.json.decode(instructions, type=_Patch)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise bad_request(f"The patch is not valid: {error}") from None
    if not 1 <= len(patch.operations) <= MAX_OPERATIONS:
        raise bad_request(f"A patch has {len(patch.operations)} operations, accepted: 1 to {MAX_OPERATIONS}")
    value = msgspec.json.decode(document)
    if patch.condition is not None and not parse_condition(patch.condition)(value):
        raise CosmosError(412, "The condition of the patch does not hold", substatus=1110)
    for step in patch.operations:
        apply = _STEPS.get(step.op)
        if apply is None:
            raise bad_request(f"A patch has operation {step.op!r}, accepted: {', '.join(_STEPS)}")
        apply(value, step)
    return msgspec.json.encode(value)


_NOT_PATCHED = ("id", "_id", "_ts", "_etag", "_rid", "_self", "_attachments")


def _parent(document: Any, path: str) -> tuple[Any, str]:
    """What holds the last name of a path, and that name. In names `~1` is a slash and `~0` a tilde.

    Raises CosmosError (400), also for a property of the service.
    """
    names = [name.replace("~1", "/").replace("~0", "~") for name in path.lstrip("/").split("/")]
    if names[0] in _NOT_PATCHED:
        raise bad_request(f"The patch names path {path!r}, which cannot be patched")
    *trail, last = names
    for name in trail:
        document = _child(document, name, path)
    if not isinstance(document, (dict, list)):
        raise _bad_path(path)
    return document, last


def _child(holder: Any, name: str, path: str) -> Any:
    try:
        return holder[int(name)] if isinstance(holder, list) else holder[name]
    except (KeyError, IndexError, ValueError, TypeError):
        raise _bad_path(path) from None


def _bad_path(path: str) -> CosmosError:
    return bad_request(f"The patch names path {path!r}, which the document does not have")


def _add(document: Any, step: _Step) -> None:
    holder, name = _parent(document, step.path)
    if isinstance(holder, dict):
        holder[name] = step.value
        return
    position = len(holder) if name == "-" else _position(name, step.path)
    if position > len(holder):
        raise _bad_path(step.path)
    holder.insert(position, step.value)


def _set(document: Any, step: _Step) -> None:
    holder, name = _parent(document, step.path)
    if isinstance(holder, dict):
        holder[name] = step.value
    elif name == "-" or _position(name, step.path) == len(holder):
        holder.append(step.value)
    else:
        _child(holder, name, step.path)
        holder[int(name)] = step.value


def _replace(document: Any, step: _Step) -> None:
    holder, name = _parent(document, step.path)
    _child(holder, name, step.path)
    holder[int(name) if isinstance(holder, list) else name] = step.value


def _remove(document: Any, step: _Step) -> Any:
    holder, name = _parent(document, step.path)
    value = _child(holder, name, step.path)
    del holder[int(name) if isinstance(holder, list) else name]
    return value


def _increment(document: Any, step: _Step) -> None:
    holder, name = _parent(document, step.path)
    old = holder.get(name, 0) if isinstance(holder, dict) else _child(holder, name, step.path)
    if not _is_number(old) or not _is_number(step.value):
        raise bad_request(f"The patch increments {step.path!r}, which is not a number")
    holder[int(name) if isinstance(holder, list) else name] = old + step.value


def _move(document: Any, step: _Step) -> None:
    if step.origin is None:
        raise bad_request("A move needs a from")
    value = _remove(document, _Step("remove", step.origin))
    _add(document, _Step("add", step.path, value))


def _position(name: str, path: str) -> int:
    if not name.isdecimal():
        raise _bad_path(path)
    return int(name)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_STEPS: dict[str, Callable[[Any, _Step], Any]] = {
    "add": _add,
    "set": _set,
    "replace": _replace,
    "remove": _remove,
    "incr": _increment,
    "move": _move,
}
