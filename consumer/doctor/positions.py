"""Whether stored positions are of the hub that has the name now: it may have been created anew since."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from consumer.leasing.start_position import why_foreign
from consumer.model import Checkpoint
from consumer.options import OnDistrust
from consumer.running.assembly import Parts
from tidemark.foundation.checkup import Finding, failed, warning
from tidemark.foundation.errors import TidemarkError
from tidemark.foundation.wording import count_text

_REMEDY = (
    "set CONSUMER_ON_FOREIGN_CHECKPOINT to 'earliest' (reads everything that the hub has) or 'latest' (leaves out what it"
    " has), or set the positions with `tidemark checkpoints set`"
)


async def foreign_positions(
    parts: Parts, stored: Mapping[str, Checkpoint | str], subject: str, deadline: float
) -> list[Finding]:
    """What a start makes of positions of another hub. Nothing where the hub cannot be asked, which another check reports."""
    kept = {name: checkpoint for name, checkpoint in stored.items() if isinstance(checkpoint, Checkpoint)}
    receiver = parts.receiver()
    try:
        async with asyncio.timeout_at(deadline):
            states = await receiver.states(kept) if kept else {}
    except (TidemarkError, TimeoutError):
        return []
    finally:
        await receiver.close()
    reasons = [
        f"partition {name}: {reason}"
        for name, state in states.items()
        if (reason := why_foreign(kept[name], state, receiver.created_at))
    ]
    if not reasons:
        return []
    found = f"{len(reasons)} of {count_text(len(kept), 'position')} not of this hub: {reasons[0]}"
    decision = parts.config.policy.on_foreign_checkpoint
    if decision is OnDistrust.FAIL:
        return [failed("positions", subject, f"{found}. The next start refuses them", _REMEDY)]
    begins = (
        "reads everything that the hub has"
        if decision is OnDistrust.EARLIEST
        else "begins at the latest event"
    )
    remedy = "nothing, if the hub was created anew: CONSUMER_ON_FOREIGN_CHECKPOINT says so"
    return [warning("positions", subject, f"{found}. The next start {begins}", remedy)]
