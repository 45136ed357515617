"""Leases in Blob Storage, in the layout of the Event Hubs SDKs: `{namespace}/{hub}/{group}/ownership/{partition}`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.storage.blob.aio import ContainerClient

from consumer.blob_service import CONFLICT, answered, container_is_missing, ensure_container
from consumer.checkpoints.blob_layout import Stream, header_text, plain_text
from consumer.model import Lease

_KIND = "ownership"


class BlobLeaseStore:
    """A LeaseStore of one hub and consumer group in a container, which is created if missing.

    Times are the storage service's, in whole seconds; tokens are ETags.
    """

    def __init__(self, container: ContainerClient, stream: Stream) -> None:
        """Takes over `container` and closes it."""
        self._container = container
        self._stream = stream

    async def list(self, *, deadline: float) -> tuple[Sequence[Lease], float]:
        return await answered("listing the leases", deadline, self._list())

    async def claim(self, lease: Lease, owner: str, *, deadline: float) -> Lease | None:
        return await answered(f"claiming partition {lease.partition}", deadline, self._claim(lease, owner))

    async def release(self, lease: Lease, *, deadline: float) -> None:
        if lease.token:
            await answered(f"releasing partition {lease.partition}", deadline, self._claim(lease, ""))

    async def aclose(self) -> None:
        await self._container.close()

    async def _list(self) -> tuple[Sequence[Lease], float]:
        folder = self._stream.folder(_KIND)
        dates: deque[float] = deque(maxlen=1)
        leases = []
        blobs = self._container.list_blobs(
            name_starts_with=folder,
            include=["metadata"],
            raw_response_hook=lambda answer: dates.append(_date(answer.http_response)),
        )
        try:
            async for blob in blobs:
                owner = plain_text((blob.metadata or {}).get("ownerid") or "")
                renewed_at = blob.last_modified.timestamp()
                leases.append(Lease(blob.name.removeprefix(folder), owner, renewed_at, _token(blob.etag)))
        except ResourceNotFoundError as error:
            if not container_is_missing(error):
                raise
        return leases, dates[-1]

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

    async def _write(self, lease: Lease, owner: str) -> Lease:
        blob = self._container.get_blob_client(self._stream.blob(_KIND, lease.partition))
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
    """The service puts an ETag into quotes in a header and leaves them out in a list."""
    return etag.strip('"')


def _date(answer: Any) -> float:
    return parsedate_to_datetime(answer.headers["Date"]).timestamp()
