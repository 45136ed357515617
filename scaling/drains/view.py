"""A drain notice as workers and people read it: over HTTP, in a row of Table Storage, on the dashboard. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from scaling.drains.draining import workers_of
from scaling.model import Controls, TargetState
from tidemark.foundation.wording import time_text

NO_NOTICE = "none"
DRAINING = "draining"


class DrainView(Struct, frozen=True):
    """`state` is `draining`, or how the notice ended (`done`, `withdrawn`, `unanswered`), or `none` where there never was one.

    Times are seconds since the epoch. Workers must not obey a notice after its `expires_at`.
    """

    state: str
    notice: str = ""
    from_capacity: int | None = None
    to_capacity: int | None = None
    at: float | None = None
    deadline: float | None = None
    expires_at: float | None = None
    needed: int | None = None
    goes_anyway: bool = False
    acknowledged: tuple[str, ...] = ()
    going: tuple[str, ...] = ()


def drain_view(state: TargetState, controls: Controls) -> DrainView:
    """The last notice of a target, with who has acknowledged it; `going` are the instances that are removed, where they are known."""
    drain, pending = state.drain, state.pending
    if drain is None:
        return DrainView(NO_NOTICE)
    mine = pending is not None and pending.action_id == drain.notice
    return DrainView(
        drain.end or DRAINING,
        drain.notice,
        drain.from_capacity,
        drain.to_capacity,
        drain.at,
        drain.deadline,
        drain.expires_at,
        drain.needed,
        drain.goes_anyway,
        workers_of(drain, controls),
        pending.instances if mine and pending is not None else (),
    )


def drain_columns(state: TargetState) -> Mapping[str, int | str | bytes]:
    """The columns of the row that workers read: what `drain_view` shows, without acknowledgements."""
    drain = state.drain
    if drain is None:
        return {"State": NO_NOTICE}
    return {
        "State": drain.end or DRAINING,
        "Notice": drain.notice,
        "FromCapacity": drain.from_capacity,
        "ToCapacity": drain.to_capacity,
        "Deadline": time_text(drain.deadline),
        "ExpiresAt": time_text(drain.expires_at),
        "Needed": drain.needed,
    }
