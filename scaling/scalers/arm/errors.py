"""What went wrong in a call to Resource Manager, by who must act.

The App Service provider words its errors differently from Resource Manager: codes begin with capitals,
sit deep in `Details`, and "another operation is in progress" comes as 409 or as 429. So the texts are
read, too.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Any

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from msgspec import Struct

from scaling.calls.limiter import CallRefusedError
from tidemark.foundation.azure.connections import describe_identity_error
from tidemark.foundation.azure.retry_after import retry_after
from tidemark.foundation.sanitize import describe_error, error_text, shorten

_CODE = re.compile(r'"[Cc]ode"\s*:\s*"(\w+)"')
_LOCKS = frozenset({"ScopeLocked", "CannotOverwriteLockedResource"})
# Answers with status 409 that waiting does not mend (the common errors of Resource Manager). What is not listed
# here, and an answer without a code, may be another operation in progress: it is tried again.
_FOR_GOOD = frozenset(
    {
        "DisallowedOperation",
        "DisallowedProvider",
        "MissingSubscriptionRegistration",
        "QuotaExceeded",
        "ReadOnlyDisabledSubscription",
        "ResourceGroupBeingDeleted",
        "SkuNotAvailable",
        "SubscriptionNotRegistered",
        "SubscriptionRequestsBlocked",
    }
)
_EXTENDED_CODE = re.compile(r'"ExtendedCode"\s*:\s*"(\w+)"')
_TOLD_MAXIMUM = re.compile(r"maximum[^\d\"]{0,40}(\d+)", re.IGNORECASE)
_TOLD_AVAILABLE = (
    re.compile(r"add extra (\d+) instance", re.IGNORECASE),
    re.compile(r"(\d+) instances are available", re.IGNORECASE),
)


class Kind(Enum):
    BUSY = auto()  # another operation on the plan runs: wait
    LOCKED = auto()  # a lock of the resource, its group or its subscription forbids changes
    THROTTLED = auto()  # too many calls: wait
    OVER_MAXIMUM = auto()  # more instances than the SKU or subscription allows: ask for fewer
    NO_SERVERS = auto()  # the stamp lacks servers: ask for what it has
    TOO_MANY_CHANGES = auto()  # the plan's hourly limit of changes
    FORBIDDEN = auto()  # a role is missing
    NO_IDENTITY = auto()  # no token could be had
    NOT_FOUND = auto()
    INVALID = auto()  # another refusal for good
    UNKNOWN = auto()  # connection lost, server error, operation failed: the outcome must be read back


class Failure(Struct, frozen=True):
    """`number` is the maximum that the answer names (OVER_MAXIMUM) or the servers still available (NO_SERVERS)."""

    kind: Kind
    story: str
    retry_after: float | None = None
    number: int | None = None


def classify(error: Exception) -> Failure:
    """The failure behind an error of an SDK, or any other around a call: then nothing is known of its outcome."""
    if isinstance(error, CallRefusedError):
        return Failure(Kind.THROTTLED, error.message, error.retry_after)
    response: Any = getattr(error, "response", None)
    status: Any = getattr(response, "status_code", None)
    if isinstance(error, ClientAuthenticationError) and status not in {401, 403}:  # the identity endpoint's
        return Failure(Kind.NO_IDENTITY, describe_identity_error(error))
    if response is None or not isinstance(error, AzureError):
        return Failure(Kind.UNKNOWN, _one_line(_words(error)) or type(error).__name__)
    text = _text(response)
    message = _story(error, text)
    asked = retry_after(response.headers)
    kind = (
        _by_text(text)
        or _by_code(text, status)
        or _BY_STATUS.get(status, Kind.INVALID if 400 <= status < 500 else Kind.UNKNOWN)
    )
    return Failure(kind, message, asked, _number(kind, message))


def _by_text(text: str) -> Kind | None:
    match, lower = _EXTENDED_CODE.search(text), text.casefold()
    code = match.group(1) if match else None
    return next((kind for number, words, kind in _WORDINGS if code == number or words in lower), None)


_WORDINGS = (
    ("59205", "another operation is in progress", Kind.BUSY),
    ("03002", "workers exceeds the maximum", Kind.OVER_MAXIMUM),
    ("", "not enough available reserved instance servers", Kind.NO_SERVERS),
    ("", "maximum amount of scale changes", Kind.TOO_MANY_CHANGES),
    ("", "anotheroperation", Kind.BUSY),  # codes of other providers, also with 429
    ("", "cannot acquire exclusive lock", Kind.BUSY),  # of the plan, with 429
    ("", "exceeding approved", Kind.INVALID),  # a quota of cores, with the 409 of what waiting resolves
)
"""The provider's own code where it has one, its words, and what they mean."""


def _by_code(text: str, status: int) -> Kind | None:
    """What the codes of a 409 say; Resource Manager uses it for much besides "another operation is in progress"."""
    if status != 409:
        return None
    codes = set(_CODE.findall(text))
    if codes & _LOCKS:
        return Kind.LOCKED
    return Kind.INVALID if codes & _FOR_GOOD else None


_BY_STATUS: dict[int, Kind] = {
    401: Kind.FORBIDDEN,
    403: Kind.FORBIDDEN,
    404: Kind.NOT_FOUND,
    408: Kind.UNKNOWN,
    409: Kind.BUSY,
    412: Kind.BUSY,  # somebody changed the resource since it was read
    429: Kind.THROTTLED,
}


def _number(kind: Kind, message: str) -> int | None:
    if kind is Kind.OVER_MAXIMUM:
        number = _TOLD_MAXIMUM.search(message)
        return int(number.group(1)) if number else None
    if kind is Kind.NO_SERVERS:
        number = next((match for pattern in _TOLD_AVAILABLE if (match := pattern.search(message))), None)
        return int(number.group(1)) if number else None
    return None


def _text(response: Any) -> str:
    try:
        return str(response.text())
    except Exception:  # a body that cannot be read has no text; the status still speaks
        return ""


def _story(error: Exception, text: str) -> str:
    status = error.status_code if isinstance(error, HttpResponseError) else None
    message = re.search(r'"[Mm]essage"\s*:\s*"((?:[^"\\]|\\.)*)"', text)
    words = message.group(1) if message else _one_line(error_text(error))
    return shorten(f"{status}: {words}" if status and status >= 400 else words, 400)


def _words(error: Exception) -> str:
    """Those of an SDK's error, and of another one with its kind: `KeyError: 'status'` says more than `'status'`."""
    return error_text(error) if isinstance(error, AzureError | TimeoutError) else describe_error(error)


def _one_line(text: str) -> str:
    return shorten(" ".join(text.split()), 400)
