"""Charges and capacity of one target to money: what it cost, and what else would have cost. Pure.

Azure bills instances of a plan by the time they ran, and request units by the hour of UTC, at the highest throughput of the
hour. Autoscale bills the highest RU/s that it scaled to in the hour, at least a tenth of its maximum, at 1.5 times the
price of manual throughput (Microsoft's "How to choose between standard (manual) and autoscale provisioned throughput").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median, quantiles

from msgspec import Struct

from tidemark.analysis.cost.charges import Charge
from tidemark.analysis.cost.spans import (
    DAY,
    HOUR,
    CapacityEntry,
    Change,
    Hour,
    Span,
    changes_of,
    cut,
    hours_of,
    spans_of,
)
from tidemark.foundation.wording import count_text, number_text

INSTANCE, REQUEST_UNITS = "instance", "RU/s"

AUTOSCALE_PRICE, AUTOSCALE_FLOOR = 1.5, 0.1
"""Of autoscale in Cosmos DB: its price for a request unit, in manual prices, and its floor as a share of the maximum. Source: Azure's
price list and the documentation of autoscale throughput.
"""

WHOLE_DAY = 0.95
"""The share of a day's hours with a known capacity, below which its bill is not compared. Chosen: an hour may be missing, as after
a deployment; a day of 22 hours would make the price 9 % too high.
"""

MANUAL, STATIC, AUTOSCALE = "manual, as scaled", "manual, at the highest", "autoscale"


class Billed(Struct, frozen=True):
    """A target as its bill knows it. `hold` in seconds; `price` is given, of an instance-hour or of 100 RU/s for an hour."""

    target: str
    unit: str = INSTANCE
    resource: str = ""
    shared: bool = False
    hold: float = 900.0
    price: float | None = None
    used: str | None = None


class Price(Struct, frozen=True):
    """Of a unit for an hour: an instance, or 100 RU/s. Of `days` days; half of them between `low` and `high`."""

    value: float
    days: int = 0
    low: float | None = None
    high: float | None = None


class HourCost(Struct, frozen=True):
    """Units that an hour is billed at: as it was, and of request units under autoscale up to the highest of all hours."""

    start: float
    known: float
    highest: int
    used: float | None
    units: float
    autoscale: float | None


class DayCost(Struct, frozen=True):
    """`day` since 1970. What was billed, None where the export has no charge; known hours, and the units of those."""

    day: int
    billed: float | None
    known: float
    units: float


class ChangeCost(Struct, frozen=True):
    """`units` are unit-hours more than if the capacity had stayed until the next change."""

    change: Change
    units: float


class Account(Struct, frozen=True):
    """What one target cost. Units are instance-hours, or hours of 100 RU/s; money is None where no price is known.

    `whole` are hours from the log's begin to its end, `known` those for which it has the capacity. `static` is the highest
    capacity all the time; `shadow` what the simulated rules would have had, `beside` what there was at those times.
    """

    billed: Billed
    currency: str
    charged: float | None
    price: Price | None
    whole: float
    known: float
    units: float
    peak: int
    static: float
    shadow_hours: float
    shadow: float
    beside: float
    autoscale: float | None
    assumed: int
    days: list[DayCost]
    hours: list[HourCost]
    changes: list[ChangeCost]
    notes: tuple[str, ...]

    def money(self, units: float | None) -> float | None:
        return None if units is None or self.price is None else units * self.price.value

    @property
    def simulated(self) -> bool:
        return self.shadow_hours > 0

    @property
    def offers(self) -> dict[str, float]:
        """Of request units, the units of each way to buy them; empty for instances."""
        if self.autoscale is None:
            return {}
        return {MANUAL: self.units, STATIC: self.static, AUTOSCALE: self.autoscale}

    @property
    def advice(self) -> str:
        """Which way to buy request units; empty for instances."""
        offers = self.offers
        if not offers:
            return ""
        cheapest = min(offers, key=lambda name: offers[name])
        others = ", ".join(
            f"{name} {offers[name] / offers[cheapest]:.2f} times as much"
            for name in offers
            if name != cheapest and offers[cheapest]
        )
        what = f"{cheapest} up to {self.peak:,} RU/s" if cheapest == AUTOSCALE else cheapest
        bound = (
            f" (in {self.assumed} of {len(self.hours)} hours the use is not known, and all that was there counts as used)"
            if self.assumed
            else ""
        )
        return f"cheapest is {what}; {others}{bound}"


def account(
    billed: Billed, seen: Sequence[CapacityEntry], charges: Iterable[Charge], last_day: int | None
) -> Account:
    """`charges` are those of the billed resource; `last_day` is the newest of the whole export, which may be incomplete."""
    spans = spans_of(seen, billed.hold)
    hours = hours_of(spans, seen, billed.used)
    metered = billed.unit == REQUEST_UNITS
    charges_in_order = sorted(  # in an order of its own: sums have the same digits, whoever read the files
        (
            charge
            for charge in charges
            if charge.usage and charge.resource == billed.resource and (charge.request_units or not metered)
        ),
        key=lambda charge: (charge.day, charge.amount, charge.quantity or 0.0),
    )
    units_of = _hourly if metered else _running
    whole = (max(entry.at for entry in seen) - min(entry.at for entry in seen)) / HOUR if seen else 0.0
    peak = max((hour.highest for hour in hours), default=0)
    costs = [_hour_cost(hour, units_of, peak if metered else None) for hour in hours]
    days = _days(costs, charges_in_order)
    price, notes = _price(billed, days, charges_in_order, last_day)
    return Account(
        billed=billed,
        currency=max((charge.currency for charge in charges_in_order), default=""),
        charged=sum(charge.amount for charge in charges_in_order)
        if charges_in_order and not billed.shared
        else None,
        price=price,
        whole=whole,
        known=sum(hour.known for hour in hours) / HOUR,
        units=sum(cost.units for cost in costs),
        peak=peak,
        static=sum(units_of(hour.known, peak * hour.known, peak) for hour in hours),
        shadow_hours=sum(hour.shadow_known for hour in hours) / HOUR,
        shadow=sum(units_of(h.shadow_known, h.shadow_integral, h.shadow_highest) for h in hours),
        beside=sum(units_of(h.shadow_known, h.beside_integral, h.beside_highest) for h in hours),
        autoscale=sum(cost.autoscale or 0.0 for cost in costs) if metered else None,
        assumed=sum(hour.used is None for hour in hours) if metered else 0,
        days=days,
        hours=costs,
        changes=_changes(billed, spans, seen),
        notes=notes,
    )


def _hour_cost(hour: Hour, units_of: Callable[[float, float, int], float], maximum: int | None) -> HourCost:
    units = units_of(hour.known, hour.integral, hour.highest)
    autoscale = None if maximum is None else _autoscale(hour, maximum)
    return HourCost(hour.start, hour.known, hour.highest, hour.used, units, autoscale)


def _running(_known: float, integral: float, _highest: int) -> float:
    return integral / HOUR


def _hourly(known: float, _integral: float, highest: int) -> float:
    return highest / 100.0 if known else 0.0


def _autoscale(hour: Hour, maximum: int) -> float:
    """Units of an hour under autoscale, in units of manual throughput. All that was there counts as used where nobody knows."""
    used = hour.highest if hour.used is None else min(hour.used, maximum)
    return AUTOSCALE_PRICE * max(AUTOSCALE_FLOOR * maximum, used) / 100.0


def _days(hours: Iterable[HourCost], charges: Iterable[Charge]) -> list[DayCost]:
    amounts: dict[int, float] = defaultdict(float)
    for charge in charges:
        amounts[charge.day] += charge.amount
    known: dict[int, list[HourCost]] = defaultdict(list)
    for hour in hours:
        known[int(hour.start // DAY)].append(hour)
    return [
        DayCost(
            day,
            amounts.get(day),
            sum(counted.known for counted in known[day]) / HOUR,
            sum(counted.units for counted in known[day]),
        )
        for day in sorted(amounts.keys() | known.keys())
    ]


# -- the price ---------------------------------------------------------------------------------------------


def _price(
    billed: Billed, days: Sequence[DayCost], charges: Sequence[Charge], last_day: int | None
) -> tuple[Price | None, tuple[str, ...]]:
    """The price of a unit, and what is to be known of it."""
    if billed.price is not None:
        return Price(billed.price), ()
    if not charges:
        what = " for request units" if billed.unit == REQUEST_UNITS else ""
        return None, (f"the export has no charge{what} of '{billed.resource or billed.target}'",)
    metered = any(charge.autoscale for charge in charges)
    derived, why = _by_quantity(charges) if billed.shared or metered else _by_capacity(billed, days, last_day)
    if not derived:
        return None, (why,)
    value = median(derived)
    if value <= 0:
        return None, (AT_NOTHING,)
    low, _, high = quantiles(derived, n=4) if len(derived) > 1 else (value, value, value)
    spread = high - low > 0.1 * value
    notes = ((DIFFERS,) if spread else ()) + ((METERED,) if metered else ())
    return Price(value, len(derived), low, high), notes


DIFFERS = "the price differs by day: other charges are on the same resource, or its size was changed"
METERED = "autoscale is on the bill: what is shown as money is the price of as many RU/s as manual throughput"
AT_NOTHING = (
    "what it used was billed at 0: a reservation pays for it? `--amount EffectiveCost` (FOCUS), or an export of amortized costs, "
    "spreads that over the use"
)


def _by_capacity(billed: Billed, days: Sequence[DayCost], last_day: int | None) -> tuple[list[float], str]:
    """What was billed by what there was, of the days that are known whole. The newest day of an export is still filling."""
    hourly = billed.unit == REQUEST_UNITS
    prices = [
        day.billed / (day.units * 24.0 / day.known if not hourly else day.units)
        for day in days
        if day.billed is not None and day.units and day.known >= 24.0 * WHOLE_DAY and day.day != last_day
    ]
    with_charges = sum(day.billed is not None for day in days)
    why = (
        f"no day is known whole in both log and export ({count_text(with_charges, 'day')} with charges, the newest does not count): no price; "
        "give --price"
    )
    return prices, why


def _by_quantity(charges: Sequence[Charge]) -> tuple[list[float], str]:
    """Of an account that others use, too: what was billed by the hours of 100 RU/s that the export counts, which it does once
    for each region: every region has all of the throughput, and bills it.
    """
    amounts: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    regions: dict[int, set[str]] = defaultdict(set)
    for charge in charges:
        if charge.quantity:
            amounts[charge.day][0] += charge.amount / (AUTOSCALE_PRICE if charge.autoscale else 1.0)
            amounts[charge.day][1] += charge.quantity
            regions[charge.day] |= {charge.region} - {""}
    prices = [
        amount / quantity * (len(regions[day]) or 1)
        for day, (amount, quantity) in amounts.items()
        if quantity > 0
    ]
    return prices, "the export has no quantity of request units: no price; give --price"


# -- changes -----------------------------------------------------------------------------------------------


def _changes(billed: Billed, spans: Sequence[Span], seen: Sequence[CapacityEntry]) -> list[ChangeCost]:
    cost: Callable[[Change, Mapping[float, list[Span]]], float] = (
        _whole_hours if billed.unit == REQUEST_UNITS else _added
    )
    by_hour: dict[float, list[Span]] = defaultdict(list)
    if billed.unit == REQUEST_UNITS:
        for span in spans:
            for part in cut(span):
                by_hour[part.begin - part.begin % HOUR].append(part)
    return [ChangeCost(change, cost(change, by_hour)) for change in changes_of(spans, seen, billed.hold)]


def _added(change: Change, _: Mapping[float, list[Span]]) -> float:
    return (change.after - change.before) * change.held / HOUR


def _whole_hours(change: Change, by_hour: Mapping[float, list[Span]]) -> float:
    """The hours' highest, less what it had been without the change."""
    total, start = 0.0, change.at - change.at % HOUR
    while start < change.end:
        parts = by_hour.get(start, [])
        during = any(change.at <= part.begin < change.end for part in parts)
        others = [part.capacity for part in parts if not change.at <= part.begin < change.end]
        if during:
            total += max(part.capacity for part in parts) - max([*others, change.before])
        start += HOUR
    return total / 100.0


def totals(accounts: Iterable[Account]) -> dict[str, float]:
    """The counts that --allow may limit: targets without a price, and hours for which the log has no capacity."""
    known = list(accounts)
    return {
        "targets": len(known),
        "hours": sum(costs.whole for costs in known),
        "unpriced": sum(costs.price is None for costs in known),
        "unknown": sum(max(costs.whole - costs.known, 0.0) for costs in known),
        "changes": sum(len(costs.changes) for costs in known),
    }


def price_text(costs: Account) -> str:
    """In words, for the terminal and the page."""
    if costs.price is None:
        return "not known"
    per = "100 RU/s for an hour" if costs.billed.unit == REQUEST_UNITS else "instance-hour"
    price = f"{costs.price.value:.4g} {costs.currency}".rstrip() + f" per {per}"
    return f"{price}, of {number_text(costs.price.days)} days" if costs.price.days else f"{price}, as given"
