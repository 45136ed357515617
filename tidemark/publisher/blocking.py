"""Classes whose methods block, over the same ones that are awaited; and one way for both clients of the Service Bus SDK: what
the asynchronous one gives is waited for, what the blocking one gives is there.

A sender for code that blocks is thus the asynchronous one over a blocking client. Its coroutines never wait: each runs to
its end in the thread that called it, which iterables and callbacks of the caller stay in, and where an interrupt hits.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def blocking(
    method: Callable[Concatenate[Any, _Given], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[Any, _Given], _Result]:
    """The method of a class that has the awaited object as `awaited`, and waits by `_wait`."""

    @functools.wraps(method)
    def blocks(self: Any, /, *given: _Given.args, **options: _Given.kwargs) -> _Result:
        result: _Result = self._wait(getattr(self.awaited, method.__name__)(*given, **options))
        return result

    return blocks


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
