"""Runs rules of the user's own code in threads that nobody waits for without a deadline.

A rule of the user's own may wait for a network that does not answer, or end the process: in a thread it does neither to
the target. A thread cannot be stopped: one that hangs is left behind, and the caller goes on without it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

from scaling.config.policy import Policy
from scaling.model import Controls, Recommendation, TargetState
from scaling.rules.answers import is_ours
from scaling.shadow.beside import Beside, simulate_shadow
from scaling.window import Window
from tidemark.foundation.sanitize import describe_error

_T = TypeVar("_T")

SHADOW_DEADLINE = 2.0
"""Seconds a target waits for its shadow where rules of the user's own are in it. Chosen: they take milliseconds, and the decision
itself is made already.
"""


def start_in_thread(call: Callable[[], _T], name: str) -> tuple[threading.Thread, asyncio.Future[_T]]:
    """The thread that calls, and the future of the answer. What `call` raises is raised there; what would end the process
    is a RuntimeError.
    """
    answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
    thread = threading.Thread(target=_answer, args=(call, answer), name=name, daemon=True)
    thread.start()
    return thread, answer


def _answer(call: Callable[[], _T], answer: asyncio.Future[_T]) -> None:
    error: BaseException | None = None
    try:
        result = call()
    except Exception as raised:  # for the one who waits
        error = raised
    except BaseException as ended:  # `sys.exit()` in a rule must not end the app
        error = RuntimeError(f"it raised {ended!r}")

    def set_answer() -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        answer.get_loop().call_soon_threadsafe(set_answer)


class ShadowRunner:
    """Decides shadows within a deadline; one per process. While a shadow hangs, it is not begun again."""

    def __init__(self) -> None:
        self._threads: dict[str, threading.Thread] = {}

    async def decide(
        self,
        policy: Policy,
        windows: Mapping[str, Window],
        state: TargetState,
        made: Recommendation,
        *,
        controls: Controls,
    ) -> Beside:
        """`simulate_shadow`. Without an answer in time the shadow's memory stays as it is, and a warning says so."""
        call = partial(simulate_shadow, policy, windows, state, made, controls=controls)
        if not _may_hang(policy):
            return call()
        before = self._threads.get(policy.target)
        if before is not None and before.is_alive():
            return Beside(state.shadow)  # a warning was given when it began to hang
        self._threads[policy.target], answer = start_in_thread(call, f"shadow {policy.target}")
        try:
            async with asyncio.timeout(SHADOW_DEADLINE):
                return await answer
        except TimeoutError:
            why = f"no answer within {SHADOW_DEADLINE:g} s; left out until it answers"
            return Beside(state.shadow, None, (f"shadow {policy.target}: {why}",))
        except Exception as error:  # whatever ended the thread
            return Beside(b"", None, (f"shadow {policy.target}: {describe_error(error)}; it begins anew",))


def _may_hang(policy: Policy) -> bool:
    """True where a simulated rule may be of the user's own: a promotion simulates those of the target."""
    if policy.shadow is None:
        return False
    return not all(is_ours(type(rule)) for rule in (*policy.flat_rules, *policy.shadow.flat_rules))
