"""The scope of an answer that asks to wait: one resource, one operation, a provider, or everything. Pure.

The code in the answer decides first, then its headers, then the path that was called ("Understand how Azure Resource Manager
throttles requests", "Troubleshooting API throttling errors" of Compute, and answers in public issues, November 2026). An
unknown answer gets the smallest scope: its caller meets it again, and all other calls go on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum

from msgspec import Struct

from scaling.calls.budgets import Call

ASKS_TO_WAIT = frozenset({429, 503})
"""Statuses whose Retry-After may hold for other calls, too."""

DEFAULT_WAIT = 10.0
"""Seconds to wait after a 429 that does not say how long: less than the shortest interval of reads, 15 s."""


class Scope(IntEnum):
    """Which calls an answer asks to wait, from one resource to all: the index of the call's `scopes`."""

    RESOURCE = 0
    OPERATION = 1
    """One verb on one type of a provider in a subscription; lists and single reads are two operations."""
    ACTION = 2
    """The same, lists and single reads together."""
    PROVIDER = 3
    SUBSCRIPTION = 4
    TENANT = 5


class ThrottlingWait(Struct, frozen=True):
    """An answer asks the calls of a scope to wait for some seconds. Unless the answer itself names the scope (`certain`), a
    second such answer below the next wider scope widens it.
    """

    seconds: float
    scope: Scope
    certain: bool


_MANAGEMENT = frozenset({"management_reads", "management_writes"})

_OF_RESOURCE = re.compile(
    r"another ?operation|exclusive lock|scale changes|\b59205\b|\b03002\b|reserved instance servers|exceeding approved",
    re.IGNORECASE,
)
"""Answers of providers with 429 that are about the one resource, and throttle nobody."""

_OF_NAMESPACE = re.compile(r"\b50009\b|namespace[^\"]{0,300}\bthrottled", re.IGNORECASE)
"""Of Service Bus: the credits of the namespace are used up ("Throttling operations on Azure Service Bus")."""

_BUSY = re.compile(r"busy|throttl", re.IGNORECASE)

_BY_CODE = (
    (re.compile(r"TenantRequestsThrottled"), Scope.TENANT),
    # Its message may name one operation: "... and operation 'POST/SUBSCRIPTIONS/.../START' exceeded".
    (re.compile(r"for subscription\b[^\"]{0,80}\band operation\b", re.IGNORECASE), Scope.OPERATION),
    (re.compile(r"SubscriptionRequestsThrottled"), Scope.SUBSCRIPTION),
    (
        re.compile(r"number of (read|write|delete) requests for subscription", re.IGNORECASE),
        Scope.SUBSCRIPTION,
    ),
    (re.compile(r"excessive volume of traffic", re.IGNORECASE), Scope.SUBSCRIPTION),
    (re.compile(r"ResourceCollectionRequestsThrottled"), Scope.OPERATION),
    (re.compile(r"ResourceRequestsThrottled"), Scope.ACTION),
    # Compute: the sentence beside it says subscription, and means the group of operations.
    (re.compile(r"\bTooManyRequests\b|OperationNotAllowed|HighCost|LowCost"), Scope.OPERATION),
    (re.compile(r"ServerBusy|ServerTimeout"), Scope.OPERATION),
)
"""The first that the text holds decides."""

_UNSURE = frozenset({Scope.RESOURCE, Scope.OPERATION})

_SECONDS_IN_TEXT = re.compile(r"after '?(\d{1,6})'? seconds", re.IGNORECASE)


def asked(
    call: Call, status: int, headers: Mapping[str, str], text: str, retry_after: float | None
) -> ThrottlingWait | None:
    """What the answer to `call` asks of other calls, or None where it asks nothing. `headers` are looked up in any case;
    `retry_after` are the seconds that they ask for.
    """
    if status not in ASKS_TO_WAIT:
        return None
    seconds = _seconds(status, retry_after, text)
    if not seconds:
        return None
    api = call.charges[0][0]
    if api not in _MANAGEMENT:
        everything = api == "service_bus" and (status == 429 or _is_of_namespace(call, text))
        return ThrottlingWait(seconds, Scope.TENANT if everything else Scope.RESOURCE, certain=everything)
    if _OF_RESOURCE.search(text):
        return None
    writes = api == "management_writes"
    named = next((scope for pattern, scope in _BY_CODE if pattern.search(text)), None)
    if named is None and status == 429:
        named = _by_headers(headers, writes=writes)
    if named is not None:
        return ThrottlingWait(seconds, named, certain=named not in _UNSURE)
    # Providers answer changes with 429 for much that is of the one resource, and a 503 may be one stamp's.
    scope = Scope.OPERATION if status == 429 and not writes else Scope.RESOURCE
    return ThrottlingWait(seconds, scope, certain=writes)


def _is_of_namespace(call: Call, text: str) -> bool:
    """Whether the answer is about the whole namespace: a list of its entities is."""
    lists = "/$resources/" in call.scopes[0] and _BUSY.search(text)
    return bool(lists or _OF_NAMESPACE.search(text))


def _seconds(status: int, header: float | None, text: str) -> float | None:
    """The longer wait of header and text, which differ in some answers."""
    named = [float(seconds) for seconds in _SECONDS_IN_TEXT.findall(text)]
    if header is None and not named:
        return DEFAULT_WAIT if status == 429 else None
    return max([header or 0.0, *named])


def _by_headers(headers: Mapping[str, str], *, writes: bool) -> Scope | None:
    """The scope whose tokens are used up by the headers of the answer."""
    if re.search(r";\s*0\b", _all_of(headers, "x-ms-ratelimit-remaining-resource")):
        return Scope.OPERATION
    kind = "writes" if writes else "reads"
    for name, scope in (
        (f"tenant-{kind}", Scope.TENANT),
        (f"subscription-{kind}", Scope.SUBSCRIPTION),
        (f"subscription-global-{kind}", Scope.SUBSCRIPTION),
    ):
        if str(headers.get(f"x-ms-ratelimit-remaining-{name}") or "").strip() in {"0", "-1"}:
            return scope
    return None


def _all_of(headers: Mapping[str, str], name: str) -> str:
    """All values of a header; `get` returns the first one only in some transports."""
    values = headers.getall(name, []) if hasattr(headers, "getall") else [headers.get(name)]
    return ", ".join(str(value) for value in values if value)
