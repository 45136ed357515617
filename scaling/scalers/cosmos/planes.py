"""The two ways to read and set throughput: by key on the data plane, by identity through Resource Manager.

Neither can guard a change with an ETag. Resource Manager has the limits. On the data plane the offer has the floor and
whether a change is pending; the instant maximum follows from the number of a container's partitions.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import msgspec
from azure.core.exceptions import AzureError
from msgspec import Struct, structs

from scaling.scalers.arm.errors import Failure, Kind
from scaling.scalers.arm.errors import classify as classify_call
from scaling.scalers.arm.resources import THROUGHPUT_VERSION
from scaling.scalers.arm.states import switch_of
from scaling.scalers.carrying_out import Range, TargetRefusedError
from scaling.scalers.cosmos.throughput import (
    PARTITION_MAXIMUM,
    Throughput,
    ThroughputId,
    absolute_minimum,
    instant_at_least,
    label_of,
)
from scaling.scalers.resource.resource import at
from tidemark.foundation.azure.connections import transport_options
from tidemark.foundation.azure.cosmos_account import account_key, account_name
from tidemark.foundation.azure.opening import LazyClient

if TYPE_CHECKING:
    from azure.cosmos.aio import ContainerProxy, CosmosClient, DatabaseProxy

    from scaling.scalers.arm.shared import ArmAccess

PARTITIONS_AGE = 300.0
"""Seconds the number of partitions is remembered: it changes with splits, which take longer."""

NO_OFFER = (
    "it has no throughput of its own: it shares its database's, or the account is serverless. Name the "
    "database alone to set shared throughput"
)


_RANGE = re.compile(r"values between (\d+) and (\d+)")
_MINIMUM = re.compile(r"less than required minimum throughput (\d+)")
_NOISE = re.compile(r"(\\r|\\n|\r|\n|\s*,?\s*ActivityId:).*", re.DOTALL)


class Plane(ABC):
    """Reads and sets the throughput of one database or container."""

    label: str
    account: str
    """What the update budget is kept for."""
    role: str
    """What a caller who is refused needs."""

    @abstractmethod
    async def read(self, now: float) -> Throughput:
        """Raises TargetRefusedError, AzureError, and ValueError naming a bad setting or an odd answer."""

    @abstractmethod
    async def write(self, value: int, seen: Throughput) -> None:
        """Asks for `value` of the kind `seen` has, and waits until the platform has taken it. Raises AzureError."""

    @abstractmethod
    async def aclose(self) -> None:
        """Closes what belongs to this one alone."""


class ManagementPlane(Plane):
    """By identity, through Resource Manager."""

    role = "the 'Cosmos DB Operator' role on the account"

    def __init__(self, resource: ThroughputId, arm: Callable[[], ArmAccess], *, poll_interval: float) -> None:
        self.label = label_of(resource.account, resource.database, resource.container)
        self.account = resource.account
        self._path = f"{resource.quoted}/throughputSettings/default"
        self._poll_interval = poll_interval
        self._arm = arm

    async def read(self, now: float) -> Throughput:  # nothing is remembered
        answer = await (await self._arm().resources.get()).get(self._path, THROUGHPUT_VERSION)
        return throughput_of(at(answer, "properties.resource"))

    async def write(self, value: int, seen: Throughput) -> None:
        asked: Mapping[str, Any] = (
            {"autoscaleSettings": {"maxThroughput": value}} if seen.autoscale else {"throughput": value}
        )
        client = await self._arm().resources.get()
        document = {"properties": {"resource": asked}}
        operation = await client.change("PUT", self._path, THROUGHPUT_VERSION, document)
        await client.finish(operation, self._poll_interval)

    async def aclose(self) -> None:
        """There is nothing: the client is that of all."""


class _Autoscale(Struct, frozen=True, rename="camel"):
    max_throughput: int | None = None
    target_max_throughput: int | None = None


class _Resource(Struct, frozen=True, rename="camel"):
    """Throughput in an answer of Resource Manager. Limits are strings, and may be missing."""

    throughput: int | None = None
    autoscale_settings: _Autoscale | None = None
    minimum_throughput: str | int | None = None
    instant_maximum_throughput: str | int | None = None
    soft_allowed_maximum_throughput: str | int | None = None
    offer_replace_pending: str | bool | None = None


def throughput_of(answer: Any) -> Throughput:
    """Raises ValueError for an answer of another form."""
    resource = msgspec.convert(answer, _Resource, strict=False)
    settings = resource.autoscale_settings
    value = resource.throughput if settings is None else settings.max_throughput
    if value is None:
        raise ValueError("the answer holds neither throughput nor a maximum of autoscale")
    pending, unknown = switch_of(resource.offer_replace_pending)
    floor, instant = _number(resource.minimum_throughput), _number(resource.instant_maximum_throughput)
    return Throughput(
        value=value,
        autoscale=settings is not None,
        floor=floor or absolute_minimum(autoscale=settings is not None),
        instant=instant or instant_at_least(value),
        maximum=_number(resource.soft_allowed_maximum_throughput),
        pending=pending,
        unknown_state=unknown,
        target=None if settings is None else settings.target_max_throughput,
    )


def _number(text: str | int | None) -> int | None:
    """A limit; None if it is missing or empty."""
    return int(text) or None if text is not None and str(text).strip().isdigit() else None


class DataPlane(Plane):
    """By key. Opens its client when first used. The SDK refuses to set throughput with an identity, and so does the service."""

    role = "an account key that may write (not a read-only key)"

    def __init__(
        self, connection: str, database: str, container: str | None, settings: Mapping[str, str]
    ) -> None:
        """Raises ValueError naming what is wrong with the connection's setting."""
        self._url, self._key = account_key(settings, connection)
        self.account = account_name(self._url)
        self.label = label_of(self.account, database, container)
        self._database = database
        self._container = container
        self._settings = settings
        self._client: LazyClient[CosmosClient] = LazyClient(
            self._new_client, enter=methodcaller("__aenter__")
        )  # which reads the account
        self._partitions: tuple[int, float] | None = None

    async def read(self, now: float) -> Throughput:
        owner = await self._owner()
        try:
            throughput = await owner.get_throughput()
        except (AttributeError, IndexError):  # 4.17 stumbles over the 404/10004 it makes up for no offer
            raise TargetRefusedError(f"{self.label}: {NO_OFFER}") from None
        maximum = throughput.auto_scale_max_throughput
        value = maximum if maximum is not None else throughput.offer_throughput
        if value is None:
            raise ValueError("the offer holds neither throughput nor a maximum of autoscale")
        headers = await self._offer_headers(owner, throughput.properties or {})
        floor = _number(headers.get("x-ms-cosmos-min-throughput"))
        pending, unknown = switch_of(headers.get("x-ms-offer-replace-pending"))
        return Throughput(
            value=value,
            autoscale=maximum is not None,
            floor=floor or absolute_minimum(autoscale=maximum is not None),
            instant=await self._instant(now, value),
            pending=pending,
            unknown_state=unknown,
        )

    async def _offer_headers(
        self, owner: ContainerProxy | DatabaseProxy, offer: Mapping[str, Any]
    ) -> Mapping[str, str]:
        """The headers of a read of the offer, for which the SDK has no method of its own.

        None with a later SDK that lacks what this takes; then the platform's refusals name the floor.
        """
        path = str(offer.get("_self", "")).strip("/")
        try:
            read = owner.client_connection.Read
            answer = await read(f"/{path}/", "offers", path.rpartition("/")[2].lower(), None)
            return answer.get_response_headers()
        except (AttributeError, TypeError):
            return {}

    async def write(self, value: int, seen: Throughput) -> None:
        from azure.cosmos import ThroughputProperties  # half a second, only when needed

        owner = await self._owner()
        wanted = ThroughputProperties(auto_scale_max_throughput=value) if seen.autoscale else value
        try:
            await owner.replace_throughput(wanted)
        except KeyError:  # the SDK's own, when the offer it has just read is a manual one
            raise AzureError("the throughput was switched between manual and autoscale meanwhile") from None

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _instant(self, now: float, value: int) -> int:
        """Partitions times what each carries. Those of a database are not known: it has as many as `value` needs."""
        if self._container is None:
            return instant_at_least(value)
        known = self._partitions
        if known is None or known[1] + PARTITIONS_AGE <= now:
            ranges = (await self._proxy()).read_feed_ranges(force_refresh=True)
            self._partitions = known = (sum([1 async for _ in ranges]), now)
        return known[0] * PARTITION_MAXIMUM

    async def _owner(self) -> ContainerProxy | DatabaseProxy:
        if self._container is not None:
            return await self._proxy()
        return (await self._client.get()).get_database_client(self._database)

    async def _proxy(self) -> ContainerProxy:
        database = (await self._client.get()).get_database_client(self._database)
        return database.get_container_client(str(self._container))

    def _new_client(self) -> CosmosClient:
        """A client of its own, because here the scaler handles refusals, and for records the SDK does.

        `retry_total=0` alone leaves nine repetitions of a 429.
        """
        from azure.cosmos.aio import CosmosClient  # half a second, only when needed

        return CosmosClient(
            self._url,
            self._key,
            retry_total=0,
            retry_throttle_total=-1,
            connection_timeout=5,
            **transport_options(self._settings),
        )


def classify(error: Exception) -> Failure:
    """The failure behind an SDK error; 423 means that another change is being carried out."""
    failure = classify_call(error)
    status = getattr(getattr(error, "response", None), "status_code", None)
    kind = Kind.BUSY if status == 423 else failure.kind
    message = _NOISE.sub("", failure.story.replace('\\"', '"')).removeprefix("Message: ")
    return structs.replace(failure, kind=kind, story=message)


def accepted_range(message: str) -> Range | None:
    """The range named by a refusal of an amount; None for another refusal."""
    if numbers := _RANGE.search(message):
        return Range(int(numbers[1]), int(numbers[2]))
    if numbers := _MINIMUM.search(message):
        return Range(int(numbers[1]))
    return None
