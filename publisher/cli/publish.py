"""`tidemark publish`: the lines of a file or a pipe become the events of a hub."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer
from rich.console import Console
from rich.markup import escape

from foundation.app_settings import ROOT
from foundation.azure.connections import ConnectionSettingsError, event_hubs_endpoint, tls_context
from foundation.command_settings import settings_of
from foundation.errors import TidemarkError
from publisher.cli.progress import progress
from publisher.errors import PublishError, PublishRefusedError, PublishSettingsError, PublishUnavailableError

if TYPE_CHECKING:
    from publisher.cli.publishing_run import Progress as Counts
    from publisher.event_hubs.producer import IdempotentProducer

console = Console(stderr=True)

ATTEMPTS = 10
"""From 0.8 s on and doubling up to 30 s they cover two and a half minutes of outage, which most restarts of a gateway
or a database stay below; with a saved state a later start goes on anyway.
"""


def publish(
    hub: Annotated[str, typer.Option("--hub", help="The event hub.")],
    file: Annotated[
        Path,
        typer.Option(
            "--file",
            "-f",
            help="Each line becomes an event, each row of a .csv a JSON one; - is standard input.",
        ),
    ],
    connection: Annotated[
        str, typer.Option("--connection", help="App setting of the Event Hubs connection.")
    ] = "EventHubConnection",
    partition_key: Annotated[
        str | None,
        typer.Option(
            "--partition-key",
            help="Field of the JSON lines or CSV rows that decides on the partition; else in turn.",
        ),
    ] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", help="Send all lines to this partition.")
    ] = None,
    idempotent: Annotated[  # noqa: FBT002 - a flag of the command line
        bool, typer.Option("--idempotent", help="No line is stored twice, whatever gets lost on the way.")
    ] = False,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="File of the saved state: after a crash, start again with the same."),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="Name of this producer in the saved state.")
    ] = "tidemark-publish",
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, help="At most so many lines per second.")
    ] = None,
    max_wait: Annotated[
        float, typer.Option("--max-wait", min=0.0, help="Seconds that a line waits for others.")
    ] = 0.2,
    max_events: Annotated[
        int | None, typer.Option("--max-events", min=1, help="Lines per batch; else as many as fit.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the answer to a batch.")
    ] = 60.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,  # noqa: FBT002 - as above
    root: Annotated[
        Path,
        typer.Option(
            "--root", help="Folder of .env and local.settings.json; the environment wins over both."
        ),
    ] = ROOT,
) -> None:
    """Publishes the lines of a file to an event hub, in batches, in order per partition.

    With --idempotent --state FILE it can be killed at any time: started again, it goes on where it was, without a line
    lost or doubled. Exit status: 0 all is published, 2 settings or input, 3 another producer has taken over or the
    state does not fit, 1 anything else.
    """
    try:
        counts = asyncio.run(
            _publish(
                hub=hub,
                file=file,
                connection=connection,
                key=partition_key,
                partition=partition,
                idempotent=idempotent,
                state=state,
                name=name,
                rate=rate,
                max_wait=max_wait,
                max_events=max_events,
                timeout=timeout,
                quiet=quiet,
                settings=settings_of(root),
            )
        )
    except (PublishError, TidemarkError) as error:
        console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        if isinstance(error, PublishRefusedError | PublishUnavailableError):
            console.print(f"look at --hub {escape(hub)} and at the app setting {escape(connection)}")
        raise typer.Exit(error.exit_status) from None
    except (ConnectionSettingsError, OSError) as error:
        console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from None
    except asyncio.CancelledError:
        again = "; start it again with the same --state to go on" if state is not None else ""
        console.print(f"stopped{again}")
        raise typer.Exit(130) from None
    console.print(_summary(counts))


def _summary(counts: Counts) -> str:
    if counts.published == 0:
        if counts.before == 0:
            return "nothing to publish: the input has no lines"
        return f"nothing left: all {_lines(counts.before)} were published before"
    before = f"; {_lines(counts.before)} before, by earlier runs" if counts.before else ""
    return f"{_lines(counts.published)} published{before}"


def _lines(count: int) -> str:
    return f"{count:,} line{'s' * (count != 1)}"


async def _publish(
    *,
    hub: str,
    file: Path,
    connection: str,
    key: str | None,
    partition: str | None,
    idempotent: bool,
    state: Path | None,
    name: str,
    rate: float | None,
    max_wait: float,
    max_events: int | None,
    timeout: float,
    quiet: bool,
    settings: Mapping[str, str],
) -> Counts:
    from publisher.cli.publishing_run import LineOptions, publish_lines  # noqa: PLC0415 - as above
    from publisher.event_hubs.batching import BufferLimits  # noqa: PLC0415 - the SDK takes half a second; --help needs none

    if key is not None and partition is not None:
        raise PublishSettingsError(
            "--partition-key and --partition are given; accepted: one of them, or none"
        )
    if state is not None and not idempotent:
        raise PublishSettingsError("--state needs --idempotent: there is no state to save without it")
    limits = BufferLimits(max_wait=max_wait, max_events=max_events)
    input_name = "standard input" if str(file) == "-" else str(file)
    is_csv = file.suffix.lower() == ".csv"
    options = LineOptions(key, partition, rate, saves=state is not None, name=input_name, csv=is_csv)
    task = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with _input(file) as source, _bar(source, quiet=quiet) as on_progress:
        producer = _producer(settings, connection, hub, state, name, timeout, idempotent=idempotent)
        return await publish_lines(source, producer, options, limits=limits, on_progress=on_progress)


def _producer(
    settings: Mapping[str, str],
    connection: str,
    hub: str,
    state: Path | None,
    name: str,
    timeout: float,
    *,
    idempotent: bool,
) -> IdempotentProducer:
    from publisher.event_hubs.producer import IdempotentProducer  # noqa: PLC0415 - as above
    from publisher.event_hubs.states.file import FileStateStore  # noqa: PLC0415 - as above
    from publisher.model import RetryPolicy  # noqa: PLC0415 - as above
    from publisher.sdk_insides import wants_insides  # noqa: PLC0415 - as above

    endpoint = event_hubs_endpoint(settings, connection)
    options: dict[str, Any] = {
        "enable_idempotent_partitions": idempotent,
        "state_store": None if state is None else FileStateStore(state),
        "producer_name": name,
        "retry": RetryPolicy(max_attempts=ATTEMPTS, attempt_timeout=timeout, max_delay=30.0),
        "sdk_insides": wants_insides(settings),
        "ssl_context": tls_context(settings),
    }
    if endpoint.connection_string is not None:
        return IdempotentProducer.from_connection_string(endpoint.connection_string, hub, **options)
    return IdempotentProducer(endpoint.namespace, hub, endpoint.credential, **options)


@contextlib.contextmanager
def _input(file: Path) -> Iterator[BinaryIO]:
    if str(file) == "-":
        yield sys.stdin.buffer
        return
    with file.open("rb") as source:
        yield source


@contextlib.contextmanager
def _bar(source: BinaryIO, *, quiet: bool) -> Iterator[Callable[[Counts], None]]:
    """What to call with the counts. What ends early says how far it came."""
    total, last = None, None
    if source.seekable():
        total = source.seek(0, os.SEEK_END)
        source.seek(0)
    with progress(console, "publishing", total=total, quiet=quiet) as show:

        def told(counts: Counts) -> None:
            nonlocal last
            if last is None and counts.unchecked:
                console.print(_unchecked(counts.unchecked), soft_wrap=True)
            last = counts
            show(counts.offset, f"{counts.published:,} published")

        try:
            yield told
        except BaseException:
            console.print(_summary_of_an_early_end(last), soft_wrap=True)
            raise


def _unchecked(lines: int) -> str:
    return (
        f"[yellow]not checked:[/] the saved state is of an earlier version, which did not write down of which input "
        f"{_lines(lines)} were published; this is taken to be the same one, and checked from now on"
    )


def _summary_of_an_early_end(counts: Counts | None) -> str:
    if counts is None:
        return "nothing was published"
    unknown = f", and of {counts.unknown:,} more it is unknown" if counts.unknown else ""
    before = f"; {_lines(counts.before)} before, by earlier runs" if counts.before else ""
    return f"{_lines(counts.published)} published{unknown}{before}"
