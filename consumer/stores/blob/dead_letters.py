"""Dead letters in Blob Storage: one JSON file each, of any size.

`{namespace}/{hub}/{group}/dead-letter/{partition}/{sequence number, 20 digits}.json`, so that names sort like
the dead letters; the metadata has the reason too. In a hub that was created anew the partition is `0@<created, ms>`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.storage.blob import ContentSettings
from azure.storage.blob.aio import BlobClient

from consumer.model import DeadLetter, Stream, dead_letter_id
from consumer.stores.blob.layout import header_text, plain_text
from consumer.stores.dead_letter_document import clean, event_of, from_document, is_of, to_document
from tidemark.foundation.azure.blobs import (
    CONFLICT,
    BlobStore,
    container_is_missing,
    ensure_container,
)
from tidemark.foundation.gathering import gather, next_page

_KIND = "dead-letter"
_PAUSE = 0.05  # seconds before a blob is looked at again that another writer has just changed
_ROUNDS = (
    20  # of such changes; a conflict that lasts has another cause, such as a snapshot or a policy. Chosen.
)
_AT_ONCE = 16  # requests; also how many bodies a list holds in memory
_JSON = ContentSettings(content_type="application/json; charset=utf-8")


@dataclass(eq=False)
class BlobDeadLetterStore(BlobStore):
    """A DeadLetterStore of one hub and consumer group in a container, which is created if missing, or without `create` taken to be
    empty then.
    """

    _stream: Stream
    create: bool = field(default=True, kw_only=True)

    async def open(self) -> None:
        if self.create:
            doing = f"opening container '{self._container.container_name}'"
            await self._answered(doing, None, ensure_container(self._container))

    async def put(self, dead_letters: Sequence[DeadLetter], *, deadline: float) -> None:
        latest = {dead_letter.id: dead_letter for dead_letter in dead_letters}
        await self._answered(
            "storing dead letters", deadline, gather(self._put, latest.values(), at_once=_AT_ONCE)
        )

    async def list(
        self, *, partition: str | None = None, reason: str | None = None
    ) -> AsyncIterator[DeadLetter]:
        root = self._stream.folder(_KIND)
        folder = root + (partition or "").lower()
        pages = self._container.list_blobs(
            name_starts_with=folder, include=["metadata"], results_per_page=_AT_ONCE
        ).by_page()
        while page := await self._answered("listing the dead letters", None, _next_page(pages)):
            names = [
                blob.name
                for blob in page
                if reason in {None, _reason(blob.metadata)}
                and is_of(blob.name.removeprefix(root).partition("/")[0], partition)
            ]
            for dead_letter in await self._answered(
                "reading dead letters", None, gather(self._read, names, at_once=_AT_ONCE)
            ):
                if dead_letter is not None:  # else deleted meanwhile
                    yield dead_letter

    async def get(self, dead_letter_id: str) -> DeadLetter | None:
        name = self._name_of(dead_letter_id)
        if name is None:
            return None
        return await self._answered(f"reading dead letter {dead_letter_id}", None, self._read(name))

    async def delete(self, dead_letter_ids: Sequence[str], *, epoch: int | None = None) -> int:
        names = {name for dead_letter_id in dead_letter_ids if (name := self._name_of(dead_letter_id))}
        deleting = gather(partial(self._delete, epoch=epoch), names, at_once=_AT_ONCE)
        return sum(await self._answered("deleting dead letters", None, deleting))

    async def _put(self, dead_letter: DeadLetter) -> None:
        name, epoch = (
            self._name(dead_letter.event.place, dead_letter.event.sequence_number),
            dead_letter.epoch,
        )
        metadata = {"reason": header_text(clean(dead_letter.rejection.reason) or "")}
        blob, body = self._container.get_blob_client(name), msgspec.json.encode(to_document(dead_letter))
        if not epoch:
            conditions: dict[str, Any] | None = {"overwrite": True}
        else:  # most often there is none
            metadata["epoch"], conditions = str(epoch), {"overwrite": False}
        for left in reversed(range(_ROUNDS)):
            if conditions is None:
                return
            try:
                await blob.upload_blob(
                    msgspec.json.format(body, indent=2),
                    metadata=metadata,
                    content_settings=_JSON,
                    **conditions,
                )
            except HttpResponseError as error:
                is_race = epoch and error.status_code in CONFLICT and not container_is_missing(error)
                if not (is_race and left):
                    raise
                await asyncio.sleep(_PAUSE)
                conditions = await self._unless_later(blob, epoch)
            else:
                return

    @staticmethod
    async def _unless_later(blob: BlobClient, epoch: int) -> dict[str, Any] | None:
        """The conditions of a request that must leave one of a later epoch as it is; None if that is what is there."""
        try:
            stored = await blob.get_blob_properties()
        except ResourceNotFoundError:
            return {"overwrite": False}
        if int((stored.metadata or {}).get("epoch") or 0) > epoch:
            return None
        return {"overwrite": True, "etag": stored.etag, "match_condition": MatchConditions.IfNotModified}

    async def _read(self, name: str) -> DeadLetter | None:
        try:
            content = await (await self._container.get_blob_client(name).download_blob()).readall()
        except ResourceNotFoundError:
            return None
        partition, _, number = name.removeprefix(self._stream.folder(_KIND)).partition("/")
        number = number.removesuffix(".json").lstrip("0") or "0"
        letter_id = dead_letter_id(self._stream.hub, self._stream.consumer_group, partition, number)
        if self._name_of(letter_id) != name:  # somebody put it there
            letter_id = ""
        return from_document(content, f"blob '{self._container.container_name}/{name}'", letter_id)

    async def _delete(self, name: str, *, epoch: int | None) -> bool:
        blob = self._container.get_blob_client(name)
        conditions: dict[str, Any] | None = {}
        for left in reversed(range(_ROUNDS)):
            if epoch is not None:
                conditions = await self._unless_later(blob, epoch)
            if conditions is None or conditions.pop("overwrite", None) is False:
                return False
            try:
                await blob.delete_blob(**conditions)
            except ResourceNotFoundError:
                return False
            except HttpResponseError as error:
                if epoch is None or error.status_code not in CONFLICT or not left:
                    raise
                await asyncio.sleep(_PAUSE)
            else:
                return True
        raise AssertionError("the last round returns or raises")

    def _name_of(self, dead_letter_id: str) -> str | None:
        position = event_of(dead_letter_id, self._stream.hub, self._stream.consumer_group)
        return self._name(*position) if position else None

    def _name(self, partition: str, sequence_number: int) -> str:
        return f"{self._stream.blob(_KIND, partition)}/{sequence_number:020d}.json"


def _reason(metadata: Mapping[str, str | None] | None) -> str:
    return plain_text((metadata or {}).get("reason") or "")


async def _next_page(pages: Any) -> Sequence[Any]:
    """The next page; empty at the end, and if there is no container."""
    try:
        return await next_page(pages)
    except ResourceNotFoundError as error:
        if container_is_missing(error):
            return ()
        raise
