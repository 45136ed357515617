"""What `publish` and `send` share: options from a class, the input, the progress, and exit statuses."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar, get_args, get_type_hints
from urllib.request import getproxies, proxy_bypass

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tidemark.foundation.app_settings import load_settings
from tidemark.foundation.azure.exporting import otlp_tracing
from tidemark.foundation.errors import TidemarkError, UnavailableError
from tidemark.foundation.http import which_app
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.pacing.patience import DEFAULT, SETTING, asked_for
from tidemark.foundation.sanitize import without_secrets
from tidemark.foundation.tracing import names
from tidemark.foundation.tracing.names import Mode
from tidemark.foundation.tracing.spans import read_mode
from tidemark.foundation.wording import percent_text
from tidemark.publisher.cli.text.pipe import Pipe
from tidemark.publisher.errors import PublishError, PublishRefusedError, PublishUnavailableError
from tidemark.publisher.service_bus.core.errors import ClaimCheckError

console = Console(stderr=True)

NOT_ALL_SENT, SETTINGS, UNKNOWN, INTERRUPTED = 1, 2, 3, 130  # exit statuses

AMQPS, HTTPS = 5671, 443
REACHED_WITHIN = 5.0
"""Seconds until somebody accepts a connection. Chosen: a name server that is slow for once is asked a second time. It grows
with TIDEMARK_PATIENCE."""

File = Annotated[
    Path,
    typer.Option(
        "--file",
        "-f",
        help="Input: one message per line, or per row of a .csv (as JSON; publish: also of .parquet and .avro). - reads standard input.",
    ),
]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the answer to a batch.")]
Delimiter = Annotated[
    str | None,
    typer.Option(help="Delimiter of a .csv: one character, or tab. Default: detected in the first row."),
]
Encoding = Annotated[str | None, typer.Option(help="Encoding of a .csv, such as cp1252. Default: UTF-8.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Root = Annotated[Path, "Folder of .env and local.settings.json. Environment variables override both."]

_Options = TypeVar("_Options")


def from_options(options: type[_Options]) -> Callable[[Callable[[_Options], None]], Callable[..., None]]:
    """Turn a function of an options class into a typer command: each field of the class becomes an option.

    A field that is annotated with a text becomes the option of its name, with the text as help. Flags get no --no-<name>.
    """
    hints = get_type_hints(options, include_extras=True)
    fields = inspect.signature(options).parameters.values()

    def option(name: str) -> Any:
        type_, help_or_option = get_args(hints[name])
        long = f"--{name.replace('_', '-')}"
        spec = typer.Option(long, help=help_or_option) if isinstance(help_or_option, str) else help_or_option
        return Annotated[type_, spec]

    def decorate(run: Callable[[_Options], None]) -> Callable[..., None]:
        @functools.wraps(run)
        def command(**given: Any) -> None:
            run(options(**given))

        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [field.replace(annotation=option(field.name)) for field in fields]
        )
        return command

    return decorate


@contextlib.contextmanager
def report_early_end(
    entity: str, connection: str, *, stopped: str = "stopped", claims: str = ""
) -> Iterator[None]:
    """Print why the command ends early, and exit with the status of that error.

    `entity` is the option that names the destination, `connection` the app setting of the connection, and `claims` that of the
    storage account with the claim checks.
    """
    try:
        yield
    except (PublishError, TidemarkError, OSError) as error:
        text = (
            f"{error.filename}: {error.strerror}"
            if isinstance(error, OSError) and error.filename
            else str(error)
        )
        console.print(f"[red]error:[/] {escape(without_secrets(text))}", soft_wrap=True)
        if isinstance(error, PublishRefusedError | PublishUnavailableError):
            console.print(f"check {escape(entity)} and the app setting {escape(connection)}")
        if claims and isinstance(error, ClaimCheckError):
            console.print(f"check --claim-check and the app setting {escape(claims)} (--storage)")
        raise typer.Exit(getattr(error, "exit_status", SETTINGS)) from None
    except asyncio.CancelledError:
        console.print(stopped)
        raise typer.Exit(INTERRUPTED) from None


def say_if_slow(
    root: Path, asked: Mapping[str, str], module: str
) -> contextlib.AbstractContextManager[Callable[[], None]]:
    """`which_app.say_if_slow` for these connections: what of each, by its app setting. `module` is loaded first, with an SDK: that
    asks nobody.
    """
    import_module(module)

    def whom() -> str:
        settings = load_settings(root)
        return ", ".join(which_app.connection_text(settings, name, what) for name, what in asked.items())

    within = asked_for(os.environ)
    return which_app.say_if_slow(whom, console, what="the first answer", within=within)


async def check_reached(
    address: str, port: int = AMQPS, error: type[PublishError] = PublishUnavailableError
) -> None:
    """Raises `error` if nobody accepts a connection at an address: without it the attempts, which outlast a restart of the service,
    are made at a name that does not exist, too.
    """
    host, _, named = address.partition(":")
    if host in {"localhost", "127.0.0.1"}:
        return  # `check_local_stack` did
    if port == HTTPS and getproxies().keys() & {"https", "all"} and not proxy_bypass(host):
        return  # the SDK of storage asks by the proxy, and this machine may reach nothing else
    now = asyncio.get_running_loop().time
    until = now() + REACHED_WITHIN * asked_for(os.environ) / DEFAULT
    while problem := await _not_connected(host, int(named or port)):
        if now() > until:
            raise error(f"{address} cannot be reached: {problem}")
        await asyncio.sleep(1.0)


async def _not_connected(host: str, port: int) -> str:
    """Why there is no connection; '' if there is."""
    try:
        async with asyncio.timeout(REACHED_WITHIN):
            _, writer = await asyncio.open_connection(host, port)
    except OSError as error:  # TimeoutError is one
        return error.strerror or f"no answer within {REACHED_WITHIN:g} s"
    writer.transport.abort()
    return ""


@contextlib.asynccontextmanager
async def first_answer(
    address: str, is_heard: Callable[[], bool], error: type[PublishError] = PublishUnavailableError
) -> AsyncIterator[None]:
    """Raises `error` if nothing was heard from the address when the time is over that a person waits."""
    within, loop, limit = asked_for(os.environ), asyncio.get_running_loop(), asyncio.timeout(None)

    def look() -> None:
        if not is_heard():
            limit.reschedule(loop.time())

    timer = loop.call_later(within, look)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise error(f"{address} is reached and does not answer: waited {within:g} s ({SETTING})") from None
    finally:
        timer.cancel()


@contextlib.asynccontextmanager
async def tracing(settings: Mapping[str, str]) -> AsyncIterator[bool]:
    """Whether the settings ask for spans; with `otlp` they are exported, the last ones at the end. Raises SettingsError."""
    mode = read_mode(settings)
    provider = otlp_tracing(names.SETTING, "tidemark.publisher", settings) if mode is Mode.OTLP else None
    try:
        yield mode is not Mode.OFF
    finally:
        if provider is not None:
            await asyncio.to_thread(provider.shutdown)


def check_local_stack(settings: Mapping[str, str], connection: str) -> None:
    """Raises UnavailableError if the connection is to the local stack and that does not run: attempts would take ten seconds."""
    if problem := which_app.local_stack_problem(settings, connection):
        raise UnavailableError(problem)


def cancel_on_signals() -> None:
    """Let SIGINT and SIGTERM cancel the running task from now on."""
    task = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)


@contextlib.contextmanager
def open_input(file: Path) -> Iterator[BinaryIO]:
    """Open the input file; `-` is standard input. What cannot seek is a Pipe, which nobody waits for after the end."""
    with contextlib.nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as source:
        if source.seekable():
            yield source
            return
        pipe = Pipe(source)
        try:
            yield pipe
        finally:
            pipe.stop()


def is_csv(file: Path) -> bool:
    return file.suffix.lower() == ".csv"


SECONDS_BETWEEN_LINES = 10.0
"""Between two lines of progress without a terminal. Chosen: a user sees that it goes on, and a log stays short."""

ShowProgress = Callable[[int, str], None]
"""Takes how many bytes of the input were read, and the status text."""


@contextlib.contextmanager
def show_progress(
    console: Console,
    activity: str,
    *,
    total: int | None,
    quiet: bool,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[ShowProgress]:
    """Yield the function that shows progress. `total` is the size of the input in bytes, None if it is unknown."""
    if quiet:
        yield lambda *_: None
    elif not console.is_terminal:
        yield _print_lines(console, total, clock)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(activity, total=total, status="")
            yield lambda bytes_done, status: bar.update(task, completed=bytes_done, status=status)


def _print_lines(console: Console, total: int | None, clock: Callable[[], float]) -> ShowProgress:
    last_printed_at = clock()

    def show(bytes_done: int, status: str) -> None:
        nonlocal last_printed_at
        if clock() - last_printed_at >= SECONDS_BETWEEN_LINES:
            last_printed_at = clock()
            console.print(
                status + (f" ({percent_text(bytes_done / total, 0)} of the input)" if total else ""),
                soft_wrap=True,
            )

    return show
