"""The scaling log in Table Storage: one partition per target, newest first by row key.

A read of all targets merges their partitions. The partition `~targets` lists them, with one row for each target that was
ever logged; it is written before the first entry, so that no entry is missed. The log has one copy of each entry, so a write
is one request per target, and a read over all targets one request per target and page. With a handful of plans that costs
far less than a second copy of each row in the order of time.

A continuation is the position of the last entry returned, not a cursor: pages stay exact while new entries
arrive in front, and it stays valid for ever.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heapreplace
from typing import Any

import msgspec
from msgspec import Struct

from scaling.log_entry import LogEntry
from scaling.ports import LogPage
from scaling.storage import rows as layout
from tidemark.foundation.azure.connections import Settings
from tidemark.foundation.azure.table_requests import Entity, Row
from tidemark.foundation.azure.tables import TableStore
from tidemark.foundation.errors import ConflictError
from tidemark.foundation.gathering import gather
from tidemark.foundation.keys import after, key_of
from tidemark.foundation.sanitize import shorten

TARGETS = "~targets"  # no encoded target has these characters
PAGE_MAX = 1_000  # rows the service returns per request
PAGE_MIN = 4  # rows asked of each of many targets: every further row of one is a request of its own in turn
PURGE_SECONDS = 20.0  # of one call: however rarely the log is purged, it keeps up with what was written
PURGED_AT_ONCE = 8  # partitions
READS_AT_ONCE = 64  # requests of all who read; of 100 connections the rest is for those who decide
BATCH_BYTES = 1_000_000
"""The HTTP client copies a body in one go; above 1 MiB it warns of holding up the loop."""
_COLUMNS = [*layout.LOG_COLUMNS, *layout.LOG_DATA]


class Position(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a page ended. `scope` is the target read, or None for all."""

    scope: str | None
    partition: str
    row: str


