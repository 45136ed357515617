"""When an instance that reaches the hub or the sink no more gives its partitions up, and when it may come back. Pure.

It gives up only while another instance is present, because a partition without an owner helps nobody. When the outage is everybody's,
all but the last one give up, each once: who is away comes back only after hub and sink have answered it, so nothing is passed on and on.
An instance whose questions are answered while its writes still fail waits longer each time.

Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math

LONGEST = 3600.0
"""Seconds for which an instance stays away at most. Chosen: an operator who repairs a machine then sees it work within the hour."""


HUB = "the hub"


def sink_named(name: str) -> str:
    """A sink in words; '' is the only one."""
    return f"the sink '{name}'" if name else "the sink"


class Reach:
    """What one instance knows of the services that it needs. `after` is CONSUMER_GIVE_UP_AFTER; None never gives up."""

    def __init__(self, after: float | None) -> None:
        self._after = after
        self._failing_since: dict[str, float] = {}
        self._cause = ""  # the service because of which it gave up last
        self._times = 0  # given up since that service was reached
        self._back_from = -math.inf
        self.reason = ""
        """Why this instance is away; '' while it takes part."""

    def note(self, service: str, *, reached: bool, now: float) -> None:
        """HUB or a sink answered, or did not. Answers of a sink are those to writes."""
        if not reached:
            self._failing_since.setdefault(service, now)
            return
        self._failing_since.pop(service, None)
        if service == self._cause:
            self._times = 0

    def forget_sinks(self) -> None:
        """Nothing waits to be written, so that a write which failed is no sign any more: its partition went elsewhere."""
        self._failing_since = {name: since for name, since in self._failing_since.items() if name == HUB}

    def gives_up(self, now: float, others: int) -> bool:
        """Whether to give everything up now, with so many other instances present; `reason` then says why."""
        if self.reason or self._after is None or not others:
            return False
        for service, since in self._failing_since.items():
            if now - since >= self._after:
                self.reason = f"{service} was not reached for {now - since:.0f} s"
                self._times = self._times + 1 if service == self._cause else 1
                self._cause = service
                pause = (
                    0.0 if self._times == 1 else min(LONGEST, self._after * 2.0 ** min(self._times - 2, 10))
                )
                self._back_from = now + pause
                return True
        return False

    def may_ask(self, now: float) -> bool:
        """Whether to ask hub and sink if they can be reached again."""
        return bool(self.reason) and now >= self._back_from

    def came_back(self) -> None:
        """Hub and sink have answered: this instance takes part again."""
        self.reason = ""
        self._failing_since.clear()
