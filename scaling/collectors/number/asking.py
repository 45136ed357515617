"""The base of collectors of one number: how they ask, and which part of an answer is a number.

All of them speak plain HTTP through the one guard for configured addresses (`tidemark.foundation.http.outward`), so that no SDK
has to be installed and loaded for a metric.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from scaling.calls.limiter import limiter_of
from scaling.collectors.azure_entity import DEADLINE, AzureEntityCollector
from scaling.ports import CollectError, Reading
from scaling.scalers.arm.clients import endpoint, identity_of
from tidemark.foundation.azure.connections import IdentityCredential
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.http.outward import (
    TIMEOUT,
    TRUSTED,
    Answer,
    Outward,
    check_address,
    trusted_hosts,
)
from tidemark.foundation.sanitize import sanitize_line

CLOUDS = ("com", "us", "cn")
"""What the hosts of Azure Monitor end with in the public cloud, the US government's, and China's."""

Number = float | None
"""The value in an answer; None for an answer without a value, which is not zero."""

LIMIT = 4 << 20
"""Bytes of an answer: one about 50 resources, of five grains each, has a tenth of that."""

ATTEMPTS = 2
"""Requests for one answer: after a broken connection a second one is made, after a refusal none."""

MAX_STORY = 200
"""Characters shown of the words with which a service refuses."""


class RefusedError(Exception):
    """An answer other than 200, with the attributes that `AzureEntityCollector` puts into words."""

    def __init__(self, answer: Answer) -> None:
        self.message = _story(answer)
        super().__init__(self.message)
        self.status = answer.status
        self.response = SimpleNamespace(status_code=answer.status, headers=answer.headers)


class Asking:
    """Gets documents, with the app's identity where a service takes one."""

    def __init__(self, settings: Mapping[str, str], *own: str) -> None:
        """`own` are addresses of services that app settings name (of a local stack, say): they are trusted as such."""
        trusted = [settings.get(TRUSTED, ""), *(urlsplit(address).netloc for address in own)]
        settings = {**settings, TRUSTED: ",".join(trusted)}
        self._settings = settings
        self._outward = Outward(settings)
        self._limiter = limiter_of(settings)
        self._identity: IdentityCredential | None = (
            None  # which keeps tokens until shortly before they expire
        )
        self._fetching = asyncio.Lock()

    async def close(self) -> None:
        await self._outward.aclose()

    async def document(
        self,
        method: str,
        url: str,
        *,
        setting: str,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        scope: str = "",
        attempts: int = ATTEMPTS,
        patience: float = TIMEOUT,
    ) -> Any:
        """The JSON of an answer 200. `scope` is what a token is asked for; a body is sent as JSON. Waits `patience` seconds for
        each of so many `attempts`. Raises what `content` raises, and ValueError for what is no JSON.
        """
        check_address(url, setting, trusted_hosts(self._settings))  # before a token is fetched for it
        sent = dict(headers or {})
        if scope:
            sent["Authorization"] = f"Bearer {await self._token(scope)}"
        data = None
        if body is not None:
            sent["Content-Type"], data = "application/json", json.dumps(body).encode()
        body_read = await self.content(
            method, url, setting=setting, headers=sent, body=data, attempts=attempts, patience=patience
        )
        try:
            # NaN and infinity are no JSON. As numbers, maxima and comparisons would leave them out without a word.
            return json.loads(body_read, parse_constant=str)
        except (ValueError, RecursionError):
            raise ValueError(f"the answer of {len(body_read)} bytes is no JSON") from None

    async def content(
        self,
        method: str,
        url: str,
        *,
        setting: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        attempts: int = ATTEMPTS,
        patience: float = TIMEOUT,
        limit: int = LIMIT,
    ) -> bytes:
        """The bytes of an answer 200, at most `limit`. `setting` names where the address stands.

        Raises RefusedError for another answer, UnavailableError where none came, AddressError for an address that is not
        called.
        """
        for attempt in range(1, attempts + 1):
            call = await self._limiter.enter(method, url)
            try:
                answer = await self._outward.ask(
                    method, url, setting=setting, headers=headers, body=body, timeout=patience, limit=limit
                )
                self._limiter.note_answer(
                    call, answer.status, answer.headers, answer.body.decode(errors="replace")
                )
                break
            except UnavailableError:
                if attempt == attempts:
                    raise
        if answer.status == 401:
            self._identity = None  # another token may be good
        if answer.status != 200:
            raise RefusedError(answer)
        return answer.body

    async def _token(self, scope: str) -> str:
        async with self._fetching:  # hundreds of metrics begin at once, and one token does for all
            if self._identity is None:
                self._identity = identity_of(self._settings)
            return (await self._identity.get_token(scope)).token


