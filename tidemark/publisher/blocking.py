"""Blocking variants of asynchronous classes, and one way to call both clients of the Service Bus SDK.

A blocking sender is the asynchronous one over a blocking client. Its coroutines never wait: each runs to its end in the calling
thread. So the caller's iterables and callbacks run in that thread, and interrupts arrive there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


def blocking(
    method: Callable[Concatenate[Any, _Args], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[Any, _Args], _Result]:
    """A blocking method for a class with the asynchronous object in `awaited` and the way to wait in `_wait`."""

    @functools.wraps(method)
    def blocks(self: Any, /, *args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        result: _Result = self._wait(getattr(self.awaited, method.__name__)(*args, **kwargs))
        return result

    return blocks


async def wait_if_needed(result: Any) -> Any:
    """The result of a client's method, awaited if the client is asynchronous."""
    return await result if inspect.isawaitable(result) else result


def run_without_loop(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine over a blocking client to its end. Raises what it raises."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    work.close()
    raise RuntimeError("the client is asynchronous, accepted: a blocking one")