def encode_position(position: Position) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def decode_position(text: str, scope: str | None) -> Position:
    """Raises ValueError for what `encode_position` did not make for this scope."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        position = msgspec.json.decode(data, type=Position)
        if encode_position(position) != text or not position.row[:18].isdigit():
            raise ValueError(text)
    except (binascii.Error, ValueError) as error:
        raise ValueError(
            f"continuation '{shorten(text, 80)}' was not issued by this log; accepted is the continuation of a page"
        ) from error
    if position.scope != scope:
        raise ValueError(
            f"continuation '{shorten(text, 80)}' belongs to a listing of {_scope(position.scope)}, not of {_scope(scope)}"
        )
    return position


def _scope(scope: str | None) -> str:
    return "all targets" if scope is None else f"target '{scope}'"


def rows_after(position: Position, partition: str) -> tuple[str, str]:
    """Comparison and row key that select the rows of `partition` after `position`; entries of one time are
    in the order of their partitions.
    """
    if partition == position.partition:
        return "gt", position.row
    ticks = position.row[:18]
    return "ge", ticks if partition > position.partition else f"{int(ticks) + 1:018d}"


def check_limit(limit: int) -> None:
    if not 1 <= limit <= PAGE_MAX:
        raise ValueError(f"limit {limit} is not accepted; expected 1 to {PAGE_MAX}")


class TableDecisionLog(TableStore):
    """Appends are upserts: an entry written twice is one row. Times are compared to the microsecond."""

    TABLE = "ScalingLog"

    def __init__(self, settings: Settings, prefix: str, *, table: str = "", **options: Any) -> None:
        super().__init__(settings, prefix, table=table, **options)
        self._known: set[str] = set()
        self._known_of = 0
        self._purges = 0
        self._reading = asyncio.Semaphore(READS_AT_ONCE)

    async def append(self, entries: Sequence[LogEntry]) -> None:
        """Raises StoreUnavailableError, after which some entries may have been written: append them again."""
        partitions: dict[str, dict[str, dict[str, Any]]] = {}
        names: dict[str, str] = {}
        for entry in entries:
            partition, row = key_of(entry.target), layout.log_row_key(entry.at, entry.key)
            names[partition] = entry.target
            # The last of equal keys wins: a transaction may hold a row only once.
            partitions.setdefault(partition, {})[row] = {
                "PartitionKey": partition,
                "RowKey": row,
                **layout.log_row(entry),
            }
        for partition, rows in partitions.items():
            await self._register(partition, names[partition])
            for batch in _batches(list(rows.values())):
                await self._table.put(batch)
            # A table that was missing was created just now: its list of targets is gone.
            await self._register(partition, names[partition])

    async def _register(self, partition: str, target: str) -> None:
        if self._known_of != self._table.created:
            self._known.clear()
            self._known_of = self._table.created
        if partition not in self._known:
            row = {"PartitionKey": TARGETS, "RowKey": partition, "Target": target[:1_000]}
            await self._table.put([row])
            self._known_of = self._table.created
            self._known.add(partition)

    async def read(
        self,
        target: str | None = None,
        *,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
        continuation: str | None = None,
        changes: bool = False,
        inputs: bool = False,
    ) -> LogPage:
        check_limit(limit)
        position = decode_position(continuation, target) if continuation else None
        partitions = [key_of(target)] if target is not None else await self._partitions()
        first = None if until is None else f"{int(after(until)) - 1:018d}"  # `after` is one moment earlier
        span = Span(first, None if since is None else after(since), changes)
        page = min(PAGE_MAX, max(limit // max(len(partitions), 1), PAGE_MIN) + 1)
        streams = [
            self._table.stream(
                _query(partition, position, span),
                select=[*_COLUMNS, *layout.LOG_INPUTS] if inputs else _COLUMNS,
                page=page,
            )
            for partition in partitions
        ]
        try:
            rows = await _newest(streams, limit + 1, self._reading)
        finally:
            for stream in streams:
                await stream.aclose()
        more = None
        if len(rows) > limit:
            newest = rows[limit - 1]
            more = encode_position(Position(target, newest["PartitionKey"], newest["RowKey"]))
        return LogPage(tuple(layout.read_log_row(row, inputs=inputs) for row in rows[:limit]), more)

    async def get(self, target: str, at: float, key: str) -> LogEntry | None:
        try:
            row_key = layout.log_row_key(at, key)
        except ValueError:  # no entry can have such a time
            return None
        row = await self._table.get(key_of(target), row_key)
        return None if row is None else layout.read_log_row(row, inputs=True)

    async def purge(self, *, before: float) -> int:
        """Deletes for PURGE_SECONDS at most; later calls go on with the rest, each with other targets first."""
        loop = asyncio.get_running_loop()
        until, query = loop.time() + PURGE_SECONDS, f"RowKey ge '{after(before)}'"
        partitions = await self._partitions()
        first = self._purges * PURGED_AT_ONCE % max(len(partitions), 1)
        self._purges += 1

        async def purge(partition: str) -> int:
            removed = 0
            while loop.time() < until:
                rows = await self._table.rows(
                    f"PartitionKey eq '{partition}' and {query}",
                    select=["PartitionKey", "RowKey"],
                    limit=PAGE_MAX,
                )
                for start in range(0, len(rows), layout.TRANSACTION_ROWS):
                    removed += await self._delete(rows[start : start + layout.TRANSACTION_ROWS])
                    if loop.time() >= until:
                        break
                if len(rows) < PAGE_MAX:
                    break
            return removed

        turns = (*partitions[first:], *partitions[:first])
        return sum(await gather(purge, turns, at_once=PURGED_AT_ONCE))

    async def _delete(self, rows: Sequence[Entity]) -> int:
        try:
            await self._table.delete(rows)
        except ConflictError:
            return 0  # somebody else purges this partition at the same time; one of us is enough
        return len(rows)

    async def _partitions(self) -> list[str]:
        rows = await self._table.rows(f"PartitionKey eq '{TARGETS}'", select=["RowKey"])
        return [row["RowKey"] for row in rows]


class Span(Struct, frozen=True):
    """What a listing is narrowed to: keys from `first` to before `last`, and no decisions where it is of `changes`."""

    first: str | None
    last: str | None
    changes: bool


def _query(partition: str, position: Position | None, span: Span) -> str:
    clauses = [f"PartitionKey eq '{partition}'"]
    if position is not None:
        comparison, row = rows_after(position, partition)
        clauses.append(f"RowKey {comparison} '{row}'")
    if span.first is not None:
        clauses.append(f"RowKey ge '{span.first}'")
    if span.last is not None:
        clauses.append(f"RowKey lt '{span.last}'")
    if span.changes:
        clauses.append("Kind ne 'decision'")
    return " and ".join(clauses)


async def _newest(
    streams: Sequence[AsyncIterator[Entity]], count: int, reading: asyncio.Semaphore
) -> list[Entity]:
    """The first `count` rows of all streams by time, partition and key; the first pages are fetched together."""
    following_of = partial(_next, reading)
    heads = await gather(following_of, streams, at_once=len(streams))
    heap = [(_order(head), index, head) for index, head in enumerate(heads) if head is not None]
    heapify(heap)
    rows: list[Entity] = []
    while heap:
        _, index, row = heap[0]
        rows.append(row)
        if len(rows) == count:
            break
        following = await following_of(streams[index])
        if following is None:
            heappop(heap)
        else:
            heapreplace(heap, (_order(following), index, following))
    return rows


async def _next(reading: asyncio.Semaphore, stream: AsyncIterator[Entity]) -> Entity | None:
    async with reading:
        return await anext(stream, None)


def _order(row: Mapping[str, Any]) -> tuple[str, str, str]:
    key: str = row["RowKey"]
    return key[:18], row["PartitionKey"], key


def _batches(rows: Sequence[Row]) -> list[list[Row]]:
    if len(rows) == 1:  # as nearly always; measuring takes as long as encoding
        return [list(rows)]
    batches: list[list[Row]] = []
    size = 0
    for row in rows:
        more = layout.wire_size_of(row)
        if not batches or size + more > BATCH_BYTES or len(batches[-1]) == layout.TRANSACTION_ROWS:
            batches.append([])
            size = 0
        batches[-1].append(row)
        size += more
    return batches
