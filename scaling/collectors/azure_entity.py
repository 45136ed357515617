"""The base of collectors that read over the network: it opens the client late, keeps a deadline, and words errors."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic

from azure.core.exceptions import ClientAuthenticationError, ResourceNotFoundError
from msgspec import Meta

from scaling.calls.turns import collecting, seconds_since
from scaling.ports import CollectError, Reading
from tidemark.foundation.azure.opening import Client, LazyClient
from tidemark.foundation.azure.retry_after import retry_after
from tidemark.foundation.sanitize import error_text, shorten, without_tls_object

Name = Annotated[str, Meta(min_length=1)]  # an option that names something

CLOCKS = 5.0
"""Seconds by which a message may be ahead of our clock and still have come just now. Chosen: well above what synchronised clocks differ."""

EARLY = 0.9
"""Share of the time between two reads after which one is due. Chosen: timers fire with jitter, and no read is to wait for the next one."""

_GONE = ": does not exist"

DEADLINE = 20.0
"""Seconds for one read with all its requests and retries: a third of the one-minute tick."""


class GoneError(CollectError):
    """The entity does not exist."""


class AzureEntityCollector(ABC, Generic[Client]):
    """Reads one entity through one SDK client, which the first read opens and `aclose` closes."""

    ROLE: str
    """The least role that may read the counts, named when the read is forbidden."""

    def __init__(
        self, label: str, settings: Mapping[str, str], *, endpoint: str, deadline: float = DEADLINE
    ) -> None:
        """`endpoint` names the server that several entities share: their reads may wait for each other."""
        self.endpoint = endpoint
        self._label = label
        self._settings = settings
        self._deadline = deadline
        self._client = LazyClient(self._open)
        self._users: set[object] = {self}
        self._every = 0.0
        """Seconds between two reads: at a collection in between the last reading is the newest that there is."""
        self._last: Reading | None = None

    @classmethod
    def _share(cls, collectors: Sequence[AzureEntityCollector[Any]]) -> None:
        """Lets collectors of one kind use the client of the first; the last one that is closed closes it."""
        client, users = collectors[0]._client, set[object](collectors)
        for collector in collectors:
            collector._client, collector._users = client, users

    @abstractmethod
    def _open(self) -> Client:
        """Imports the SDK and builds a client; runs in a thread. Raises ValueError naming a bad setting."""

    @abstractmethod
    async def _read(self, client: Client, now: float, /) -> Mapping[str, float] | Reading:
        """All counts by name as of `now`, or a reading that says more. May raise the SDK's errors."""

    async def collect(self, *, now: float) -> Reading:
        """Reads the entity within `deadline` seconds. Raises CollectError naming the entity."""
        if self._last is not None and 0.0 <= now - self._last.at < EARLY * self._every:
            return self._last
        try:
            with collecting():
                async with asyncio.timeout(self._deadline):
                    result = await self._read(await self._client.get(), now)
                    self._last = result if isinstance(result, Reading) else Reading(at=now, values=result)
                    return self._last
        except CollectError:
            raise
        except TimeoutError:
            raise CollectError(f"{self._label}: no answer within {self._deadline:g} s") from None
        except Exception as error:  # whatever an SDK raises, this metric is unknown, and the others are read
            explanation = self._explain(error)
            raise (GoneError if explanation == f"{self._label}{_GONE}" else CollectError)(
                explanation
            ) from error

    @property
    def label(self) -> str:
        return self._label

    def describe(self, about: Any, now: float) -> None:
        """Takes what a list of entities said of this one, as of `now`. Nothing unless a class has use for it."""

    def _age(self, enqueued_at: float | None, now: float) -> float:
        """Seconds since a message came by the service's clock; 0 where there is none. `now` is when the collection began.

        Raises CollectError where it came so much later than now by our clock that the age is anybody's guess.
        """
        age = 0.0 if enqueued_at is None else now + seconds_since() - enqueued_at
        if age < -CLOCKS:
            raise CollectError(
                f"{self._label}: oldest_age cannot be known: the message came {-age:.0f} s after now by this machine's clock, so one of "
                "the clocks is off"
            )
        return max(0.0, age)

    async def aclose(self) -> None:
        self._users.discard(self)
        if not self._users:
            await self._client.aclose()

    def _explain(self, error: Exception, label: str = "", role: str = "") -> str:
        """The error in words. `label` and `role` are those of the entity, unless another one failed."""
        label, role = label or self._label, role or self.ROLE
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        words = without_tls_object(str(getattr(error, "message", None) or error_text(error)))
        details = shorten(" ".join(words.split()), 300)
        wait = retry_after(getattr(response, "headers", None) or {})
        after = f"; it asks to wait {wait:.0f} s" if wait else ""
        if status == 404 or isinstance(
            error, ResourceNotFoundError
        ):  # Service Bus answers 200 with an empty feed
            return f"{label}{_GONE}"
        if status in {401, 403} or isinstance(error, ClientAuthenticationError):
            return f"{label}: access refused; reading the counts needs {role} ({details})"
        if status == 429 or (status == 503 and "busy" in details.casefold()):
            return f"{label}: the service throttles these requests{after} ({details})"
        if status is not None:
            return f"{label}: the service answered {status}{after} ({details})"
        return f"{label}: {details or type(error).__name__}"
