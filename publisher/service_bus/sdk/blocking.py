"""One way for both clients of the SDK: what the asynchronous one gives is waited for, what the blocking one gives is there.

A sender for code that blocks is thus the asynchronous one over a blocking client. Its coroutines never wait: each runs to
its end in the thread that called it, which iterables and callbacks of the caller stay in, and where an interrupt hits.
"""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def came(found: Any) -> Any:
    """What a method of a client gave, once it is there."""
    return await found if inspect.isawaitable(found) else found


def without_waiting(work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of work over a blocking client. Raises what the work raises."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    work.close()
    raise RuntimeError("an asynchronous client where a blocking one belongs")
