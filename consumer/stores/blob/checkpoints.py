"""Checkpoints in Blob Storage: conditional by ETag, monotonic, fenced by claim. Layout: layout.py."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from consumer.errors import FencedError, PositionError, unreadable_checkpoint
from consumer.model import Checkpoint, Claim, Replacement, Stream
from consumer.stores.blob.layout import Fence, Stored, from_blob, to_content, to_metadata
from tidemark.foundation.azure.blobs import (
    CONFLICT,
    BlobStore,
    container_is_missing,
    ensure_container,
)
from tidemark.foundation.sanitize import shorten

_LOG = logging.getLogger(__name__)
_PAUSE = 0.05  # seconds before a blob is read again that another writer has just changed
_KIND = "checkpoint"
_PLAIN_KEYS = "plain-keys"  # no namespace has this name: theirs contain dots


class _Version(msgspec.Struct, frozen=True):
    etag: str
    stored: Stored


@dataclass(eq=False)
class BlobCheckpointStore(BlobStore):
    """A CheckpointStore of one hub and consumer group in a container, which is created if missing.

    If a blob is deleted, the next save under the present claim writes it again; to begin elsewhere, `put` a position. If an
    SDK's own store overwrites a blob, a lower position of its is overwritten, a higher one stays until this store's is
    higher, and the fence holds in both cases. `clock` dates the checkpoints, epoch seconds.
    """

    _stream: Stream
    clock: Callable[[], float] = field(default=time.time, kw_only=True)
    _last_written: dict[str, _Version] = field(default_factory=dict, init=False)

    async def claim(
        self, partition: str, owner: str, *, deadline: float, replacement: Replacement | None = None
    ) -> Claim:
        doing = f"claiming the checkpoint of partition {partition}"
        return await self._answered(doing, deadline, self._claim(partition, owner, replacement))

    async def hub_with_plain_keys(self, hub: int, *, deadline: float) -> int:
        return await self._answered(
            "asking which hub has plain keys", deadline, self._hub_with_plain_keys(hub)
        )

    async def save(self, claim: Claim, checkpoint: Checkpoint, *, deadline: float) -> None:
        written = msgspec.structs.replace(checkpoint, saved_at=self.clock())
        doing = f"saving the checkpoint of partition {claim.partition}"
        await self._answered(doing, deadline, self._save(claim, written))

    async def load_all(self, *, deadline: float) -> dict[str, Checkpoint | str]:
        return await self._answered("listing the checkpoints", deadline, self._load_all())

    async def put(self, checkpoint: Checkpoint, *, deadline: float) -> None:
        written = msgspec.structs.replace(checkpoint, saved_at=self.clock())
        doing = f"setting the checkpoint of partition {checkpoint.partition}"
        await self._answered(doing, deadline, self._claim(written.partition, written.owner, written))

    async def _claim(self, partition: str, owner: str, wanted: Replacement | Checkpoint | None) -> Claim:
        """Claims the next epoch, with the stored position or the `wanted` one."""
        while True:
            seen = await self._read(partition)
            stored = seen.stored.position if seen else None
            position = stored
            if isinstance(wanted, Replacement) and _is_still(wanted.found, stored):
                position = msgspec.structs.replace(wanted.by, saved_at=self.clock())
            elif isinstance(wanted, Checkpoint):
                position = wanted
            if isinstance(position, str):
                raise unreadable_checkpoint(partition, f"blob {self._location(partition)}", position)
            fence = Fence((seen.stored.fence.epoch if seen else 0) + 1, owner)
            if await self._write(partition, seen, fence, position):
                return Claim(partition, owner, fence.epoch, position, replaced=position is not stored)
            await asyncio.sleep(_PAUSE)

    async def _hub_with_plain_keys(self, hub: int) -> int:
        """Stored beside the folders of namespaces, because documents and dead letters of two namespaces may share a container."""
        blob = self._container.get_blob_client(f"{_PLAIN_KEYS}/{self._stream.hub}".lower())
        while True:
            try:
                await blob.upload_blob(str(hub).encode(), overwrite=False)
            except HttpResponseError as error:
                if container_is_missing(error):
                    await ensure_container(self._container)
                elif error.status_code in CONFLICT:
                    return self._hub_of(await (await blob.download_blob()).readall(), blob.blob_name)
                else:
                    raise
            else:
                return hub

    def _hub_of(self, content: bytes, name: str) -> int:
        try:
            return int(content)
        except ValueError:
            raise PositionError(
                f"blob '{self._container.container_name}/{name}' says {shorten(repr(content), 60)}, expected the time at which"
                " a hub was created, milliseconds since 1970: a newer version of Tidemark may have written it. Without the blob"
                " the present hub gets plain keys, and documents of an earlier one whose ids are positions are replaced"
            ) from None

    async def _save(self, claim: Claim, written: Checkpoint) -> None:
        """First tries with the version that this store wrote last; its ETag shows whether that is still the present one."""
        partition, ours = claim.partition, Fence(claim.epoch, claim.owner)
        seen = self._last_written.get(partition) or await self._read(partition)
        while True:
            if seen and seen.stored.fence != ours:
                raise FencedError(
                    f"partition {partition} was claimed by '{seen.stored.fence.owner}' (epoch "
                    f"{seen.stored.fence.epoch}) since '{claim.owner}' claimed it (epoch {claim.epoch})"
                )
            position = seen.stored.position if seen else None
            # An unreadable position is overwritten: the owner of the claim knows the position.
            if isinstance(position, Checkpoint) and position.sequence_number > written.sequence_number:
                return
            if await self._write(partition, seen, ours, written, with_content=seen is None):
                return
            await asyncio.sleep(_PAUSE)
            seen = await self._read(partition)

    async def _load_all(self) -> dict[str, Checkpoint | str]:
        folder = self._stream.folder(_KIND)
        checkpoints: dict[str, Checkpoint | str] = {}
        try:
            async for blob in self._container.list_blobs(name_starts_with=folder, include=["metadata"]):
                partition = blob.name.removeprefix(folder)
                stored = from_blob(
                    self._stream, partition, blob.metadata, b"", blob.last_modified.timestamp()
                )
                if isinstance(stored.position, str):
                    checkpoints[partition] = f"blob {self._location(partition)}: {stored.position}"
                elif stored.position is not None:
                    checkpoints[partition] = stored.position
        except ResourceNotFoundError as error:
            if not container_is_missing(error):
                raise
        return checkpoints

    async def _read(self, partition: str) -> _Version | None:
        try:
            blob = await self._container.get_blob_client(self._name(partition)).download_blob()
        except ResourceNotFoundError:
            return None
        # one answer has properties and content, so they belong together
        properties, content = blob.properties, await blob.readall()
        modified_at = properties.last_modified.timestamp()
        stored = from_blob(self._stream, partition, properties.metadata, content, modified_at)
        if stored.foreign and stored.fence.epoch:
            _LOG.warning(
                "the checkpoint of partition %s, blob %s, was overwritten by a program without claims: does another "
                "consumer use the same consumer group?",
                partition,
                self._location(partition),
            )
        return _Version(properties.etag, stored)

    async def _write(
        self,
        partition: str,
        seen: _Version | None,
        fence: Fence,
        position: Checkpoint | None,
        *,
        with_content: bool = True,
    ) -> bool:
        """Writes the metadata, and `with_content` the content too, if the blob is still the version `seen`; else False."""
        metadata = to_metadata(self._stream, partition, fence, position)
        condition: dict[str, Any] = (
            {"etag": seen.etag, "match_condition": MatchConditions.IfNotModified} if seen else {}
        )
        blob = self._container.get_blob_client(self._name(partition))
        self._last_written.pop(partition, None)
        try:
            if with_content:
                condition["overwrite"] = seen is not None
                answer = await blob.upload_blob(to_content(fence), metadata=metadata, **condition)
            else:
                answer = await blob.set_blob_metadata(metadata, **condition)
        except HttpResponseError as error:
            if container_is_missing(error):
                await ensure_container(self._container)
                return False
            if error.status_code in CONFLICT:
                return False
            raise
        self._last_written[partition] = _Version(str(answer["etag"]), Stored(fence, position, foreign=False))
        return True

    def _name(self, partition: str) -> str:
        return self._stream.blob(_KIND, partition)

    def _location(self, partition: str) -> str:
        return f"'{self._container.container_name}/{self._name(partition)}'"


def _is_still(listed: Checkpoint | str | None, stored: Checkpoint | str | None) -> bool:
    """Whether `listed` is still stored. Two unreadable ones count as equal, because the list adds the blob's name to the text."""
    return listed == stored or (isinstance(listed, str) and isinstance(stored, str))
