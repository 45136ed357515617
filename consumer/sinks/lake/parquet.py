"""Writes Parquet files to Blob Storage, exactly once, by manifests.

A file counts only when a manifest names it. The manifests of a partition are a chain: the name of each is the number after the
last event of the one before, and it is created only if there is none of that name. So of two consumers of a partition, or of two
attempts, one gets the next manifest and the other is refused. Its file is garbage that no manifest names.

    <folder>/data/flights-0-1200-1420-3f6c….parquet
    <folder>/_manifests/<namespace>/<hub>/<consumer group>/<sink>/<partition>/00000000000000001200.json
    <folder>/_manifests/<namespace>/<hub>/<consumer group>/<sink>/<partition>/last.json

`last.json` says where the chain ended lately, so that nobody has to follow all of it. It may lag behind.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from azure.core.exceptions import AzureError, HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.storage.blob.aio import ContainerClient
from msgspec import Struct

from consumer.model import NOTHING_SETTLED, Claim, Event, Record, Routes, Stream, Write
from consumer.options import BatchLimits
from consumer.sinks.appending import AppendingSink, MovedError
from consumer.sinks.lake.columns import RowMapper, parse_schema
from consumer.sinks.lake.options import ParquetOptions, batches_of
from consumer.sinks.lake.rows import APPENDING, identity_of, identity_of_event, prepare_row
from consumer.sinks.types import SinkContext, SinkType
from tidemark.foundation.azure.blobs import answered, container_is_missing, ensure_container
from tidemark.foundation.azure.connections import blob_container
from tidemark.foundation.errors import SettingsError, UnavailableError

log = logging.getLogger("tidemark.consumer")

OPEN_WITHIN = 60.0
"""Seconds for the container to answer at the start. Chosen: the timeout of a call of the consumer."""


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """A file that counts. Unknown fields, of a later version, are refused: they may change the meaning of the others."""

    file: str
    """Its name below the folder."""
    first: int
    last: int
    """The numbers of its first and last event. Of a replayed event `last` is the mark of its records (consumer/sinks/appending.py)."""
    rows: int
    version: int = 1


class _Last(Struct, frozen=True):
    last: int


class ParquetSink(AppendingSink):
    """Files of one folder. The sink owns and closes the client."""

    def __init__(
        self,
        container: ContainerClient,
        folder: str,
        stream: Stream,
        mapper: RowMapper,
        *,
        name: str,
        batches: BatchLimits,
        create: bool = False,
        dry_run: bool = False,
    ) -> None:
        super().__init__(batches)
        self._container = container
        self._folder = f"{folder.strip('/')}/" if folder.strip("/") else ""
        self._stream = stream
        self._name = name
        self._mapper = mapper
        self._create = create
        self._dry_run = dry_run

    async def open(self) -> Routes:
        deadline = asyncio.get_running_loop().time() + OPEN_WITHIN
        name = self._container.container_name
        if not await answered(f"opening the container {name}", deadline, self._is_there()):
            raise SettingsError(f"there is no container {name}; create it, or set create = true")
        return await self.routes()

    async def _is_there(self) -> bool:
        try:
            await self._container.get_container_properties()
        except ResourceNotFoundError as error:
            if not container_is_missing(error) or not self._create:
                return False
            if not self._dry_run:
                await ensure_container(self._container)
        return True

    async def ask(self) -> None:
        await self._container.get_container_properties()

    def prepare(self, write: Write) -> Record:
        return prepare_row(self._mapper, write)

    async def load(self, claim: Claim) -> ParquetLog:
        return await self._load(identity_of(self._stream, self._name, claim))

    async def load_event(self, event: Event, part: str = "") -> ParquetLog:
        return await self._load(identity_of_event(self._stream, self._name, event, part))

    async def _load(self, identity: str) -> ParquetLog:
        loaded = ParquetLog(self._container, self._folder, identity, self._mapper)
        await loaded.follow()
        return loaded

    async def aclose(self) -> None:
        await super().aclose()
        await self._container.close()


class ParquetLog:
    """An AppendLog: the chain of manifests of one partition."""

    def __init__(self, container: ContainerClient, folder: str, identity: str, mapper: RowMapper) -> None:
        self._container = container
        self._folder = folder
        self._chain = f"{folder}_manifests/{identity}"
        _, hub, _, _, place, *_ = identity.split("/")
        self._name = f"{hub}-{place}"
        self._mapper = mapper
        self.mark = NOTHING_SETTLED

    async def follow(self) -> None:
        """Finds the end of the chain."""
        hint = await self._read(f"{self._chain}/last.json")
        if hint is not None:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # then all of the chain is followed
                self.mark = msgspec.json.decode(hint, type=_Last).last
        while (text := await self._read(self._next)) is not None:
            try:
                self.mark = msgspec.json.decode(text, type=Manifest).last
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise UnavailableError(f"the manifest {self._next} cannot be read: {error}") from error

    @property
    def _next(self) -> str:
        """The name of the manifest that comes next."""
        return f"{self._chain}/{self.mark + 1:020}.json"

    async def append(self, records: Sequence[Record], last: int) -> None:
        first = records[0].event.sequence_number
        file = f"data/{self._name}-{first}-{last}-{uuid.uuid4().hex}.parquet"
        body = await asyncio.to_thread(_parquet, self._mapper.batch(records))
        await self._container.upload_blob(f"{self._folder}{file}", body)
        manifest = msgspec.json.encode(Manifest(file, first, last, len(records)))
        try:
            await self._container.upload_blob(self._next, manifest, overwrite=False)
        except ResourceExistsError as error:
            if not await self._is_ours(manifest):
                with suppress(AzureError):  # garbage otherwise, which nobody counts
                    await self._container.delete_blob(f"{self._folder}{file}")
                raise MovedError from error
        self.mark = last
        try:
            await self._container.upload_blob(
                f"{self._chain}/last.json", msgspec.json.encode(_Last(last)), overwrite=True
            )
        except AzureError as error:  # the chain is followed from where it says
            log.debug("last.json of %s was not written: %s", self._chain, error)

    async def _is_ours(self, manifest: bytes) -> bool:
        """Whether the manifest is there because an earlier attempt of the client stored it and its answer was lost."""
        return await self._read(self._next) == manifest

    async def _read(self, name: str) -> bytes | None:
        try:
            return await (await self._container.download_blob(name)).readall()
        except ResourceNotFoundError as error:
            if isinstance(error, HttpResponseError) and container_is_missing(error):
                raise
            return None


def _parquet(batch: pa.RecordBatch) -> bytes:
    """The batch as a file. zstd: smaller than the default snappy, and every reader of today has it."""
    target = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([batch]), target, compression="zstd")
    return bytes(target.getvalue())


def _build(options: ParquetOptions, context: SinkContext) -> ParquetSink:
    return ParquetSink(
        blob_container(context.settings, options.connection, options.container),
        options.folder,
        context.stream,
        RowMapper(parse_schema(options.columns), options.sources, context.stream.topic),
        name=context.name,
        batches=batches_of(options.commit_every, options.commit_rows),
        create=options.create,
        dry_run=context.dry_run,
    )


PARQUET = SinkType("parquet", ParquetOptions, _build, APPENDING, (), ordered=True)
