"""A sink that keeps documents in memory."""

from __future__ import annotations

from collections.abc import Sequence

from consumer.mapping.documents import DocumentMapper, MappingOptions, rejected
from consumer.model import Batch, Operation, Outcome, Record, Rejection, Routes, Write, WriteResult

_WRITTEN = WriteResult(Outcome.WRITTEN, 200)


class MemorySink:
    """One lane; every write succeeds at once. `documents` are by record key, as UTF-8 JSON."""

    transactional = False

    def __init__(self, mapping: MappingOptions, partition_key_paths: Sequence[str] = ("/id",)) -> None:
        self._mapper = DocumentMapper(mapping, partition_key_paths)
        self.documents: dict[str, bytes] = {}

    async def open(self) -> Routes:
        return Routes()

    def prepare(self, write: Write) -> Record:
        if write.operation is not Operation.UPSERT:
            return rejected(write.event, Rejection("operation", f"found {write.operation}; accepted: upsert"))
        return self._mapper.prepare(write)

    async def write(self, batch: Batch, *, deadline: float) -> Sequence[WriteResult]:
        for record in batch.records:
            self.documents[record.key] = record.payload
        return [_WRITTEN] * len(batch.records)

    async def routes(self) -> Routes:
        return Routes()

    async def aclose(self) -> None:
        """Keeps the documents."""
