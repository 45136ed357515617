"""What can be said of `[fallback]` beside the windows of a policy. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.config.policy import Policy
from tidemark.foundation.wording import duration_text


def outlasted_fallbacks(policy: Policy) -> Iterator[str]:
    """A fallback that comes sooner than a window is whole again: what it costs lasts longer than what it answers."""
    fallback = policy.spec.fallback
    if fallback is None or fallback.capacity <= policy.minimum:
        return
    longest = max(policy.windows, key=lambda name: policy.windows[name].span, default=None)
    if longest is None or (span := policy.windows[longest].span) <= fallback.after:
        return
    yield (
        f"fallback.after ({duration_text(fallback.after)}) is shorter than the window of {longest} "
        f"({duration_text(span)}): once {policy.spec.facts.counted(fallback.capacity)} are there, nothing is scaled in "
        f"before the failed reads have left that window, {duration_text(span)} after the last one"
    )
