"""Reads what holds back or reduces the changes of a target: `out`, `in`, `plateau`, `drain`, `fallback`; problems are noted. Pure."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import structs

from scaling.config import policy
from tidemark.foundation.durations import duration, positive_duration
from tidemark.foundation.settings_reader import Reader, as_text, one_of, share, whole

DEFAULT_COOLDOWN = 600.0  # ten minutes, the classic rule's cooldown
MAX_NOTICE = 86_400.0
"""Seconds that workers may have. Chosen: a day; what a decision was made of is long out of date by then."""


def read_paces(reader: Reader, *, own: bool) -> tuple[policy.Pace, policy.Pace]:
    """The limits in both directions; by default none where a rule has a pace of its `own`: one that learns
    holds a scale-in back by itself, and must not wait with a scale-out.
    """
    preset = reader.take("behavior", "", one_of(("hpa",)))
    usual = policy.Pace() if own else policy.Pace(cooldown=DEFAULT_COOLDOWN)
    out, inward = (policy.HPA_OUT, policy.HPA_IN) if preset else (usual, usual)
    return _pace(reader.table("out"), out), _pace(reader.table("in"), inward)


def _pace(reader: Reader | None, default: policy.Pace) -> policy.Pace:
    if reader is None:
        return default
    select = one_of(("max", "min", "disabled"))
    options = reader.found(step=whole(1), cooldown=duration, stabilization=duration, select=select)
    if reader.has("rates"):
        options["rates"] = tuple(_rate(rate) for rate in reader.tables("rates"))
    reader.finish()
    return structs.replace(default, **options)


def _rate(reader: Reader) -> policy.RateLimit:
    if reader.has("units") == reader.has("percent"):
        reader.problem("", "give either 'units' or 'percent'")
    kind = "percent" if reader.has("percent") else "units"
    rate = policy.RateLimit(
        kind=kind,  # type: ignore[arg-type]
        amount=reader.take(kind, 1, whole(1)),
        period=reader.require("per", 60.0, positive_duration),
    )
    for other in ("units", "percent"):
        reader.take(other, 1, whole(1))
    reader.finish()
    return rate


def read_plateau(reader: Reader | None, metrics: Collection[str]) -> policy.Plateau | None:
    if reader is None:
        return None
    metric = reader.require("metric", "", as_text)
    plateau = policy.Plateau(metric=metric, **reader.found(effects=whole(1, 32), fall=share, hold=duration))
    if plateau.metric and plateau.metric not in metrics:
        reader.problem("metric", f"found '{plateau.metric}'; the target has {', '.join(metrics) or 'none'}")
    reader.finish()
    return plateau


def read_drain(reader: Reader | None) -> policy.DrainSpec | None:
    if reader is None:
        return None
    notice = reader.require("notice", 60.0, positive_duration)
    drain = policy.DrainSpec(
        notice=notice, **reader.found(unacknowledged=one_of(("hold", "scale_in")), again=duration)
    )
    if notice > MAX_NOTICE:
        reader.problem("notice", f"found {notice:g} s; at most {MAX_NOTICE:g} s are accepted")
    reader.finish()
    return drain


def read_fallback(reader: Reader | None, minimum: int, maximum: int) -> policy.Fallback | None:
    if reader is None:
        return None
    capacity = reader.require("capacity", minimum, whole(minimum, max(maximum, minimum)))
    fallback = policy.Fallback(capacity=capacity, **reader.found(after=duration))
    reader.finish()
    return fallback
