"""One reading of a resource: the number that is scaled, and the limits that stand beside it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from scaling.scalers.arm.states import may_be_on, state_of
from scaling.scalers.resource.kinds import Kind
from scaling.target_facts import Settable


class Seen(Struct, frozen=True):
    """`holder` is what else moves the number; `document` and `etag` are what a change goes by. `unknown_state` may be that of a
    change. `ready` of the number run already, and asynchronous scaling still works towards `target`; None where that is not known.
    """

    value: int
    floor: int
    ceiling: int | None
    settable: Settable
    pending: bool
    holder: str | None
    document: Mapping[str, Any]
    etag: str = ""
    unknown_state: str = ""
    ready: int | None = None
    target: int | None = None

    def clamped(self, wanted: int) -> int:
        """The next value the platform takes: no less than wanted, as far as its limits let it."""
        high = wanted if self.ceiling is None else self.settable.down(self.ceiling)
        return max(min(self.settable.up(wanted), high), self.settable.up(self.floor))


def seen_of(kind: Kind, document: Mapping[str, Any]) -> Seen:
    """Raises ValueError where the number is not there, or is none."""
    value = number(document, kind.path, kind.absent)
    if value is None:
        raise ValueError(f"the answer holds no {kind.path}")
    times = (number(document, kind.times, 1) or 1) if kind.times else 1
    allowed = tuple(count * times for count in kind.allowed)
    floors = [kind.floor, number(document, kind.floor_at, None), allowed[0] if allowed else None]
    ceilings = [kind.ceiling, number(document, kind.ceiling_at, None), allowed[-1] if allowed else None]
    known_ceilings = [ceiling for ceiling in ceilings if ceiling is not None]
    pending, unknown = state_of(at(document, "properties.provisioningState"))
    return Seen(
        value=value,
        floor=max(floor for floor in floors if floor is not None),
        ceiling=min(known_ceilings) if known_ceilings else None,
        settable=Settable(kind.step, allowed),
        pending=pending,
        holder=kind.holder if kind.true_at and may_be_on(at(document, kind.true_at)) else None,
        document=document,
        etag=str(document.get("etag") or ""),
        unknown_state=unknown,
    )


def why_refused(kind: Kind, document: Mapping[str, Any]) -> str | None:
    """Why there is nothing to set; None where there is."""
    if kind.needs is None:
        return None
    path, accepted = kind.needs
    value = str(at(document, path) or "")
    if value.casefold() in {value_accepted.casefold() for value_accepted in accepted}:
        return None
    return f"{path} is '{value}'; {kind.unit} are set where it is {' or '.join(accepted)}"


def changed(kind: Kind, seen: Seen, wanted: int) -> dict[str, Any]:
    """What is sent: of a PATCH the number alone, with a SKU the whole of it, for providers take no part of that; of a PUT
    the document as it was read.
    """
    first, *_ = kind.path.split(".")
    if kind.method == "put":
        kept = {name: value for name, value in seen.document.items() if name not in {"etag", "systemData"}}
        return _with(kept, kind.path.split("."), wanted)
    whole = {"sku": seen.document.get("sku", {})} if first == "sku" else {}
    return _with(whole, kind.path.split("."), wanted)


def _with(document: Mapping[str, Any], path: list[str], value: int) -> dict[str, Any]:
    first, *rest = path
    inner = document.get(first)
    return {
        **document,
        first: _with(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value,
    }


def at(document: Any, path: str) -> Any:
    """What stands at a path, None where nothing does."""
    for name in path.split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def number(document: Mapping[str, Any], path: str, absent: int | None) -> int | None:
    """A whole number of 0 or more; providers write some as text or with a decimal point. Raises ValueError for others."""
    value = at(document, path) if path else None
    if value is None:
        return absent
    number = int(value) if isinstance(value, str) and value.isdigit() else value
    if isinstance(number, bool) or not isinstance(number, int | float) or number != int(number) or number < 0:
        raise ValueError(f"{path} is {value!r}; a whole number of 0 or more can be scaled")
    return int(number)
