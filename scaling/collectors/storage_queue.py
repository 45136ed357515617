"""Backlogs of Azure storage queues.

The service keeps one approximate number, `total`, which includes messages that a worker holds. A peek shows the
messages that can still be taken, at most 32: with fewer, `visible` and `invisible` are exact. With 32 or more,
`visible` is the total (as KEDA's `visibleonly`), and the reading lacks `invisible`, which is not known.

`oldest_age` is the age of the oldest message of the peek, since it was inserted. Nobody processes it, for a message that a worker
holds is hidden. The service gives messages nearly in order: one behind the first 32 may be a little older. A message that was
inserted with a delay, or whose worker failed, counts from its insertion on.

The approximate number is never too low, but may be too high, for hours where messages expired (azure-storage-net#645), "especially
when the queue is empty" (azure-sdk-for-net#44329). So with nothing visible the number counts only while it changes: once it has been the same for longer
than any message is processed, the messages that it counts do not exist.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from scaling.collectors.azure_entity import DEADLINE, AzureEntityCollector, Name
from scaling.collectors.matching import Combine, Empty, Matching
from scaling.collectors.names import STORAGE_QUEUE
from scaling.ports import CollectError, Reading
from tidemark.foundation.azure.addresses import address_of
from tidemark.foundation.azure.connections import queue_client, queue_service
from tidemark.foundation.durations import SHORTEST, duration_within, parse_duration
from tidemark.foundation.errors import problems_of
from tidemark.foundation.wording import duration_text

if TYPE_CHECKING:
    from azure.storage.queue.aio import QueueClient, QueueServiceClient

logger = logging.getLogger(__name__)

PROCESSED_WITHIN = "1h"
"""Longer than functions run by default on a plan (30 min); a message that takes longer needs the option."""

LONGEST_LEASE = 7 * 86_400.0
"""Seconds for which the service hides a message at most."""

SAMPLES = 3
"""The least number of samples through which a number has to stay the same, however far apart they are. Chosen: two could
be the two sides of a pause of the collector.
"""

PEEK_LIMIT = 32
"""Messages per peek, the service's maximum."""

POISON = "-poison"
"""What the Functions host adds to the name of a queue for the messages that it gave up. They wait for people, not for a worker."""


class StorageQueueCollector(AzureEntityCollector["QueueClient"]):
    """The counts of one storage queue; two requests a read. A missing queue raises CollectError."""

    COUNTS: ClassVar[tuple[str, ...]] = ("total", "visible", "invisible", "oldest_age")
    DEFAULT_COUNT: ClassVar[str] = "total"
    HOW: ClassVar[tuple[str, ...]] = (
        "processed_within",
        "empty",
    )
    ROLE = "the 'Storage Queue Data Reader' role, or a connection string"

    class Params(Struct, Matching, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """`processed_within` is the longest time a worker holds a message."""

        NAMED = "queue"
        NAMES = STORAGE_QUEUE
        LISTING_ROLE = "the 'Storage Queue Data Reader' role on the account, or a connection string"

        connection: Name
        queue: Name
        processed_within: float | str = PROCESSED_WITHIN
        combine: Combine = "sum"
        empty: Empty = None

        def problems(self) -> dict[str, str]:
            accepted = "above 0, and up to 7 days"
            return self.name_problems() | problems_of(
                processed_within=lambda: duration_within(
                    self.processed_within, SHORTEST, LONGEST_LEASE, accepted
                )
            )

        def lister(self, settings: Mapping[str, str]) -> QueueServiceClient:
            return queue_service(settings, self.connection)

        async def listed(self, client: QueueServiceClient) -> list[tuple[str, None]]:
            """Without poison queues, unless the pattern is about them: their messages would hold instances for ever."""
            names = [str(queue.name) async for queue in client.list_queues()]
            return [(name, None) for name in names if POISON in self.queue or not name.endswith(POISON)]

    def __init__(self, params: Params, settings: Mapping[str, str], *, deadline: float = DEADLINE) -> None:
        label = f"storage queue '{params.queue}' (connection {params.connection})"
        super().__init__(label, settings, endpoint=f"queues of {params.connection}", deadline=deadline)
        self._params = params
        self._processed_within = parse_duration(params.processed_within)
        self._standing: tuple[float, int, int] | None = None
        """Since when the total is the same with nothing visible, its value, and the number of samples."""
        self._warned = False

    @staticmethod
    def measured(params: Params, settings: Mapping[str, str]) -> dict[str, object]:
        return {"connection": address_of(settings, params.connection, "queue")}

    @staticmethod
    def entity(params: Params) -> str:
        within = (
            ""
            if params.processed_within == PROCESSED_WITHIN
            else f" processed within {params.processed_within}"
        )
        return f"storage_queue:{params.connection}/{params.queue}{within}"

    def _open(self) -> QueueClient:
        return queue_client(self._settings, self._params.connection, self._params.queue, retry_total=1)

    async def _read(self, client: QueueClient, now: float, /) -> Reading:
        total = (await client.get_queue_properties()).approximate_message_count
        if total is None:
            raise ValueError("the answer holds no message count")
        messages = await client.peek_messages(max_messages=PEEK_LIMIT)
        peeked = len(messages)
        if self._is_stale(total, peeked, now):
            total = 0
        oldest = min(
            (message.inserted_on.timestamp() for message in messages if message.inserted_on), default=None
        )
        counts = {"total": float(total)}
        if peeked < PEEK_LIMIT:  # the two requests are not one moment: more may be peeked than counted
            counts |= {"visible": float(peeked), "invisible": float(max(0, total - peeked))}
        else:
            counts["visible"] = float(max(total, peeked))
        try:
            if messages and oldest is None:
                raise CollectError(f"{self._label}: oldest_age cannot be known: no message says when it came")
            counts["oldest_age"] = self._age(oldest, now)
        except CollectError as error:  # the counts are known all the same
            return Reading(now, counts, unknown={"oldest_age": str(error)})
        return Reading(now, counts)

    def _is_stale(self, total: int, peeked: int, now: float) -> bool:
        """Whether the total counts messages that do not exist: see the docstring of the module."""
        if peeked or not total:
            self._standing, self._warned = None, False
            return False
        since, before, samples = self._standing or (now, total, 0)
        if before != total or now < since:  # it changes, or the clock was put back
            since, samples = now, 0
        is_stale = samples >= SAMPLES and now - since > self._processed_within
        self._standing = since, total, samples + 1
        if is_stale and not self._warned:
            logger.warning(
                "%s: counts %d messages for %s with none visible; taken for 0, as messages are processed within %s",
                self._label,
                total,
                duration_text(now - since),
                duration_text(self._processed_within),
            )
        self._warned = is_stale
        return is_stale
