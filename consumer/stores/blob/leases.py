"""Leases in Blob Storage, in the layout of the Event Hubs SDKs: `{namespace}/{hub}/{group}/ownership/{partition}`.

Presences of instances are stored apart, as `.../consumers/{owner}`, because an SDK would mistake them for partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.storage.blob.aio import BlobClient

from consumer.leasing.balance import PRESENCE, is_presence
from consumer.model import Lease, Stream
from consumer.stores.blob.layout import header_text, plain_text
from tidemark.foundation.azure.blobs import (
    CONFLICT,
    BlobStore,
    container_is_missing,
    ensure_container,
)

_KIND = "ownership"
_PRESENCE_KIND = "consumers"


@dataclass(eq=False)
class BlobLeaseStore(BlobStore):
    """A LeaseStore of one hub and consumer group in a container, which is created if missing.

    Times are the storage service's, in whole seconds; tokens are ETags.
    """

    _stream: Stream

    async def list(self, *, deadline: float) -> tuple[Sequence[Lease], float]:
        return await self._answered("listing the leases", deadline, self._list_all())

    async def claim(self, lease: Lease, owner: str, *, deadline: float) -> Lease | None:
        return await self._answered(
            f"claiming partition {lease.partition}", deadline, self._claim(lease, owner)
        )

    async def release(self, lease: Lease, *, deadline: float) -> None:
        if lease.token:
            work = self._delete(lease) if is_presence(lease.partition) else self._claim(lease, "")
            await self._answered(f"releasing partition {lease.partition}", deadline, work)

    async def _list_all(self) -> tuple[Sequence[Lease], float]:
        # In this order: the time is that of the first list, so that presences seem younger than they are, never older.
        leases, now = await self._list(_KIND, "")
        presences, _ = await self._list(_PRESENCE_KIND, PRESENCE)
        return [*leases, *presences], now

    async def _list(self, kind: str, prefix: str) -> tuple[Sequence[Lease], float]:
        folder = self._stream.folder(kind)
        dates: deque[str] = deque(maxlen=1)
        leases = []
        blobs = self._container.list_blobs(
            name_starts_with=folder,
            include=["metadata"],
            raw_response_hook=lambda answer: dates.append(answer.http_response.headers["Date"]),
        )
        try:
            async for blob in blobs:
                owner = plain_text((blob.metadata or {}).get("ownerid") or "")
                renewed_at = blob.last_modified.timestamp()
                name = prefix + blob.name.removeprefix(folder)
                leases.append(Lease(name, owner, renewed_at, _token(blob.etag)))
        except ResourceNotFoundError as error:
            if not container_is_missing(error):
                raise
        return leases, parsedate_to_datetime(dates[-1]).timestamp()

    async def _claim(self, lease: Lease, owner: str) -> Lease | None:
        try:
            return await self._write(lease, owner)
        except HttpResponseError as error:
            if error.status_code not in CONFLICT:
                raise
            if lease.token or not container_is_missing(error):
                return None
        await ensure_container(self._container)
        return await self._claim(lease, owner)

    async def _delete(self, lease: Lease) -> None:
        try:
            await self._blob(lease.partition).delete_blob(
                etag=f'"{lease.token}"', match_condition=MatchConditions.IfNotModified
            )
        except HttpResponseError as error:
            if error.status_code not in CONFLICT:
                raise

    def _blob(self, partition: str) -> BlobClient:
        if is_presence(partition):
            name = self._stream.blob(_PRESENCE_KIND, partition.removeprefix(PRESENCE))
        else:
            name = self._stream.blob(_KIND, partition)
        return self._container.get_blob_client(name)

    async def _write(self, lease: Lease, owner: str) -> Lease:
        blob = self._blob(lease.partition)
        metadata = {"ownerid": header_text(owner)}
        if lease.token:
            answer = await blob.set_blob_metadata(
                metadata, etag=f'"{lease.token}"', match_condition=MatchConditions.IfNotModified
            )
        else:
            answer = await blob.upload_blob(b"", overwrite=False, metadata=metadata)
        written: dict[str, Any] = dict(answer)
        return Lease(lease.partition, owner, written["last_modified"].timestamp(), _token(written["etag"]))


def _token(etag: str) -> str:
    """The ETag without quotes: the service writes them in a header but not in a list."""
    return etag.strip('"')
