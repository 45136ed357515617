"""The HTTP API of the consumers, without HTTP: parameters in, status and JSON out. The blueprint only translates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from msgspec import Struct

from consumer.telemetry.rate_orders import RateOrder, Rates, TableRateStore, Unit, effective, rates_text
from consumer.telemetry.stats_store import KEPT, TableStatsStore
from consumer.web.views import ConsumersView, consumers_view
from scaling.log_entry import LogEntry, LogKind
from scaling.ports import DecisionLog
from scaling.storage.decision_log import TableDecisionLog
from scaling.storage.orders import carried_out, order_key
from tidemark.foundation.app_settings import STORAGE
from tidemark.foundation.azure.connections import Settings
from tidemark.foundation.http.answers import Response, error_response, json_fields, json_response
from tidemark.foundation.http.callers import NOBODY, Caller, named
from tidemark.foundation.http.principals import MAX_NAME
from tidemark.foundation.sanitize import one_line
from tidemark.foundation.wording import did_you_mean

UNITS = ("records", "request_units")
"""What an order may limit, as the API names it."""


class ConsumerTables(Struct, frozen=True):
    """The tables that the API uses."""

    stats: TableStatsStore
    rates: TableRateStore
    log: DecisionLog
    clock: Callable[[], float]

    async def aclose(self) -> None:
        for table in (self.stats, self.rates, self.log):
            await table.aclose()


class RateRequestError(ValueError):
    """An order is invalid; the message names the field, its value, and what is accepted."""


class UnknownConsumerError(RateRequestError):
    """No consumer of that name has reported."""


def open_tables(settings: Settings, clock: Callable[[], float]) -> ConsumerTables:
    """The tables where consumers and the dashboard meet. Raises ConnectionSettingsError."""
    return ConsumerTables(
        TableStatsStore(settings, STORAGE),
        TableRateStore(settings, STORAGE),
        TableDecisionLog(settings, STORAGE),
        clock,
    )


async def look(tables: ConsumerTables) -> ConsumersView:
    """All consumers that reported within the last day or are under an order. Raises StoreUnavailableError."""
    now = tables.clock()
    rows = await tables.stats.load_all(now - KEPT)
    orders = {unit: await tables.rates.load_all(unit) for unit in Unit}
    return consumers_view(rows, orders[Unit.RECORDS], orders[Unit.REQUEST_UNITS], now=now)


async def order_rate(
    tables: ConsumerTables,
    consumer: str,
    order: RateOrder,
    given_by: str = "",
    unit: Unit = Unit.RECORDS,
) -> str:
    """Stores an order and returns it as a sentence; the scaling log has its outcome.

    Raises UnknownConsumerError for a consumer that never reported, StoreUnavailableError.
    """
    await _require_known(tables, consumer)
    line = rate_line(consumer, order, given_by, unit)
    target = f"consumer {consumer}"
    entry = LogEntry(target, order.at, LogKind.CONTROL, order_key(unit), line, "rate", by=order.by)
    await carried_out(tables.log, entry, lambda: tables.rates.save(consumer, order, unit))
    return line


def rate_line(consumer: str, order: RateOrder, given_by: str = "", unit: Unit = Unit.RECORDS) -> str:
    """An order as a sentence of the scaling log; `given_by` describes its author, if more is known than the name."""
    rates = effective(order, Rates())
    what = "the rate" if unit is Unit.RECORDS else "the rate of request units"
    text = f"{what} is {rates_text(rates, unit)}" if order.holds else f"{what} is as configured again"
    return f"control consumer {consumer}: {text}, by {given_by or order.by}"


async def _require_known(tables: ConsumerTables, consumer: str) -> None:
    """Raises UnknownConsumerError: an order for a misspelt name would be shown as a consumer, and limit nothing."""
    known = {row.consumer for row in await tables.stats.load_all(tables.clock() - KEPT)}
    for unit in Unit:
        known |= (await tables.rates.load_all(unit)).keys()
    if consumer not in known:
        hint = did_you_mean(consumer, known, f"known are {', '.join(sorted(known)[:20]) or 'none'}")
        raise UnknownConsumerError(
            f"consumer: found '{one_line(consumer)}', which has not reported within the last day and is under no order;"
            f" {hint}"
        )


async def status(tables: ConsumerTables) -> Response:
    return json_response(await look(tables))


async def set_rate(tables: ConsumerTables, consumer: str, body: bytes, caller: Caller = NOBODY) -> Response:
    """`{"rate": 500 | null, "fleet_rate": ..., "unit": "request_units", "by": "name"}`; the answer is the order as stored."""
    try:
        fields = json_fields(body)
        by, given_by = named(caller, fields.get("by"))
        order = rate_order(fields, by=by, at=tables.clock())
        if not consumer.strip() or len(consumer) > MAX_NAME:
            raise RateRequestError(
                f"consumer: found {consumer!r}; a name of 1 to {MAX_NAME} characters is accepted"
            )
        await order_rate(tables, consumer, order, given_by, unit_of(fields))
    except UnknownConsumerError as error:
        return error_response(404, str(error))
    except ValueError as error:
        return error_response(400, str(error))
    return json_response(order)


def unit_of(fields: Mapping[str, Any]) -> Unit:
    """The unit of an order; records without one. Raises RateRequestError."""
    given = fields.get("unit") or UNITS[0]
    if given not in UNITS:
        raise RateRequestError(f"unit: found {one_line(str(given))!r}; accepted are {' and '.join(UNITS)}")
    return Unit.RECORDS if given == UNITS[0] else Unit.REQUEST_UNITS


def rate_order(fields: Mapping[str, Any], *, by: str, at: float) -> RateOrder:
    """The order that `rate` and `fleet_rate` of `fields` describe. Raises RateRequestError."""
    unknown = [name for name in fields if name not in {"rate", "fleet_rate", "unit", "by"}]
    if unknown:
        raise RateRequestError(f"{unknown[0]}: is not accepted here; accepted are rate, fleet_rate, unit, by")
    if "rate" not in fields and "fleet_rate" not in fields:
        raise RateRequestError("rate: is missing; accepted are records per second, 0 (no limit), or null")
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
            f"{name}: found {value!r}; accepted are records per second (request units with that unit), fractions too, 0 (no limit), and null"
            " (as configured)"
        )
    return float(value)
