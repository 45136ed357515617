"""Operators' orders for the limits of a consumer: a row per consumer and unit in the table `ConsumerControls`.

An order holds until it is lifted, over restarts too, and for instances that start later. The newest order counts.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from consumer.telemetry.shared_budget import MOST, Part, Parts, left_for_consumer
from tidemark.foundation.azure.tables import TableStore
from tidemark.foundation.errors import ConflictError
from tidemark.foundation.keys import key_of

TABLE = "ConsumerControls"
SCHEMA = 1

log = logging.getLogger("tidemark.consumer")

Amount = Annotated[float, msgspec.Meta(ge=0)]


class Unit(StrEnum):
    """What is limited; the value is the row key of its orders."""

    RECORDS = "rate"
    REQUEST_UNITS = "request_units"

    @property
    def text(self) -> str:
        return "records/s" if self is Unit.RECORDS else "RU/s"


class RateOrder(Struct, frozen=True):
    """Records or request units per second: `rate` of each instance, or `fleet_rate` of all together; 0 is no limit. Both None: as
    configured. `at` is epoch seconds.
    """

    rate: Amount | None = None
    fleet_rate: Amount | None = None
    by: str = ""
    at: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether it sets a rate; otherwise it lifts the order before it."""
        return self.rate is not None or self.fleet_rate is not None


class Rates(Struct, frozen=True):
    """The rates of a consumer; None means no limit. With a fleet rate, each instance takes its share."""

    rate: float | None = None
    fleet_rate: float | None = None


_PART_KEY = "part-"
_PARTS = "RowKey ge 'part-' and RowKey lt 'part.'"  # a dot follows the dash in order
_PART = Part.__struct_fields__


class RateOrderError(ValueError):
    """A stored order cannot be read."""


class TableRateStore(TableStore):
    """Orders in Table Storage. All raise StoreUnavailableError."""

    TABLE = TABLE

    async def load(self, consumer: str, unit: Unit = Unit.RECORDS) -> RateOrder | None:
        """Raises RateOrderError for what cannot be read."""
        row = await self._table.get(key_of(consumer), unit)
        return None if row is None else _read(row)

    async def load_all(self, unit: Unit = Unit.RECORDS) -> dict[str, RateOrder]:
        """The readable orders, by consumer; one that cannot be read is logged."""
        orders: dict[str, RateOrder] = {}
        for row in await self._table.rows(f"RowKey eq '{unit}'"):
            try:
                orders[str(row.get("Name", row["PartitionKey"]))] = _read(row)
            except RateOrderError as error:
                log.warning("%s", error)
        return orders

    async def save(self, consumer: str, order: RateOrder, unit: Unit = Unit.RECORDS) -> None:
        """Stores an order; it replaces the one before."""
        rates = {"rate": order.rate, "fleet_rate": order.fleet_rate}
        row: dict[str, Any] = {
            "PartitionKey": key_of(consumer),
            "RowKey": str(unit),
            "Name": consumer,
            "Schema": SCHEMA,
            "by": order.by,
            "at": float(order.at),
            **{name: float(value) for name, value in rates.items() if value is not None},
        }
        await self._table.put([row])

    async def parts(self, consumer: str) -> list[Part]:
        """The backfills that share the consumer's budget. Raises RateOrderError for a row that cannot be read."""
        rows = await self._table.rows(f"PartitionKey eq '{key_of(consumer)}' and {_PARTS}")
        try:
            return [msgspec.convert({name: row.get(name) for name in _PART}, Part) for row in rows]
        except msgspec.ValidationError as error:
            raise RateOrderError(f"a part of the budget of '{consumer}' in table {TABLE}: {error}") from error

    async def save_part(self, consumer: str, part: Part) -> None:
        row = {"PartitionKey": key_of(consumer), "RowKey": f"{_PART_KEY}{key_of(part.name)}"}
        await self._table.put([row | {"Schema": SCHEMA} | msgspec.structs.asdict(part)])

    async def remove_part(self, consumer: str, name: str) -> None:
        row = {"PartitionKey": key_of(consumer), "RowKey": f"{_PART_KEY}{key_of(name)}"}
        with contextlib.suppress(ConflictError):  # somebody else removed it
            await self._table.delete([row])


