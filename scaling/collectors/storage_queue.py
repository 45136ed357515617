"""Backlogs of Azure storage queues.

The service keeps one approximate number, `total`, which includes messages that a worker holds. What
can still be taken is found by peeking, which shows at most 32 messages: fewer than that are all there
are, and `visible` and `invisible` are exact. With 32 or more, `visible` falls back to the total (as
KEDA's `visibleonly`), and `invisible` is not known: the reading does not hold it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from scaling.collectors.azure_entity import DEADLINE, AzureEntityCollector, Name

if TYPE_CHECKING:
    from azure.storage.queue.aio import QueueClient

PEEK_LIMIT = 32
"""Messages per peek, the service's maximum."""


class StorageQueueCollector(AzureEntityCollector["QueueClient"]):
    """The counts of one storage queue; two requests a read. A missing queue raises CollectError."""

    COUNTS: ClassVar[tuple[str, ...]] = ("total", "visible", "invisible")
    DEFAULT_COUNT: ClassVar[str] = "total"
    ROLE = "the 'Storage Queue Data Reader' role, or a connection string"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        connection: Name
        queue: Name

    def __init__(self, params: Params, settings: Mapping[str, str], *, deadline: float = DEADLINE) -> None:
        label = f"storage queue '{params.queue}' (connection {params.connection})"
        super().__init__(label, settings, endpoint=f"queues of {params.connection}", deadline=deadline)
        self._params = params

    @staticmethod
    def entity(params: Params) -> str:
        return f"storage_queue:{params.connection}/{params.queue}"

    def _open(self) -> QueueClient:
        from foundation.azure.connections import queue_client  # noqa: PLC0415 - imports the SDKs, only when needed

        return queue_client(self._settings, self._params.connection, self._params.queue, retry_total=1)

    async def _read(self, client: QueueClient, _now: float, /) -> dict[str, float]:
        total = (await client.get_queue_properties()).approximate_message_count
        if total is None:
            raise ValueError("the answer holds no message count")
        peeked = len(await client.peek_messages(max_messages=PEEK_LIMIT))
        if peeked < PEEK_LIMIT:  # the two requests are not one moment: more may be peeked than counted
            return {
                "total": float(total),
                "visible": float(peeked),
                "invisible": float(max(0, total - peeked)),
            }
        return {"total": float(total), "visible": float(max(total, peeked))}
