"""The consumers' HTTP API without HTTP: parameters in, status and JSON out. The blueprint only translates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import msgspec
from msgspec import Struct

from consumer.rate_control import RateOrder, Rates, RateStore, TableRateStore, effective, rates_text
from consumer.telemetry.stats_store import KEPT, StatsStore, TableStatsStore
from consumer.views import ConsumersView, RateOrderView, consumers_view
from scaling.api import MAX_BODY, Response, error_response, json_response
from scaling.connections import Settings
from scaling.decision_log import TableDecisionLog
from scaling.model import LogEntry, LogKind
from scaling.ports import DecisionLog

STORAGE = "AzureWebJobsStorage"
"""Where consumers and the dashboard meet: the connection of the tables ConsumerStats and ConsumerControls."""

MAX_NAME = 200


class ConsumerTables(Struct, frozen=True):
    """What the API works with."""

    stats: StatsStore
    rates: RateStore
    log: DecisionLog
    clock: Callable[[], float]

    async def aclose(self) -> None:
        for each in (self.stats, self.rates, self.log):
            await each.aclose()


class RateRequestError(ValueError):
    """An order cannot be given: names the field, what was found, what is accepted."""


def open_tables(settings: Settings, clock: Callable[[], float], connection: str = STORAGE) -> ConsumerTables:
    """The tables of a storage account. Raises ConnectionSettingsError."""
    return ConsumerTables(
        TableStatsStore(settings, connection),
        TableRateStore(settings, connection),
        TableDecisionLog(settings, connection),
        clock,
    )


async def look(tables: ConsumerTables) -> ConsumersView:
    """All consumers with a sign of life within the last day, or under an order. Raises StoreUnavailableError."""
    now = tables.clock()
    return consumers_view(await tables.stats.load_all(now - KEPT), await tables.rates.load_all(), now=now)


async def order_rate(tables: ConsumerTables, consumer: str, order: RateOrder) -> str:
    """Gives an order and tells it as a sentence; it is in the scaling log before it takes effect.

    Raises StoreUnavailableError.
    """
    rates = effective(order, Rates())
    lifted = order.rate is None and order.fleet_rate is None
    text = "the rate is as configured again" if lifted else f"the rate is {rates_text(rates)}"
    line = f"control consumer {consumer}: {text}, by {order.by}"
    target = f"consumer {consumer}"
    entry = LogEntry(target, order.at, LogKind.CONTROL, "control-rate", line, "rate", by=order.by)
    await tables.log.append([entry])
    await tables.rates.save(consumer, order)
    return line


async def status(tables: ConsumerTables) -> Response:
    return json_response(await look(tables))


async def set_rate(
    tables: ConsumerTables, consumer: str, body: bytes, principal: str | None = None
) -> Response:
    """`{"rate": 500 | null, "fleet_rate": ..., "by": "name"}`; the answer is the order as stored."""
    try:
        fields = _fields(body)
        order = rate_order(fields, by=principal or fields.get("by"), at=tables.clock())
        _check_name(consumer)
    except RateRequestError as error:
        return error_response(400, str(error))
    await order_rate(tables, consumer, order)
    return json_response(RateOrderView(order.rate, order.fleet_rate, order.by, order.at))


def rate_order(fields: Mapping[str, Any], *, by: Any, at: float) -> RateOrder:
    """The order that `rate` and `fleet_rate` of `fields` describe. Raises RateRequestError."""
    unknown = [name for name in fields if name not in {"rate", "fleet_rate", "by"}]
    if unknown:
        raise RateRequestError(f"{unknown[0]}: is not accepted here; accepted are rate, fleet_rate, by")
    if "rate" not in fields and "fleet_rate" not in fields:
        raise RateRequestError("rate: is missing; accepted are records per second, 0 (no limit), or null")
    by = by or "unnamed operator"
    if not isinstance(by, str) or len(by) > MAX_NAME:
        raise RateRequestError(f"by: found {by!r}; a name of at most {MAX_NAME} characters is accepted")
    rate, fleet_rate = _amount(fields, "rate"), _amount(fields, "fleet_rate")
    if rate is not None and fleet_rate is not None:
        raise RateRequestError(
            "fleet_rate: found beside rate; one of them is accepted, for one replaces the other"
        )
    return RateOrder(rate, fleet_rate, by, at)


def _amount(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) not in {int, float} or not isfinite(value) or value < 0:
        raise RateRequestError(
            f"{name}: found {value!r}; accepted are records per second, fractions too, 0 (no limit), and null"
            " (as configured)"
        )
    return float(value)


def _check_name(consumer: str) -> None:
    if not consumer.strip() or len(consumer) > MAX_NAME:
        raise RateRequestError(
            f"consumer: found {consumer!r}; a name of 1 to {MAX_NAME} characters is accepted"
        )


def _fields(body: bytes) -> dict[str, Any]:
    if len(body) > MAX_BODY:
        raise RateRequestError(f"body: found {len(body)} bytes; at most {MAX_BODY} are accepted")
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise RateRequestError(f"body: a JSON object is accepted; {error}") from None
