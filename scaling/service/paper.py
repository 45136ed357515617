"""Asks the rules on paper where they cannot hold the target up: rules of the user's own code in a thread, within a time.

The rules of this package end. One of the user's own may wait for a network that does not answer, or end the process: in a
thread of its own it does neither to the target. While one is at it no other is begun.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from functools import partial

from scaling.config.policy import Policy
from scaling.model import Controls, Recommendation, TargetState
from scaling.service.aside import begun
from scaling.shadow.beside import Beside, decided_beside
from scaling.window import Window
from tidemark.foundation.sanitize import told

PAPER_DEADLINE = 2.0
"""Seconds a target waits for its rules on paper, where some are of the user's own; they take milliseconds."""

OURS = "scaling.rules."


class Paper:
    """One per process."""

    def __init__(self) -> None:
        self._asked: dict[str, threading.Thread] = {}

    async def decided(
        self,
        policy: Policy,
        windows: Mapping[str, Window],
        state: TargetState,
        made: Recommendation,
        *,
        controls: Controls,
    ) -> Beside:
        """`decided_beside`; without an answer in time what is remembered stays as it is, and a warning says so."""
        call = partial(decided_beside, policy, windows, state, made, controls=controls)
        if not _may_hang(policy):
            return call()
        before = self._asked.get(policy.target)
        if before is not None and before.is_alive():
            return Beside(state.shadow)  # told when it began to hang
        self._asked[policy.target], answer = begun(call, f"shadow {policy.target}")
        try:
            async with asyncio.timeout(PAPER_DEADLINE):
                return await answer
        except TimeoutError:
            why = f"no answer within {PAPER_DEADLINE:g} s; left out until it answers"
            return Beside(state.shadow, None, (f"shadow {policy.target}: {why}",))
        except Exception as error:  # noqa: BLE001 - whatever ended the thread
            return Beside(b"", None, (f"shadow {policy.target}: {told(error)}; it begins anew",))


def _may_hang(policy: Policy) -> bool:
    """True where a rule on paper may be of the user's own: a promotion puts those of the target there."""
    if policy.shadow is None:
        return False
    rules = (*policy.flat_rules, *policy.shadow.flat_rules)
    return any(not type(rule).__module__.startswith(OURS) for rule in rules)