def _read(row: Any) -> RateOrder:
    where = f"the rate order of consumer '{row.get('Name', row.get('PartitionKey'))}' in table {TABLE}"
    if row.get("Schema") != SCHEMA:
        raise RateOrderError(f"{where} has schema {row.get('Schema')!r}; this release reads {SCHEMA}")
    try:
        return msgspec.convert(
            {name: row[name] for name in RateOrder.__struct_fields__ if name in row}, RateOrder
        )
    except msgspec.ValidationError as error:
        raise RateOrderError(f"{where} cannot be read: {error}") from error


def effective(order: RateOrder | None, configured: Rates) -> Rates:
    """The rates that hold under an order. A rate for each instance replaces a configured fleet rate, and vice versa."""
    if order is None or not order.holds:
        return configured
    if order.fleet_rate is not None:
        return Rates(fleet_rate=order.fleet_rate or None)
    return Rates(rate=order.rate or None)


class Limits(Struct, frozen=True):
    """How the limits of an instance are changed. `set_fleet_rate` with None must not set the instance's own: `set_rate` is called
    after it.
    """

    set_rate: Callable[[float | None], None]
    set_fleet_rate: Callable[[float | None], None]


class RateFollower:
    """Applies orders to one instance. Call `poll` at intervals; an order that cannot be read changes nothing."""

    def __init__(
        self,
        store: TableRateStore,
        consumer: str,
        configured: Mapping[Unit, Rates],
        limits: Mapping[Unit, Limits],
    ) -> None:
        self._store = store
        self._consumer = consumer
        self._configured = configured
        self._limits = limits
        self.rates = dict(configured)
        self._parts = Parts()
        self._left: float | None = None
        if (fleet := configured.get(Unit.REQUEST_UNITS, Rates()).fleet_rate) is not None:
            # Until the table was read, a backfill may be using its part.
            self._limit_fleet(fleet * MOST)

    async def poll(self) -> None:
        """Reads the orders and applies those that change a limit.

        Raises RateOrderError, StoreUnavailableError.
        """
        unreadable: RateOrderError | None = None
        for unit, configured in self._configured.items():
            try:
                order = await self._store.load(self._consumer, unit)
            except RateOrderError as error:  # the order for the other unit is followed all the same
                unreadable = error
                continue
            rates = effective(order, configured)
            if rates.fleet_rate is not None and unit is Unit.REQUEST_UNITS:
                await self._share(rates.fleet_rate)
            if rates == self.rates[unit]:
                continue
            by = f"ordered by {order.by}" if order is not None and rates != configured else "as configured"
            log.info("rate: %s, %s", rates_text(rates, unit), by)
            self.rates[unit] = rates
            if unit is Unit.RECORDS or rates.fleet_rate is None:
                self._left = None
                self._limits[unit].set_fleet_rate(rates.fleet_rate)
            if rates.fleet_rate is None:
                self._limits[unit].set_rate(rates.rate)
        if unreadable is not None:
            raise unreadable

    async def _share(self, budget: float) -> None:
        """Leaves their part of the fleet's request units to backfills."""
        parts = self._parts.note(await self._store.parts(self._consumer), time.monotonic())
        left = left_for_consumer(budget, parts)
        if left != self._left and parts:
            names = ", ".join(part.name for part in parts)
            log.info("request units: %g of %g RU/s, the rest is left to %s", left, budget, names)
        self._limit_fleet(left)

    def _limit_fleet(self, left: float) -> None:
        if left != self._left:
            self._left = left
            self._limits[Unit.REQUEST_UNITS].set_fleet_rate(left)

    async def aclose(self) -> None:
        await self._store.aclose()


def rates_text(rates: Rates, unit: Unit = Unit.RECORDS) -> str:
    """The rates as text: `500 records/s for each instance`."""
    if rates.fleet_rate is not None:
        return f"{rates.fleet_rate:,g} {unit.text} for all instances together"
    return "no limit" if rates.rate is None else f"{rates.rate:,g} {unit.text} for each instance"
