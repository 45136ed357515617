"""Calls code of the user's own where it can hold nobody up: in a thread of its own, which the process does not wait for.

A thread cannot be stopped: one that hangs is left behind, and the caller goes on without it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

_T = TypeVar("_T")


def begun(call: Callable[[], _T], name: str) -> tuple[threading.Thread, asyncio.Future[_T]]:
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
        found = call()
    except Exception as raised:  # noqa: BLE001 - for the one who waits
        error = raised
    except BaseException as ended:  # noqa: BLE001 - `sys.exit()` in a rule must not end the app
        error = RuntimeError(f"it raised {ended!r}")

    def tell() -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(found)
        else:
            answer.set_exception(error)

    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        answer.get_loop().call_soon_threadsafe(tell)
