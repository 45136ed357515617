"""Producer state in Blob Storage: one blob per partition, guarded by its ETag."""

from __future__ import annotations

import msgspec
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.storage.blob import ContentSettings

from tidemark.foundation.azure.blobs import (
    CONFLICT,
    BlobStore,
    container_is_missing,
    ensure_container,
)
from tidemark.publisher.event_hubs.ports import state_store
from tidemark.publisher.event_hubs.ports.state_store import StateConflictError
from tidemark.publisher.model import ProducerRecord, StateKey


class BlobStateStore(BlobStore):
    """A ProducerStateStore in a container, which is created when it is missing and closed with the store."""

    async def load(self, key: StateKey, *, deadline: float) -> tuple[ProducerRecord, str] | None:
        name = state_store.name_of(key)
        loaded = await self._answered(f"loading the state {name}", deadline, self._load(name))
        if loaded is None:
            return None
        text, etag = loaded
        return state_store.decode(text, f"the blob {name}"), etag

    async def save(self, key: StateKey, record: ProducerRecord, token: str | None, *, deadline: float) -> str:
        name = state_store.name_of(key)
        work = self._save(name, msgspec.json.encode(record), token)
        etag = await self._answered(f"saving the state {name}", deadline, work)
        if etag is None:
            raise StateConflictError(f"the blob {name} has changed")
        return etag

    # These return refusals as values, because `answered` treats every exception as an outage.

    async def _load(self, name: str) -> tuple[bytes, str] | None:
        try:
            download = await self._container.download_blob(name)
        except ResourceNotFoundError:
            return None
        return await download.readall(), str(download.properties.etag)

    async def _save(self, name: str, text: bytes, token: str | None) -> str | None:
        """The new ETag; None if the blob has changed."""
        blob = self._container.get_blob_client(name)
        unchanged = {"etag": token, "match_condition": MatchConditions.IfNotModified}
        condition = {"overwrite": False} if token is None else {"overwrite": True, **unchanged}
        settings = ContentSettings(content_type="application/json")
        try:
            written = await blob.upload_blob(text, content_settings=settings, **condition)
        except HttpResponseError as error:
            if container_is_missing(error) and token is None:
                await ensure_container(self._container)
                return await self._save(name, text, token)
            if error.status_code in CONFLICT:
                return None
            raise
        return str(written["etag"])
