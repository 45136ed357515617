"""Orders: pause, resume, override, dry-run, promote; and workers' acknowledgements of a drain notice. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from scaling.config.policy import Policy
from scaling.drains.draining import EVERY_WORKER
from scaling.model import Controls, Direction, Override, Pause, Promotion
from scaling.notice import Acknowledged
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.errors import OrderError
from tidemark.foundation.sanitize import one_line
from tidemark.foundation.wording import duration_text

DEFAULT_OVERRIDE = 3600.0
"""Seconds an override lasts when the order does not say; an override never lasts for good. Chosen: as long
as somebody watches.
"""

MAX_OVERRIDE = 7 * 86_400.0
"""Chosen: a week, after which `minimum` and `maximum` are the place for it."""

MAX_NAME = 300
"""Characters of a notice's id or of a worker's name. Chosen: a target's name has 200, to which an id adds its time."""

MAX_WORKERS = 1_000
"""Workers that acknowledge one notice: the largest scale set, whose names take a third of the row of orders at most."""

Order = Mapping[str, Any]

_PAUSE = {
    "direction": "'out', 'in' and null (both)",
    "for": "durations such as '30m', and null (until resumed)",
}


def active_pause(controls: Controls, direction: Direction, now: float) -> Pause | None:
    for pause in controls.pauses:
        if pause.direction in {None, direction} and (pause.until is None or now < pause.until):
            return pause
    return None


def standing(policy: Policy, controls: Controls) -> Promotion | None:
    """The promotion that counts: of the shadow as tidemark.toml has it now. Nobody promoted any other rules."""
    promoted = controls.promoted
    usable = promoted is not None and policy.promoted is not None and promoted.rules == policy.shadow_id
    return promoted if usable else None


def policy_in_force(policy: Policy, controls: Controls) -> Policy:
    """The policy that decides for a target: as configured, or with the rules of the shadow that was promoted."""
    if policy.promoted is None or standing(policy, controls) is None:
        return policy
    return policy.promoted


def pause(controls: Controls, order: Order, policy: Policy, *, by: str, now: float) -> tuple[Controls, str]:
    """`{direction: out | in | null, for: duration | null}`; replaces a pause of the same direction.

    Both have to be said: a request that lost its body must not stop all scaling for good.
    """
    _only(order, "direction", "for", "by")
    missing = [
        f"{name}: is missing; accepted are {accepted}"
        for name, accepted in _PAUSE.items()
        if name not in order
    ]
    if missing:
        raise OrderError("; ".join(missing))
    direction = order.get("direction")
    if direction is not None and direction not in tuple(Direction):
        raise OrderError(f"direction: found {direction!r}; accepted are 'out', 'in' and null (both)")
    lasts = _duration(order, None)
    new = Pause(by, now, Direction(direction) if direction else None, now + lasts if lasts else None)
    kept = tuple(
        p for p in controls.pauses if p.direction != new.direction and (p.until is None or p.until > now)
    )
    way = f"scaling {direction}" if direction else "scaling"
    text = f"{way} paused {f'for {duration_text(lasts)}' if lasts else 'until resumed'}"
    return msgspec.structs.replace(controls, pauses=(*kept, new)), text


def resume(controls: Controls, order: Order, policy: Policy, *, by: str, now: float) -> tuple[Controls, str]:
    """`{}`; lifts every pause and override, and takes over a capacity somebody else set."""
    _only(order, "by")
    return (
        msgspec.structs.replace(controls, pauses=(), override=None, external_cleared_at=now),
        "resumed; pauses and override lifted",
    )


def override(
    controls: Controls, order: Order, policy: Policy, *, by: str, now: float
) -> tuple[Controls, str]:
    """`{capacity: n, for: duration}`; `n` within the policy's bounds, an hour by default."""
    _only(order, "capacity", "for", "by")
    capacity = order.get("capacity")
    if type(capacity) is not int or not policy.minimum <= capacity <= policy.maximum:
        raise OrderError(
            f"capacity: found {capacity!r}; accepted are whole numbers {policy.minimum} to {policy.maximum}"
        )
    lasts = _duration(order, DEFAULT_OVERRIDE) or DEFAULT_OVERRIDE
    if lasts > MAX_OVERRIDE:
        raise OrderError(f"for: found {duration_text(lasts)}; at most {duration_text(MAX_OVERRIDE)}")
    new = Override(capacity, by, now, now + lasts)
    text = f"override to {capacity} for {duration_text(lasts)}"
    return msgspec.structs.replace(controls, override=new), text


