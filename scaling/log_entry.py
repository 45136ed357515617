"""One row of the scaling log, and the id of its decision: immutable data, as in `scaling.model`. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

from msgspec import Struct

from scaling.model import Effect, Recommendation


class LogKind(StrEnum):
    DECISION = "decision"
    EFFECT = "effect"
    CONTROL = "control"
    VERIFY = "verify"


class ShadowSaid(Struct, frozen=True):
    """What the simulated rules decided beside a decision, from their imagined capacity `current`: see `scaling.shadow`.

    `promoted`: the shadow's rules decide for the target, and the simulated ones are the configured ones.
    """

    current: int
    desired: int | None
    proposed: int | None
    reason: str
    line: str
    promoted: bool = False


class LogEntry(Struct, frozen=True):
    """One row of the scaling log. `inputs` (decisions only) replays the decision: see `scaling.analysis.replay`."""

    target: str
    at: float
    kind: LogKind
    key: str  # unique per target and time; writing an entry again with the same key replaces it
    line: str
    reason: str
    current: int | None = None
    desired: int | None = None
    recommendation: Recommendation | None = None
    effect: Effect | None = None
    by: str | None = None
    metrics: dict[str, float] = {}
    inputs: bytes | None = None
    shadow: ShadowSaid | None = None


def decision_id(target: str, at: float) -> str:
    """The id of the decision about the report of `target` made at `at`, for example
    `plan-orders@20261121T045000.000Z`: it finds its log row without a search.
    """
    text = datetime.fromtimestamp(round(at, 3), UTC).isoformat(timespec="milliseconds")
    return f"{target}@{text[:10].replace('-', '')}T{text[11:23].replace(':', '')}Z"


def parse_decision_id(text: str) -> tuple[str, float]:
    """Target and report time of a decision id. Raises ValueError naming the form accepted."""
    target, separator, stamp = text.rpartition("@")
    try:
        if not separator or not target:
            raise ValueError(text)
        decided_at = datetime.strptime(stamp, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
    except ValueError as error:
        raise ValueError(
            f"'{text}' is not a decision id; expected <target>@<YYYYMMDDThhmmss.mmmZ>, "
            "for example plan-orders@20261121T045000.000Z"
        ) from error
    return target, decided_at.timestamp()
