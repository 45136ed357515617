"""Containers in which an earlier start may have left positions: BLOB_CONTAINER or the storage connection may have been another one."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import compress
from typing import Any

from azure.core.exceptions import AzureError
from azure.storage.blob.aio import BlobServiceClient

from consumer.model import Stream
from tidemark.foundation.azure.addresses import address_of
from tidemark.foundation.azure.connections import Settings, storage_endpoint, transport_options
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.gathering import gather
from tidemark.foundation.pacing import patience

MOST = 100
"""Containers that a start without positions looks into. Chosen: a request each, once in the life of a consumer group."""
FEW = 8
"""As `MOST`, where positions are stored. Chosen: these requests come at every start, and tell only of a change and back."""
WITHIN = 10.0
"""Seconds for all of them. Chosen: a start without positions waits for it, unless it begins at the earliest event."""
_AT_ONCE = 16
_LISTED = 5000  # a page, as large as the service gives it
_LIKELY = re.compile("checkpoint|tidemark|eventhub|consumer")
_OF_SERVICES = re.compile(r"\$|azure-webjobs-|insights-|bootdiagnostics-|azureml")
_IDENTITY = re.compile(r"(.+)(?:__|:)(?:blobServiceUri|accountName)", re.IGNORECASE)
_OF_STORAGE = re.compile(
    r"(?:^|;)\s*(?:AccountName|BlobEndpoint)=|^UseDevelopmentStorage=true", re.IGNORECASE
)

_log = logging.getLogger("tidemark.consumer")


async def containers_with_positions(
    settings: Settings, connection: str, stream: Stream, own: str, *, is_first: bool = True
) -> list[str]:
    """Names of other containers than `own` that have positions of the stream. None where the account does not list its containers to
    this identity, or not in time. `is_first`: none are stored in `own`.
    """
    try:
        async with asyncio.timeout(WITHIN), _service(settings, connection) as service:
            names: list[str] = []
            async for container in service.list_containers(results_per_page=_LISTED):
                names.append(container.name)
                if len(names) == _LISTED:
                    break
            names = _likely_first(names, own)[: MOST if is_first else FEW]
            has_positions = [(service, name, stream) for name in names]
            return list(compress(names, await gather(_has_positions, has_positions, at_once=_AT_ONCE)))
    except Exception as error:  # only a hint: what decides a start is in its own container
        _log.debug("other containers cannot be looked into: %s", error)
        return []


async def accounts_with_positions(
    settings: Settings, connection: str, stream: Stream, name: str
) -> list[str]:
    """Other storage connections of the settings in whose account the container of this `name` has positions of the stream."""

    async def has_positions(other: str) -> bool:
        with suppress(Exception):  # as above
            async with asyncio.timeout(WITHIN), _service(settings, other) as service:
                return await _has_positions((service, name, stream))
        return False

    others = other_accounts(settings, connection)[:FEW]
    return list(compress(others, await gather(has_positions, others, at_once=_AT_ONCE)))


def other_accounts(settings: Settings, connection: str) -> list[str]:
    """Names of other connections than this one in the settings, to other storage accounts."""
    names = [match[1] for name in settings if (match := _IDENTITY.fullmatch(name))]
    names += [name for name, value in settings.items() if _OF_STORAGE.search(value)]
    seen = {address_of(settings, connection, "blob")}
    others = []
    for name in sorted({*names}):
        with suppress(SettingsError):  # of one that cannot be opened
            storage_endpoint(settings, name, "blob")
            if (account := address_of(settings, name, "blob")) not in seen:
                seen.add(account)
                others.append(name)
    return others


@asynccontextmanager
async def _service(settings: Settings, connection: str) -> AsyncIterator[Any]:
    timeouts = {**patience.held().timeouts(), "retry_total": 0}
    client = storage_endpoint(settings, connection, "blob").client(
        BlobServiceClient, **timeouts, **transport_options(settings)
    )
    async with client as service:
        yield service


async def _has_positions(where: tuple[Any, str, Stream]) -> bool:
    """Those of a consumer of this kind: the Functions host and other programs have the same layout, and no epoch."""
    service, name, stream = where
    with suppress(AzureError):  # this identity may not read it
        container = service.get_container_client(name)
        folder = stream.folder("checkpoint")
        async for blob in container.list_blobs(name_starts_with=folder, include=["metadata"]):
            if "epoch" in {key.casefold() for key in blob.metadata or ()}:
                return True
    return False


def _likely_first(names: Iterable[str], own: str) -> list[str]:
    """Those that are named like checkpoints or share a word with the `own` name come first, and those of services are left out."""
    words = {word for word in re.split(r"[^a-z]+", own) if len(word) > 2}
    others = [name for name in names if name != own and not _OF_SERVICES.match(name)]

    def likeness(name: str) -> int:
        return bool(_LIKELY.search(name)) + len(words.intersection(re.split(r"[^a-z]+", name)))

    return sorted(others, key=lambda name: (-likeness(name), name))
