"""What the publisher's commands share: options as a class, the input, how far a command has come, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar, get_args, get_type_hints

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tidemark.foundation.errors import TidemarkError
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.sanitize import without_secrets
from tidemark.publisher.errors import PublishError, PublishRefusedError, PublishUnavailableError

console = Console(stderr=True)

NOT_ALL_SENT, SETTINGS, UNKNOWN, INTERRUPTED = 1, 2, 3, 130  # exit statuses

File = Annotated[
    Path,
    typer.Option("--file", "-f", help="Each line is sent, each row of a .csv as JSON; - is standard input."),
]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the answer to a batch.")]
Delimiter = Annotated[
    str | None,
    typer.Option(
        help="Between the fields of a .csv: one character, or tab; else found out by its first row."
    ),
]
Encoding = Annotated[str | None, typer.Option(help="Of a .csv, such as cp1252; else UTF-8.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
Root = Annotated[Path, "Folder of .env and local.settings.json; the environment wins over both."]

_Options = TypeVar("_Options")


def taking(options: type[_Options]) -> Callable[[Callable[[_Options], None]], Callable[..., None]]:
    """Makes a function of an options class one that typer takes: a parameter for each field of the class.

    A field that is annotated with a text is the option of its name with that help; one of truth has no --no-<name>.
    """
    hints = get_type_hints(options, include_extras=True)
    fields = inspect.signature(options).parameters.values()

    def option(name: str) -> Any:
        kind, said = get_args(hints[name])
        long = f"--{name.replace('_', '-')}"
        return Annotated[kind, typer.Option(long, help=said) if isinstance(said, str) else said]

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
def ends_told(entity: str, connection: str, *, stopped: str = "stopped") -> Iterator[None]:
    """Says why the command ends early, and ends it with the exit status of that.

    `entity` is the option that names where everything goes, `connection` the app setting of the connection.
    """
    try:
        yield
    except (PublishError, TidemarkError, OSError) as error:
        console.print(f"[red]error:[/] {escape(without_secrets(str(error)))}", soft_wrap=True)
        if isinstance(error, PublishRefusedError | PublishUnavailableError):
            console.print(f"look at {escape(entity)} and at the app setting {escape(connection)}")
        raise typer.Exit(getattr(error, "exit_status", SETTINGS)) from None
    except asyncio.CancelledError:
        console.print(stopped)
        raise typer.Exit(INTERRUPTED) from None


def cancelled_by_signals() -> None:
    """From now on SIGINT and SIGTERM cancel the running task."""
    task = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)


def opened(file: Path) -> contextlib.AbstractContextManager[BinaryIO]:
    """The input; - is standard input."""
    return contextlib.nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb")


def is_csv(file: Path) -> bool:
    return file.suffix.lower() == ".csv"


EVERY = 10.0
"""Seconds between two lines: often enough to see that it goes on, seldom enough for a log."""

Show = Callable[[int, str], None]
"""Takes the bytes of the input that are done, and what became of them in words."""


@contextlib.contextmanager
def progress(
    console: Console,
    doing: str,
    *,
    total: int | None,
    quiet: bool,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Show]:
    """What to call with the progress. `total` bytes, None if it is not known."""
    if quiet:
        yield lambda *_: None
    elif not console.is_terminal:
        yield _lines(console, total, clock)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(doing, total=total, told="")
            yield lambda done, told: bar.update(task, completed=done, told=told)


def _lines(console: Console, total: int | None, clock: Callable[[], float]) -> Show:
    last = clock()

    def show(done: int, told: str) -> None:
        nonlocal last
        if clock() - last >= EVERY:
            last = clock()
            console.print(told + (f" ({done / total:.0%} of the input)" if total else ""), soft_wrap=True)

    return show
