"""`tidemark cost`: cost exports and the scaling log on one machine, without Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Annotated

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table
from typer import Option

from tidemark.analysis.advise.local import read_targets
from tidemark.analysis.arrow_columns import arrow_columns
from tidemark.analysis.backtest.reading import read_entries
from tidemark.analysis.cost import tables
from tidemark.analysis.cost.account import Account, Billed, account, price_text, totals
from tidemark.analysis.cost.charges import Charge
from tidemark.analysis.cost.files import read_exports, seen_of
from tidemark.analysis.cost.spans import CapacityEntry
from tidemark.analysis.cost.tables import LINE, line
from tidemark.analysis.cost.targets import Options, billed_targets, resource_option, resources_of, unnamed
from tidemark.analysis.errors import InputError
from tidemark.analysis.limits import read_limits
from tidemark.analysis.option_values import check_span, moment, price_of, seconds
from tidemark.analysis.options import CONFIG, Allow, Root, Since, Until, app_settings, with_groups
from tidemark.analysis.results import finish
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.sanitize import one_line

console = Console()

LIMITED = {"unpriced": "targets", "unknown": "hours", "quarantined": "targets"}
"""What --allow knows, and what its shares are of. `unknown` are hours for which the log has no capacity."""

EXPORTS = "Cost exports: FOCUS 1.0 or actual costs, CSV, .csv.gz or Parquet; a file or a folder."

# -- options, shared with the job on Spark ---------------------------------------------------------------

Config = Annotated[Path, Option(help="The configuration, which says which resource a target is.")]


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Which resource is whose, what it costs, and how the log is read."""

    resource: Annotated[
        list[str] | None,
        Option(help="TARGET=RESOURCE_ID, where the configuration does not say it. Repeat per target."),
    ] = None
    price: Annotated[
        list[str] | None,
        Option(help="TARGET=AMOUNT per instance-hour, or per 100 RU/s and hour. By default the export's."),
    ] = None
    ru_target: Annotated[
        list[str] | None, Option(help="A target in RU/s, where the configuration does not say it.")
    ] = None
    used: Annotated[
        str | None,
        Option(help="The metric of the log that counts the RU/s in use, for the advice on autoscale."),
    ] = None
    amount: Annotated[
        str | None,
        Option(
            help="The column that is the money, such as EffectiveCost.",
            show_default="the export's actual cost",
        ),
    ] = None
    hold: Annotated[str, Option(help="How long a capacity in the log holds where nothing follows.")] = "15m"

    def read(self) -> Options:
        """Raises InputError naming the option that cannot be read."""
        return Options(
            resources=dict(map(resource_option, self.resource or ())),
            prices=dict(map(price_of, self.price or ())),
            ru_targets=frozenset(self.ru_target or ()),
            used=self.used,
            hold=seconds("--hold", self.hold),
            amount=self.amount,
        )


SHOWN = 7
"""Columns of the page's table that a terminal shows; the others are lines below it. Chosen."""


# -- one machine ------------------------------------------------------------------------------------------


def accounts_of(
    seen: Mapping[str, list[CapacityEntry]],
    charges: list[Charge],
    billed: Mapping[str, Billed],
    options: Options,
) -> list[Account]:
    """Of all targets in the log, by name. Raises InputError for charges in several currencies."""
    one_currency({charge.currency for charge in charges})
    last = max((charge.day for charge in charges), default=None)
    by_resource: dict[str, list[Charge]] = {}
    for charge in charges:
        by_resource.setdefault(charge.resource, []).append(charge)
    asked = {name: billed.get(name) or unnamed(name, options) for name in sorted(seen)}
    return [
        account(asked[name], seen[name], by_resource.get(asked[name].resource, ()), last) for name in asked
    ]


def one_currency(currencies: Collection[str]) -> None:
    """Raises InputError where there are several."""
    if len(currencies) > 1:
        raise InputError(
            f"--costs has charges in {', '.join(sorted(currencies))}; accepted: one currency; give the exports one at a time"
        )


def read_seen(log: Path, since: datetime | None, until: datetime | None) -> dict[str, list[CapacityEntry]]:
    """The log by target, of those with a capacity in it. Raises InputError if there is none in that time."""
    first, end = -inf if since is None else since.timestamp(), inf if until is None else until.timestamp()
    by_target: dict[str, list[CapacityEntry]] = {}
    for entry in read_entries(log):
        if first <= entry.at < end:
            by_target.setdefault(entry.target, []).append(seen_of(entry))
    known = {
        name: entries
        for name, entries in by_target.items()
        if any(seen.capacity is not None for seen in entries)
    }
    if not known:
        between = "" if since is until is None else ", from --from to --to"
        raise InputError(
            f"--log {log} has no capacity of a target{between}; a scaling log is accepted (tidemark log --json)"
        )
    return known


def check_names(options: Options, known: Collection[str]) -> None:
    """Raises InputError for an option about a target that neither log nor configuration has: its price would say nothing."""
    for option, names in (
        ("--price", options.prices),
        ("--resource", options.resources),
        ("--ru-target", options.ru_targets),
    ):
        for name in names:
            if name not in known:
                raise InputError(f"{option} names the target '{name}'; known are {', '.join(sorted(known))}")


def show(accounts: list[Account]) -> None:
    """The targets on the terminal."""
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for place, header in enumerate([*LINE][:SHOWN]):
        table.add_column(header, no_wrap=not place, justify="right" if place else "left")
    for costs in accounts:
        cells = line(costs)[:SHOWN]
        table.add_row(
            *(f"{cell:,.1f}" if isinstance(cell, float) else escape(str(cell or "-")) for cell in cells)
        )
    console.print(table)
    for costs in accounts:
        for sentence in (f"price {price_text(costs)}", costs.advice, *costs.notes):
            if sentence:
                console.print(f"{escape(costs.billed.target)}: {escape(one_line(sentence))}", soft_wrap=True)


@with_groups
def command(
    *,
    costs: Annotated[Path, Option(help=EXPORTS)],
    log: Annotated[Path, Option(help="Scaling log as JSON. See `tidemark log --json`.")],
    since: Since = None,
    until: Until = None,
    bill: CostOptions,
    config: Config = CONFIG,
    output: Annotated[
        Path, Option("--output", file_okay=False, writable=True, help="Folder of page and tables.")
    ] = Path("cost-output"),
    root: Root = Path(),
    allow: Allow = None,
) -> None:
    """What Azure billed, joined with the scaling log: money by target and by change, against a static peak and the shadow.

    For request units also what autoscale would have cost, hour by hour. Writes the tables targets, days, hours and changes, and
    one page with plots.
    """
    limits = read_limits(allow or (), LIMITED.keys() - {"quarantined"})
    options = bill.read()
    begin, end = moment("--from", since), moment("--to", until)
    check_span(begin, end)
    settings = app_settings(root)
    configured = read_targets(config, settings)
    billed = billed_targets(configured, settings, options)
    seen = read_seen(log, begin, end)
    check_names(options, {*seen, *(() if configured is None else configured.names)})
    charges = read_exports(costs, resources_of(billed), options.amount)
    accounts = accounts_of(seen, charges, billed, options)
    show(accounts)
    made = [tables.rows_of(costs_of_target) for costs_of_target in accounts]
    finish(
        accounts,
        output,
        {
            name: ([row for of_target in made for row in of_target[name]], arrow_columns(columns))
            for name, columns in tables.ALL.items()
        },
        "tidemark.analysis.cost.page",
        counts=totals(accounts),
        limited=LIMITED,
        allow=limits,
        given={"log": log},
    )