def dry_run(controls: Controls, order: Order, policy: Policy, *, by: str, now: float) -> tuple[Controls, str]:
    """`{on: true | false | null}`; null goes back to the configuration."""
    _only(order, "on", "by")
    on = order.get("on", True)
    if on is not None and not isinstance(on, bool):
        raise OrderError(f"on: found {on!r}; accepted are true, false and null (as configured)")
    text = "dry-run as configured" if on is None else f"dry-run {'on' if on else 'off'}"
    return msgspec.structs.replace(controls, dry_run=on), text


def promote(controls: Controls, order: Order, policy: Policy, *, by: str, now: float) -> tuple[Controls, str]:
    """`{on: true | false}`: the shadow's rules decide for the target from now on, or the configured ones again.

    With `rules`, the shadow that was seen (`Policy.shadow_id`), no other one is promoted.
    """
    _only(order, "on", "rules", "by")
    on = order.get("on")
    if not isinstance(on, bool):
        raise OrderError(
            f"on: {'is missing' if on is None else f'found {on!r}'}; accepted are true and false"
        )
    if not on:
        text = "shadow withdrawn; the configured rules decide"
        return msgspec.structs.replace(controls, promoted=None), text
    if policy.promoted is None:
        raise OrderError(
            f"on: there is nothing to promote: tidemark.toml has no usable [targets.{policy.target}.shadow]"
        )
    seen = order.get("rules")
    if seen is not None and seen != policy.shadow_id:
        raise OrderError(
            f"rules: found {seen!r}, accepted is '{policy.shadow_id}': the comparison that was seen is of another shadow than "
            "tidemark.toml has here; ask again once it is compared"
        )
    new = Promotion(by, now, policy.shadow_id)
    text = f"shadow promoted, its rules decide; tidemark.toml should follow: {follow_text(policy.target)}"
    return msgspec.structs.replace(controls, promoted=new), text


def follow_text(target: str) -> str:
    """What to do with the file once a shadow was promoted, so that what decides stays the same."""
    return (
        f"put what [targets.{target}.shadow] has in place of the same keys of [targets.{target}], but keep the target's rules of "
        "the types guard and within_request_units, and its minimum and maximum where those of the shadow are wider; then "
        "remove the table"
    )


def acknowledge(
    controls: Controls, order: Order, policy: Policy, *, by: str, now: float
) -> tuple[Controls, str]:
    """`{notice: id, worker: name}`: a worker may go, and takes no new work until that drain notice is over; `*` speaks for all.

    The same worker may say so again. Whether the notice is the one that stands is for the caller to check.
    """
    _only(order, "notice", "worker", "by")
    for key in ("notice", "worker"):
        if not isinstance(order.get(key), str) or not 0 < len(order[key]) <= MAX_NAME:
            problem = f"found {order[key]!r}" if key in order else "is missing"
            raise OrderError(f"{key}: {problem}; accepted is a text of 1 to {MAX_NAME} characters")
    notice, worker, known = order["notice"], order["worker"], controls.acknowledged
    workers = known.workers if known is not None and known.notice == notice else ()
    if worker not in workers:
        workers = (*workers, worker)
    if len(workers) > MAX_WORKERS:
        raise OrderError(
            f"worker: {MAX_WORKERS} others have acknowledged this notice, which are all that are kept"
        )
    who = "all workers" if worker == EVERY_WORKER else f"worker {one_line(worker)}"
    text = f"drain notice {one_line(notice)} acknowledged by {who}"
    return msgspec.structs.replace(controls, acknowledged=Acknowledged(notice, workers)), text


ORDERS: dict[str, Callable[..., tuple[Controls, str]]] = {
    "acknowledge": acknowledge,
    "dry-run": dry_run,
    "override": override,
    "pause": pause,
    "promote": promote,
    "resume": resume,
}


def _only(order: Order, *accepted: str) -> None:
    unknown = [key for key in order if key not in accepted]
    if unknown:
        raise OrderError(f"{unknown[0]}: is not accepted here; accepted are {', '.join(accepted)}")


def _duration(order: Order, default: float | None) -> float | None:
    value = order.get("for")
    if value is None:
        return default
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise OrderError(f"for: {error}") from None
    if seconds <= 0:
        raise OrderError(f"for: found {value!r}; a duration above 0 is accepted")
    return seconds
