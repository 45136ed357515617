"""The page of the costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
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
        accounts,
        key=lambda account: (
            account.money(account.units) is None,
            -(account.money(account.units) or account.units),
        ),
    )
    return [account.billed.target for account in ordered[:DRAWN]]


def report_of(accounts: Sequence[Account], *, log: Path | None = None) -> Report:
    """`log` is the file with the scaling log, if it is one. `accounts` in the order of the page. Those without days (too many to draw) are lines of the table only."""
    names = [account.billed.target for account in accounts]
    what = names[0] if len(names) == 1 else f"{len(names):,} targets"
    report = Report("Cost", f"{what}: what Azure billed, by target and by change of capacity")
    report.facts(_facts(accounts))
    report.table(tuple(LINE), [line(account) for account in accounts])
    for number, account in enumerate(with_days for with_days in accounts if with_days.days):
        _show(report, account, number)
    report.heading("How it is worked out")
    report.text(MODEL)
    _next(report, accounts, log)
    return report


def _next(report: Report, accounts: Sequence[Account], log: Path | None) -> None:
    plans = [
        account for account in accounts if account.billed.unit != REQUEST_UNITS and account.price is not None
    ]
    if plans:
        dearest = max(plans, key=lambda plan: (plan.money(plan.units) or 0.0, plan.billed.target))
        command: list[object] = ["tidemark", "advise", log or "log.json", "--target", dearest.billed.target]
        command += ["--price", f"{dearest.price.value:.4g}"] if dearest.price is not None else []
        command += ["--currency", dearest.currency] if dearest.currency else []
        made = "" if log else "; log.json is what `tidemark log --json --limit 100000` prints"
        report.next_step(f"what other policies would have cost at this price{made}", *command)
    else:
        report.next_step("what was decided, and why", "tidemark", "log")


def _facts(accounts: Sequence[Account]) -> dict[str, str]:
    priced = [account for account in accounts if account.price is not None]
    if not priced or len({account.currency for account in priced}) > 1:
        return {"targets": f"{len(accounts):,}"}
    currency = priced[0].currency

    def total(units: Callable[[Account], float]) -> float:
        return sum(account.money(units(account)) or 0.0 for account in priced)

    less = total(lambda account: account.beside - account.shadow)
    outcome = "the shadow would save" if less >= 0 else "the shadow would cost more"
    sums = {
        "money": total(lambda account: account.units),
        "at the highest all the time": total(lambda account: account.static),
        **({outcome: abs(less)} if any(account.simulated for account in priced) else {}),
    }
    facts = {name: f"{money:,.2f} {currency}".rstrip() for name, money in sums.items()}
    if len(priced) < len(accounts):
        facts["without a price"] = f"{len(accounts) - len(priced):,} of {len(accounts):,} targets"
    return facts


def _show(report: Report, account: Account, number: int) -> None:
    report.heading(account.billed.target)
    unknown = account.whole - account.known
    sentence = f"The log has its capacity for {duration_text(account.known * HOUR)}"
    sentence += (
        f", and nothing of {duration_text(unknown * HOUR)}; nothing is counted for that."
        if unknown > 0.02
        else "."
    )
    report.text(f"{sentence} Price: {price_text(account)}.")
    for note in account.notes:
        report.text(f"{note[0].upper()}{note[1:]}.")
    report.figure(
        _by_day(account), caption="By day (UTC): billed, and by capacity and price.", name=f"days-{number}"
    )
    if account.billed.unit == REQUEST_UNITS:
        report.text(f"Request units: {account.advice}.")
        report.figure(
            _by_hour(account),
            caption="By the hour of the day (UTC), on average: what is billed as scaled, and under autoscale up to the highest "
            "RU/s, in hours of 100 RU/s at the price of manual throughput.",
            name=f"hours-{number}",
        )
    changes = sorted(account.changes, key=lambda change: -abs(change.units))[:DEAREST]
    if changes:
        caption = (
            f"The {count_text(len(changes), 'change')} of {len(account.changes):,} that cost or saved most"
        )
        report.table(CHANGES, [_change(account, change) for change in changes], caption=caption)


CHANGES = ("at", "change", "held", "unit-hours", "money", "asked for by")


def _change(account: Account, change_cost: ChangeCost) -> tuple[object, ...]:
    change = change_cost.change
    return (
        time_text(change.at),
        f"{change.before:,} -> {change.after:,}",
        duration_text(change.held),
        change_cost.units,
        amount(account, change_cost.units),
        change.line or change.reason or "no decision in the log",
    )


def _by_day(account: Account) -> Figure:
    figure, (axes,) = new_figure()
    days: list[Any] = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day.day) for day in account.days]
    by_capacity = [account.money(day.units) if account.price else day.units for day in account.days]
    if not account.billed.shared and any(day.billed is not None for day in account.days):
        axes.bar(
            days, [drawn_value(day.billed) for day in account.days], color=BLUE, alpha=0.5, label="billed"
        )
    axes.plot(
        days,
        [drawn_value(series) for series in by_capacity],
        color=GREEN,
        marker="o",
        markersize=3,
        label="by capacity",
    )
    axes.set_ylabel(f"{account.currency or 'money' if account.price else 'unit-hours'} a day")
    axes.legend(fontsize="small")
    time_axis(axes)
    return figure


def _by_hour(account: Account) -> Figure:
    figure, (axes,) = new_figure()
    both = hour_of_day(account)
    ends = [*both, both[-1]]  # to the end of the last hour
    axes.step(range(25), [manual for manual, _ in ends], where="post", color=BLUE, label="manual, as scaled")
    axes.step(range(25), [auto for _, auto in ends], where="post", color=ORANGE, label="autoscale")
    axes.axhline(account.peak / 100, color=INK, linestyle=":", linewidth=0.9, label="manual, at the highest")
    axes.set_xticks(range(0, 25, 3))
    axes.set(xlabel="hour of the day, UTC", ylabel="hours of 100 RU/s")
    axes.legend(fontsize="small")
    return figure


MODEL = (
    "The scaling log has the capacity; a reading holds until the next one, and not longer than --hold. What lies beyond is not "
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
