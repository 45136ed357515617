"""Containers of the storage account in which an earlier start may have left positions: BLOB_CONTAINER may have been another one."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from itertools import compress

from azure.core.exceptions import AzureError
from azure.storage.blob.aio import BlobServiceClient

from consumer.model import Stream
from tidemark.foundation.azure.connections import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    Settings,
    storage_endpoint,
    transport_options,
)
from tidemark.foundation.gathering import gather

MOST = 100
"""Containers that are looked into. Chosen: a request each, at every start, beside its work where it has positions."""
WITHIN = 10.0
"""Seconds for all of them. Chosen: a start without positions waits for it, unless it begins at the earliest event."""
_AT_ONCE = 16

_log = logging.getLogger("tidemark.consumer")


async def containers_with_positions(
    settings: Settings, connection: str, stream: Stream, own: str
) -> list[str]:
    """Names of other containers than `own` that have positions of the stream. None where the account does not list its containers to
    this identity, or not in time.
    """
    timeouts = {"connection_timeout": CONNECT_TIMEOUT, "read_timeout": READ_TIMEOUT, "retry_total": 0}
    folder = stream.folder("checkpoint")
    try:
        client = storage_endpoint(settings, connection, "blob").client(
            BlobServiceClient, **timeouts, **transport_options(settings)
        )
        async with asyncio.timeout(WITHIN), client as service:

            async def has_positions(name: str) -> bool:
                """Those of a consumer of this kind: the Functions host and other programs have the same layout, and no epoch."""
                with suppress(AzureError):  # this identity may not read it
                    container = service.get_container_client(name)
                    async for blob in container.list_blobs(name_starts_with=folder, include=["metadata"]):
                        if "epoch" in {key.casefold() for key in blob.metadata or ()}:
                            return True
                return False

            names: list[str] = []
            async for container in service.list_containers(results_per_page=MOST):
                if container.name != own:
                    names.append(container.name)
                if len(names) == MOST:
                    break
            return list(compress(names, await gather(has_positions, names, at_once=_AT_ONCE)))
    except Exception as error:  # it is a look beside: what decides a start is in its own container
        _log.debug("other containers cannot be looked into: %s", error)
        return []
