"""Local servers that Azure's own SDKs talk to: start them, send them something, or run the demo on them."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from azure.core.exceptions import AzureError
from rich.console import Console
from rich.markup import escape

from devstack.processes.child import ProcessError
from devstack.processes.node import NodeError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
console = Console()


@app.command()
def demo(
    seconds: Annotated[
        float, typer.Option(min=10, max=600, help="Seconds in which the recorded day of load passes.")
    ] = 75,
    records: Annotated[
        int,
        typer.Option(
            min=2_000, max=336_000, help="Records to stream: real flights, and a few that are none."
        ),
    ] = 24_000,
    part: Annotated[
        str, typer.Option(help="orders (a plan is scaled), flights (a database), or both.")
    ] = "both",
    folder: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("demo-report"),
) -> None:
    """Scale a local App Service Plan on a recorded day of load, then a database that real records stream to."""
    from devstack.demo import scenes as demo_module

    if part not in set(demo_module.Parts):
        raise typer.BadParameter(f"'{part}'; accepted: orders, flights, both", param_hint="--part")
    _check_writable(folder)
    try:
        plan = demo_module.Plan(seconds, records, demo_module.Parts(part))
        status = asyncio.run(demo_module.run(console, plan, folder))
    except* (ProcessError, NodeError) as errors:
        _print_error(errors.exceptions[0])
        status = 1  # raised here, an exit would become part of a group, and end in a traceback
    raise typer.Exit(status)


@app.command("demo-spark")
def demo_spark(
    scale: Annotated[
        float, typer.Option(min=0.001, max=10, help="Share of the data: 1 is a million events.")
    ] = 0.2,
    folder: Annotated[
        Path, typer.Option(help="Data, tables and reports; what an earlier run left there is deleted.")
    ] = Path("spark-output/demo"),
) -> None:
    """Run the five Spark jobs on larger data: find events that were lost, and write them."""
    from devstack.demo.spark import large as demo_module

    _check_writable(folder)
    try:
        status = demo_module.run(console, folder, scale)
    except (ProcessError, NodeError) as error:
        _print_error(error)
        status = 1
    raise typer.Exit(status)


def _check_writable(folder: Path) -> None:
    """Before the run, not after it. Raises BadParameter."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise typer.BadParameter(
            f"the report cannot be written there: {error}", param_hint="--folder"
        ) from None


def _check_running(connection: str) -> None:
    """Ends the command at once if nothing listens where this setting says: the SDKs would try again for ten seconds."""
    from devstack.local import settings
    from tidemark.foundation.http.which_app import local_stack_problem

    if problem := local_stack_problem(settings(), connection):
        _print_error(problem)
        raise typer.Exit(1)


def _print_error(error: BaseException | str) -> None:
    # What a child process wrote may hold brackets; they are no markup.
    console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)


@app.command()
def start(
    *, func: Annotated[bool, typer.Option(help="Use Azure Functions Core Tools when on PATH.")] = True
) -> None:
    """Start the local servers on the ports of local.settings.json, and the functions; until Ctrl-C."""
    from devstack.local import run

    try:
        raise typer.Exit(asyncio.run(run(console, prefer_func=func)))
    except (ProcessError, NodeError) as error:
        _print_error(error)
        raise typer.Exit(1) from None


@app.command()
def servers(
    *,
    free_ports: Annotated[
        bool, typer.Option("--free-ports", help="Any free ports, not those of local.settings.json.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="Keep storage and event hubs in this folder; without it, in memory.")
    ] = None,
) -> None:
    """Start all local servers without the functions, and print their connection strings; until Ctrl-C."""
    from devstack.local import serve

    try:
        asyncio.run(serve(console, free_ports=free_ports, data=data))
    except (ProcessError, NodeError, OSError) as error:
        _print_error(error)
        raise typer.Exit(1) from None


@app.command()
def send(
    count: Annotated[int, typer.Argument(min=1, help="How many messages.")] = 1000,
    queue: Annotated[
        str, typer.Option(help="A queue of this name, which is made if it is missing, in place of it.")
    ] = "",
) -> None:
    """Send messages to the local subscription that `start` watches, to see the autoscaler act."""
    from devstack.local import send as send_messages

    _check_running("OrdersServiceBus")
    try:
        asyncio.run(send_messages(count, queue))
    except (AzureError, OSError) as error:
        _print_error(f"the local Service Bus does not take messages: {error}")
        raise typer.Exit(1) from None
    console.print(f"{count} messages sent to " + (f"queue '{queue}'" if queue else "topic 'orders'"))


@app.command()
def flights(
    count: Annotated[int, typer.Argument(min=1, help="How many flights.")] = 1000,
    first: Annotated[int, typer.Option(min=0, help="The first one to send, of 336,776.")] = 0,
    poison: Annotated[
        int, typer.Option(min=0, help="Events that are no JSON, sent among them: dead letters to be.")
    ] = 0,
) -> None:
    """Send real flights to the local event hub that `start` runs; `tidemark consume` writes them to Cosmos DB."""
    from devstack.local import send_flights
    from tidemark.publisher import PublishError

    _check_running("EventHubConnection")
    try:
        asyncio.run(send_flights(count, first, poison))
    except PublishError as error:
        _print_error(f"the local Event Hubs takes no events: {error}")
        raise typer.Exit(1) from None
    also = f" and {poison} events that are none" if poison else ""
    console.print(f"{count} flights{also} sent to hub 'flights'")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    app()
