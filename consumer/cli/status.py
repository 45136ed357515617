"""`tidemark consumer status` and `tidemark consumer rate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer
from rich.markup import escape

from consumer.cli.support import Json, Root, console, fail, run
from consumer.telemetry.interval import shared_text
from tidemark.foundation.app_settings import COMMAND_ROOT, STORAGE, load_settings
from tidemark.foundation.http.callers import NOBODY, named
from tidemark.foundation.http.deployed_options import Account, App, By, account_here
from tidemark.foundation.http.which_app import NAME_AN_APP, check_app, connection_text, reached
from tidemark.foundation.log.tables import FittedTable
from tidemark.foundation.log.terminal import print_json
from tidemark.foundation.sanitize import one_line
from tidemark.foundation.wording import count_text, duration_text, number_text, percent_text

if TYPE_CHECKING:
    from consumer.web import api
    from consumer.web.views import ConsumerView, PartitionView
    from tidemark.foundation.http.deployed_app import DeployedApp

_T = TypeVar("_T")


def consumer_app() -> typer.Typer:
    """`status` and `rate`."""
    app = typer.Typer(
        name="consumer", help="Running consumers: how they do, and their rate.", no_args_is_help=True
    )
    app.command("status")(status)
    app.command("rate")(rate)
    return app


def _run(
    where: tuple[Path, str | None, str | None],
    by_storage: Callable[[api.ConsumerTables], Coroutine[Any, Any, _T]],
    by_api: Callable[[DeployedApp], Coroutine[Any, Any, _T]],
) -> _T:
    """Runs the work at an app, in a storage account, or by the settings in a folder: `where` is (folder, app, account).

    An expected error becomes one message and exit status 1.
    """
    root, named_app, account = where
    from consumer.web import api
    from tidemark.foundation.errors import StoreUnavailableError
    from tidemark.foundation.http.deployed_app import app_named

    async def main() -> _T:
        app = app_named(root, named_app, account)
        if app is not None:
            async with app:
                return await by_api(app)
        settings = load_settings(root, account=account)
        check_app(root, settings, STORAGE, way_on=NAME_AN_APP)
        tables = api.open_tables(settings, time.time)
        try:
            return await by_storage(tables)
        finally:
            await tables.aclose()

    try:
        return run(main, lambda: reached(root, named_app, account))
    except (StoreUnavailableError, ValueError) as error:
        fail(str(error))


def status(
    name: Annotated[str | None, typer.Argument(help="Only this consumer.")] = None,
    root: Root = COMMAND_ROOT,
    app: App = None,
    account: Account = None,
    json_: Json = False,
) -> None:
    """Every consumer: instances, rates, charges, and the lag of each partition."""
    from consumer.web import api
    from consumer.web.views import ConsumersView

    where = (root, app, account)
    view = _run(where, api.look, lambda deployed: deployed.get(("consumer", "status"), ConsumersView))
    shown = tuple(consumer for consumer in view.consumers if name is None or consumer.consumer == name)
    if json_:
        print_json(msgspec.structs.replace(view, consumers=shown))
        return
    if not shown:
        which = "no consumer" if name is None else f"no instance of '{escape(name)}'"
        whose = escape(app or f"the storage account {account or f'of {STORAGE}'}")
        console.print(f"{which} has reported within the last day to {whose}")
    for consumer in shown:
        _show(consumer)
    if app is None:
        settings = load_settings(root, account=account)
        console.print(escape(connection_text(settings, STORAGE, "storage")), style="dim", soft_wrap=True)


def rate(
    name: Annotated[str, typer.Argument(help="The consumer: its CONSUMER_NAME.")],
    records: Annotated[
        float | None, typer.Argument(help="Records per second of each instance; 0 for no limit.")
    ] = None,
    fleet: Annotated[
        float | None, typer.Option("--fleet", help="Records per second of all instances together.")
    ] = None,
    request_units: Annotated[
        bool, typer.Option("--request-units", help="The order is for request units per second, not records.")
    ] = False,
    lift: Annotated[bool, typer.Option("--lift", help="Return to the configured rate.")] = False,
    by: By = "",
    root: Root = COMMAND_ROOT,
    app: App = None,
    account: Account = None,
) -> None:
    """Changes the rate of a running consumer, within seconds and until it is lifted."""
    if [records is not None, fleet is not None, lift].count(True) != 1:
        raise typer.BadParameter("one of RECORDS, --fleet and --lift is needed", param_hint="RECORDS")

    from consumer.telemetry.rate_orders import RateOrder, Unit
    from consumer.web import api

    by = by or account_here()
    wish = {"rate": records, "fleet_rate": fleet}
    unit = Unit.REQUEST_UNITS if request_units else Unit.RECORDS

    async def by_storage(tables: api.ConsumerTables) -> str:
        who, _ = named(NOBODY, by)
        return await api.order_rate(tables, name, api.rate_order(wish, by=who, at=tables.clock()), unit=unit)

    async def by_api(deployed: DeployedApp) -> str:
        # An app of a release before this one knows no unit, and would take the order for one of records.
        named_unit = {"unit": api.UNITS[1]} if request_units else {}
        order = await deployed.post(("consumer", name, "rate"), RateOrder, {**wish, **named_unit, "by": by})
        return api.rate_line(name, order, unit=unit)

    console.print(escape(_run((root, app, account), by_storage, by_api)), soft_wrap=True)


def _show(consumer: ConsumerView) -> None:
    limit = "no common limit"
    if consumer.rate_limit is not None:
        limit = f"limit {number_text(consumer.rate_limit)}{shared_text(consumer.rate_hubs_count)}"
    share = "?" if consumer.throttled_share is None else percent_text(consumer.throttled_share, 1)
    dropped = f", {consumer.dropped_total} dropped" if consumer.dropped_total else ""
    dropped += f", {consumer.parked_count} parked" if consumer.parked_count else ""
    rates = (
        f", {_number(consumer.written_per_s)} records/s ({limit}), {_number(consumer.ru_per_record)} RU per record,"
        f" {_number(consumer.ru_per_s)} RU/s, {share} throttled, lag {_number(consumer.lag)}"
    )
    console.print(
        f"[bold]{escape(one_line(consumer.consumer))}[/]: {consumer.live} live{rates if consumer.live else ''},"
        f" {count_text(consumer.dead_letters_total, 'dead letter', style=',')} made{dropped}",
        soft_wrap=True,
    )
    for order, unit in ((consumer.order, "records/s"), (consumer.ru_order, "RU/s")):
        if order is None or not order.holds:
            continue
        own_rate = f"{order.rate:g} {unit} for each instance" if order.rate is not None else ""
        kind = own_rate or f"{order.fleet_rate:g} {unit} for all together"
        console.print(f"  ordered: {kind}, by {escape(one_line(order.by))}", soft_wrap=True)
    instances = FittedTable("instance", "state", "age", "records/s", "limit", "429", "RU/record", "backlog")
    for one in consumer.instances:
        instances.add_row(
            *(escape(one_line(one.instance)), one.state, duration_text(one.age), _number(one.written_per_s)),
            "none" if one.rate_limit is None else _number(one.rate_limit) + shared_text(one.rate_hubs_count),
            *(percent_text(one.throttled_share, 1), _number(one.ru_per_record), _number(one.backlog_count)),
        )
    for one in consumer.instances:
        if one.problem:
            name = escape(one_line(one.instance))
            console.print(f"  [red]{name} failed:[/] {escape(one_line(one.problem))}", soft_wrap=True)
    # Newest first: a start that a later one repeats is not shown again.
    for notice in dict.fromkeys(one.notice for one in consumer.instances if one.notice):
        console.print(f"  [yellow]note:[/] {escape(one_line(notice))}", soft_wrap=True)
    console.print(instances)
    if consumer.partitions:
        _show_partitions(consumer.partitions)


def _show_partitions(partitions: Iterable[PartitionView]) -> None:
    shown = FittedTable("partition", "lag", "low-water", "received", "last enqueued", "in flight", "instance")
    for part in partitions:
        shown.add_row(*_cells(part))
    console.print(shown)


def _cells(part: PartitionView) -> list[str]:
    low_water = "none yet" if part.low_water is None else _number(part.low_water)
    numbers = map(_number, (part.received, part.last_enqueued, part.in_flight))
    where = part.instance if part.live else f"{part.instance} (gone)"
    return [escape(part.partition), _number(part.lag), low_water, *numbers, escape(one_line(where))]


def _number(value: float | None) -> str:
    return "?" if value is None else number_text(value)
