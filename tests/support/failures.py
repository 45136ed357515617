"""Exceptions that nobody thought of: any type a library, a driver, the network or a user's own code may raise."""

import asyncio
import builtins
import concurrent.futures
import ssl

import aiohttp
import sqlalchemy.exc
from azure.core import exceptions as azure
from azure.eventhub import exceptions as event_hubs
from hypothesis import strategies as st


class NobodysError(Exception):
    """Of no family that is known."""


_STRANGE = [
    lambda: NobodysError("nobody's"),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "strange"),
    lambda: UnicodeEncodeError("utf-8", "\ud800", 0, 1, "strange"),
    lambda: OSError(75, "Value too large for defined data type"),
    lambda: KeyError(b"x-opt-offset"),
    lambda: ExceptionGroup("several", [ValueError("one"), OSError("two")]),
    lambda: asyncio.InvalidStateError("strange"),
    lambda: asyncio.IncompleteReadError(b"", 4),
    lambda: concurrent.futures.BrokenExecutor("strange"),
    lambda: ssl.SSLError(1, "strange"),
    lambda: aiohttp.ClientPayloadError("strange"),
    aiohttp.ServerDisconnectedError,
    lambda: azure.ClientAuthenticationError("strange"),
    lambda: azure.HttpResponseError("strange"),
    lambda: azure.ServiceRequestError("strange"),
    lambda: azure.DecodeError("strange"),
    lambda: event_hubs.EventHubError("strange"),
    lambda: event_hubs.ConnectionLostError("strange"),
    lambda: sqlalchemy.exc.OperationalError("SELECT 1", {}, Exception("strange")),
    lambda: sqlalchemy.exc.InvalidRequestError("strange"),
]
_WITH_ARGUMENTS = (
    UnicodeError,
    BaseExceptionGroup,
    StopIteration,
    Warning,
)  # or they mean something to a coroutine
_BUILT_IN = sorted(
    (
        kind
        for kind in vars(builtins).values()
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _WITH_ARGUMENTS)
    ),
    key=lambda kind: kind.__name__,
)


def exceptions():
    """A strategy; cancellation is none of them: it must pass."""
    return st.one_of(
        st.sampled_from(_BUILT_IN).map(lambda kind: kind("strange")),
        st.sampled_from(_STRANGE).map(lambda make: make()),
    )
