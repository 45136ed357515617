"""What the instances of a consumer report about themselves, from their rows in Table Storage.

Every instance replaces its row every few seconds (`tidemark.foundation.consumer_stats`). Only rows younger than
`stale_after` count, because an instance that stopped writing has ended or hangs. Without a fresh row nothing is
known, and the read fails: a consumer that is down is not a consumer without load.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, ClassVar

import msgspec

from scaling.collectors.azure_entity import DEADLINE, AzureEntityCollector, Name
from scaling.collectors.names import TABLE_NAME, problems_of_names
from scaling.ports import CollectError
from tidemark.foundation.azure.addresses import address_of
from tidemark.foundation.azure.connections import table_service
from tidemark.foundation.consumer_stats import TABLE, fresh_filter, from_row, totals
from tidemark.foundation.durations import SHORTEST, duration_within, parse_duration
from tidemark.foundation.errors import problems_of

if TYPE_CHECKING:
    from azure.data.tables.aio import TableServiceClient


class ConsumerTelemetryCollector(AzureEntityCollector["TableServiceClient"]):
    """The counts of all live instances of one consumer together; one request a read.

    `throttled_share` is the highest of any instance, `oldest_age` too; `ru_per_record` is averaged by what
    each instance writes, and keeps its last value while nothing is written; the others are sums. A rate
    limit is left out when an instance has none, because the rate is not limited then.
    """

    COUNTS: ClassVar[tuple[str, ...]] = (
        "throttled_share",
        "ru_per_record",
        "ru_per_s",
        "written_per_s",
        "rate_limit",
        "rate_per_consumer",
        "consumers",
        "backlog",
        "oldest_age",
        "dead_letters",
    )
    DEFAULT_COUNT: ClassVar[str] = "throttled_share"
    HOW: ClassVar[tuple[str, ...]] = ("stale_after",)
    ROLE = "the 'Storage Table Data Reader' role, or a connection string"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """`stale_after` is in seconds, or a text such as "90s"; 60 s are twelve rows missed."""

        connection: Name
        consumer: Name
        table: Name = TABLE
        stale_after: float | str = 60.0

        def problems(self) -> dict[str, str]:
            return problems_of_names(table=TABLE_NAME.problem(self.table)) | problems_of(
                stale_after=lambda: duration_within(self.stale_after, SHORTEST, inf, "more than 0")
            )

    def __init__(self, params: Params, settings: Mapping[str, str], *, deadline: float = DEADLINE) -> None:
        label = f"consumer '{params.consumer}' (table {params.table}, connection {params.connection})"
        super().__init__(label, settings, endpoint=f"tables of {params.connection}", deadline=deadline)
        self._params = params
        self._stale_after = parse_duration(params.stale_after)
        self._learned: float | None = None

    @staticmethod
    def measured(params: Params, settings: Mapping[str, str]) -> dict[str, object]:
        return {"connection": address_of(settings, params.connection, "table")}

    @staticmethod
    def entity(params: Params) -> str:
        return f"{params.connection}/{params.table}/{params.consumer} younger than {params.stale_after}"

    def _open(self) -> TableServiceClient:
        return table_service(self._settings, self._params.connection, retry_total=1)

    async def _read(self, client: TableServiceClient, now: float, /) -> dict[str, float]:
        table = client.get_table_client(self._params.table)
        query = fresh_filter(self._params.consumer, now - self._stale_after)
        live = [from_row(row) async for row in table.query_entities(query)]
        if not live:
            raise CollectError(
                f"{self._label}: no instance has reported within the last {self._stale_after:g} s"
            )
        for stats in live:
            if stats.at > now + self._stale_after:
                ahead = stats.at - now
                text = f"instance '{stats.instance}' reports from {ahead:.0f} s ahead; check its clock"
                raise CollectError(f"{self._label}: {text}")
        values = totals(live)
        self._learned = values.get("ru_per_record", self._learned)
        return values if self._learned is None else {**values, "ru_per_record": self._learned}