def _story(answer: Answer) -> str:
    """The words of a refusal: {error: {message}}, {error} or {message}. No other body is shown, because it may hold
    anything.
    """
    if 300 <= answer.status < 400 and (location := answer.headers.get("Location")):
        host = urlsplit(location).hostname or "an address on the same host"
        return sanitize_line(f"it redirects to {host}; redirects are not followed")
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        return "without words"
    message = document.get("error", document) if isinstance(document, Mapping) else None
    while isinstance(message, Mapping):
        inner = message.get("innererror")
        deeper = inner if isinstance(inner, Mapping) and inner.get("message") else None
        message = deeper or message.get("message")
    return sanitize_line(message)[:MAX_STORY] if isinstance(message, str) and message else "without words"


def cloud_of(settings: Mapping[str, str]) -> str:
    """The cloud that the app's Resource Manager is in, as in CLOUDS. Raises ValueError for a wrong setting."""
    host = urlsplit(endpoint(settings)).hostname or ""
    return (
        "cn" if host.endswith(".chinacloudapi.cn") else "us" if host.endswith(".usgovcloudapi.net") else "com"
    )


class NumberCollector(AzureEntityCollector[Asking]):
    """Reads one number by one request; a read without a value raises CollectError, unless `empty` says what it means."""

    COUNTS: ClassVar[tuple[str, ...]] = ("value",)
    DEFAULT_COUNT: ClassVar[str] = "value"
    HOW: ClassVar[tuple[str, ...]] = ("delay", "empty", "azure")

    def __init__(
        self,
        label: str,
        settings: Mapping[str, str],
        *,
        endpoint: str,
        empty: float | None,
        deadline: float = DEADLINE,
    ) -> None:
        super().__init__(label, settings, endpoint=endpoint, deadline=deadline)
        self._empty = empty

    @classmethod
    def together(cls, collectors: Sequence[NumberCollector]) -> None:
        """Lets all collectors of one kind ask with the same connections and tokens."""
        cls._share(collectors)

    def _open(self) -> Asking:
        return Asking(self._settings)

    async def _number(self, client: Asking, now: float, /) -> Number:
        """The number, or None for an answer without one. May raise what `Asking` raises, and ValueError."""
        raise NotImplementedError

    def _time_of(self, now: float) -> float:
        return now

    async def _read(self, client: Asking, now: float, /) -> Reading:
        value = await self._number(client, now)
        if value is None:
            value = self._empty
        if value is None:
            raise CollectError(
                f"{self._label}: the answer holds no value, which is not zero; `empty` can say what it means"
            )
        return Reading(self._time_of(now), {"value": value})


def number(answered: Any, what: str, *, in_text: bool = False) -> Number:
    """`found` as a number; with `in_text` a text of one is, too. Raises ValueError naming `what`, and what was found there,
    for anything but a finite number or nothing.
    """
    if answered is None:
        return None
    try:
        is_number = isinstance(answered, int | float) or (in_text and is_number_text(answered))
        value = float(answered) if is_number and not isinstance(answered, bool) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        shown = str(answered) if in_text else json.dumps(answered)
        raise ValueError(f"{what} is {sanitize_line(shown)[:60]}; accepted is one finite number")
    return value


def is_number_text(value: object) -> bool:
    """Whether it is a text that stands for a finite number. Python reads more than services write: `1_000`, and digits of other scripts."""
    return isinstance(value, str) and _NUMBER.fullmatch(value) is not None and math.isfinite(float(value))


_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")


def digest(params: Struct) -> str:
    """A digest that distinguishes options without showing them: an address may hold what no log should show."""
    return hashlib.sha256(msgspec.json.encode(params, order="deterministic")).hexdigest()[:12]
