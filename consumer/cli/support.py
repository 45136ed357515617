"""What the consumer's commands have in common: the parts they work on, their errors, their questions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, Protocol, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from consumer.leasing.start_position import Start
from consumer.model import Event, PartitionState
from consumer.ports import CheckpointStore, DeadLetterStore, Sink
from foundation.errors import TidemarkError
from foundation.sanitize import one_line, without_secrets

DEADLINE = 60.0
"""Seconds for one request to a store; a person waits."""

_T = TypeVar("_T")


class Named(Protocol):
    """Whose positions and letters."""

    @property
    def hub(self) -> str: ...

    @property
    def consumer_group(self) -> str: ...


class Receiver(Protocol):
    """What a hub says of its partitions; consumer.receiving.receiver.HubReceiver. All raise ConsumerErrors."""

    async def partitions(self) -> list[str]: ...

    async def state(self, partition: str) -> PartitionState: ...

    async def receive(
        self,
        partition: str,
        start: Start,
        epoch: int,
        on_events: Callable[[Sequence[Event], int | None], Awaitable[None]],
    ) -> None: ...

    async def close(self, deadline: float | None = None) -> None: ...


class Parts(Protocol):
    """The adapters of one consumer; consumer.running.assembly.Parts. Who makes one closes it."""

    @property
    def config(self) -> Named: ...

    def checkpoints(self) -> CheckpointStore: ...

    def letters(self) -> DeadLetterStore: ...

    def sink(self) -> Sink: ...

    def receiver(self) -> Receiver: ...


OpenParts = Callable[[Path], Parts]
"""The parts that the settings in a folder name. Raises TidemarkError."""

console = Console()
errors = Console(stderr=True)

Root = Annotated[Path, typer.Option("--root", help="Folder of host.json, .env and local.settings.json.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def run(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """The result of `work`; an expected error becomes one message and exit status 1."""
    try:
        return asyncio.run(work())
    except TidemarkError as error:
        fail(str(error))


def plain(text: str) -> str:
    """`text` for the console: markup and whatever would move the cursor is shown, not done. Lines stay apart."""
    return escape("\n".join(map(one_line, text.split("\n"))))


def fail(message: str) -> NoReturn:
    """Ends the command with exit status 1."""
    errors.print(f"[red]error:[/] {plain(without_secrets(message))}", soft_wrap=True)
    raise typer.Exit(1)


def ask(question: str, *, yes: bool) -> None:
    """Ends the command with exit status 1 unless the answer is yes."""
    if not yes and not typer.confirm(question):
        fail("nothing was changed")


def soon(seconds: float = DEADLINE) -> float:
    """A deadline of the running loop's clock."""
    return asyncio.get_running_loop().time() + seconds


def print_json(value: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"
