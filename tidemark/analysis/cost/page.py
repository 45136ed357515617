"""The page of the costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from matplotlib.figure import Figure

from tidemark.analysis.cost.account import REQUEST_UNITS, Account, ChangeCost, price_text
from tidemark.analysis.cost.spans import HOUR
from tidemark.analysis.cost.tables import LINE, amount, hour_of_day, line
from tidemark.analysis.plots import BLUE, GREEN, INK, ORANGE, drawn_value, new_figure, time_axis
from tidemark.analysis.report import Report
from tidemark.foundation.wording import count_text, duration_text, time_text

DRAWN = 5
"""Targets with pictures of their own: those that cost most. Chosen, as for `seasons`: two pictures each, on a page to scroll through."""

DEAREST = 10
"""The dearest changes of a target that are listed. Chosen: one screen; the table `changes` has all."""


def most(accounts: Sequence[Account]) -> list[str]:
    """The targets with pictures, the dearest first; those without a price by their hours."""
    ordered = sorted(
        accounts, key=lambda each: (each.money(each.units) is None, -(each.money(each.units) or each.units))
    )
    return [each.billed.target for each in ordered[:DRAWN]]


def report_of(accounts: Sequence[Account]) -> Report:
    """`accounts` in the order of the page. Those without days (too many to draw) are lines of the table only."""
    names = [each.billed.target for each in accounts]
    what = names[0] if len(names) == 1 else f"{len(names):,} targets"
    report = Report("Cost", f"{what}: what Azure billed, by target and by change of capacity")
    report.facts(_facts(accounts))
    report.table(tuple(LINE), [line(each) for each in accounts])
    for number, each in enumerate(found for found in accounts if found.days):
        _show(report, each, number)
    report.heading("How it is worked out")
    report.text(MODEL)
    _next(report, accounts)
    return report


def _next(report: Report, accounts: Sequence[Account]) -> None:
    plans = [each for each in accounts if each.billed.unit != REQUEST_UNITS and each.price is not None]
    if plans:
        dearest = max(plans, key=lambda each: (each.money(each.units) or 0.0, each.billed.target))
        command = ["tidemark", "advise", "log.json", "--target", dearest.billed.target]
        command += ["--price", f"{dearest.price.value:.4g}"] if dearest.price is not None else []
        command += ["--currency", dearest.currency] if dearest.currency else []
        report.next_step("what other policies would have cost at this price", *command)
    else:
        report.next_step("what was decided, and why", "tidemark", "log")


def _facts(accounts: Sequence[Account]) -> dict[str, str]:
    priced = [each for each in accounts if each.price is not None]
    if not priced or len({each.currency for each in priced}) > 1:
        return {"targets": f"{len(accounts):,}"}
    currency = priced[0].currency

    def total(units: Callable[[Account], float]) -> float:
        return sum(each.money(units(each)) or 0.0 for each in priced)

    less = total(lambda each: each.beside - each.shadow)
    outcome = "the shadow would save" if less >= 0 else "the shadow would cost more"
    sums = {
        "money": total(lambda each: each.units),
        "at the highest all the time": total(lambda each: each.static),
        **({outcome: abs(less)} if any(each.simulated for each in priced) else {}),
    }
    facts = {name: f"{money:,.2f} {currency}".rstrip() for name, money in sums.items()}
    if len(priced) < len(accounts):
        facts["without a price"] = f"{len(accounts) - len(priced):,} of {len(accounts):,} targets"
    return facts


def _show(report: Report, found: Account, number: int) -> None:
    report.heading(found.billed.target)
    unknown = found.whole - found.known
    told = f"The log tells its capacity for {duration_text(found.known * HOUR)}"
    told += (
        f", and nothing of {duration_text(unknown * HOUR)}; nothing is counted for that."
        if unknown > 0.02
        else "."
    )
    report.text(f"{told} Price: {price_text(found)}.")
    for note in found.notes:
        report.text(f"{note[0].upper()}{note[1:]}.")
    report.figure(
        _by_day(found), caption="By day (UTC): billed, and by capacity and price.", name=f"days-{number}"
    )
    if found.billed.unit == REQUEST_UNITS:
        report.text(f"Request units: {found.advice}.")
        report.figure(
            _by_hour(found),
            caption="By the hour of the day (UTC), on average: what is billed as scaled, and under autoscale up to the highest "
            "RU/s, in hours of 100 RU/s at the price of manual throughput.",
            name=f"hours-{number}",
        )
    changes = sorted(found.changes, key=lambda each: -abs(each.units))[:DEAREST]
    if changes:
        caption = (
            f"The {count_text(len(changes), 'change')} of {len(found.changes):,} that cost or saved most"
        )
        report.table(CHANGES, [_change(found, each) for each in changes], caption=caption)


CHANGES = ("at", "change", "held", "unit-hours", "money", "asked for by")


def _change(found: Account, each: ChangeCost) -> tuple[object, ...]:
    change = each.change
    return (
        time_text(change.at),
        f"{change.before:,} -> {change.after:,}",
        duration_text(change.held),
        each.units,
        amount(found, each.units),
        change.line or change.reason or "no decision in the log",
    )


def _by_day(found: Account) -> Figure:
    figure, (axes,) = new_figure()
    days: list[Any] = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=each.day) for each in found.days]
    by_capacity = [found.money(each.units) if found.price else each.units for each in found.days]
    if not found.billed.shared and any(each.billed is not None for each in found.days):
        axes.bar(
            days, [drawn_value(each.billed) for each in found.days], color=BLUE, alpha=0.5, label="billed"
        )
    axes.plot(
        days,
        [drawn_value(each) for each in by_capacity],
        color=GREEN,
        marker="o",
        markersize=3,
        label="by capacity",
    )
    axes.set_ylabel(found.currency or "money" if found.price else "unit-hours")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    time_axis(axes)
    return figure


def _by_hour(found: Account) -> Figure:
    figure, (axes,) = new_figure()
    both = hour_of_day(found)
    axes.step(range(24), [manual for manual, _ in both], where="post", color=BLUE, label="manual, as scaled")
    axes.step(range(24), [auto for _, auto in both], where="post", color=ORANGE, label="autoscale")
    axes.axhline(found.peak / 100, color=INK, linestyle=":", linewidth=0.9, label="manual, at the highest")
    axes.set_xlabel("hour of the day, UTC")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    return figure


MODEL = (
    "The scaling log tells the capacity; a reading holds until the next one, and not longer than --hold. What lies beyond is not "
    "known, and nothing is counted for it. Instances are billed by the time they ran; request units by the hour of UTC, at the "
    "highest throughput of the hour.\n\n"
    "The price of an instance-hour is what the export bills the plan, by what ran on it: the median of the days that log and export "
    "know whole. The newest day of an export is left out, for its charges still come in. Of a Cosmos DB account, which bills all its "
    "containers together, the price is the export's amount by its quantity, times the regions that it names on a day, for each bills "
    "all of the throughput; the target's money is its own capacity at that price.\n\n"
    "A change of capacity costs, or saves, what it adds until the next change, against the capacity before it. Autoscale bills the "
    "highest RU/s used in each hour, at least a tenth of its maximum, at 1.5 times the manual price. The log knows the use at its "
    "samples, so an hour's true highest may be more. What was billed for other reasons than use is not in it."
)
