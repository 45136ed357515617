"""Shared by the consumer's commands: the parts they use, their errors and their questions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

import typer
from msgspec import structs
from rich.markup import escape

from consumer.definition.loading import find_hub, load_definition
from tidemark.foundation.app_settings import STORAGE, load_settings
from tidemark.foundation.errors import TidemarkError
from tidemark.foundation.http.which_app import check_app, connection_text, say_if_slow
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.sanitize import one_line, without_secrets

if TYPE_CHECKING:  # the SDKs take a second; --help needs none
    from consumer.config import ConsumerConfig
    from consumer.running.assembly import Parts

DEADLINE = 60.0
"""Seconds for one request to a store, for which a person waits."""

_T = TypeVar("_T")

console = Console()
errors = Console(stderr=True)

Root = Annotated[Path, typer.Option("--root", help="Folder of host.json, .env and local.settings.json.")]
Hub = Annotated[str | None, typer.Option("--hub", help="A hub of CONSUMER_FILE; needed if it has several.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def own_modules_of(root: Path) -> None:
    """Lets CONSUMER_TRANSFORM and CONSUMER_SQL_HANDLER name modules beside the settings, as in a Functions app."""
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))


def open_parts(root: Path, hub: str | None = None, *, dry_run: bool = False) -> Parts:
    """The parts that the settings in a folder name, or its file for `hub`. Those of a dry run create nothing. Raises TidemarkError."""
    from consumer.running.assembly import Parts

    own_modules_of(root)
    settings = load_settings(root)
    check_app(root, settings, STORAGE)
    hub_read = find_hub(load_definition(settings), hub)
    config = structs.replace(hub_read.config, dry_run=dry_run or hub_read.config.dry_run)
    return Parts(config, hub_read.settings, hub_read)


def open_for(root: Path, hub: str | None, *, dry_run: bool) -> tuple[Parts, bool]:
    """The parts for a command that changes something, and whether it must not: by its option, or by the settings, which is printed."""
    try:
        parts = open_parts(root, hub, dry_run=dry_run)
    except TidemarkError as error:
        fail(str(error))
    if parts.config.dry_run and not dry_run:
        console.print("COSMOS_WRITE is false, so this is a dry run")
    return parts, dry_run or parts.config.dry_run


def show_connections(parts: Parts, store: str) -> None:
    """Prints where the hub is and where what was shown is stored, and by which settings. `store` is a kind of store: blob, sql or
    cosmos.
    """
    console.print(
        plain("\n".join(_connections(parts.config, parts.settings, store))), style="dim", soft_wrap=True
    )


def _connections(config: ConsumerConfig, settings: Mapping[str, str], store: str) -> tuple[str, str]:
    stored = {
        "sql": "database: see CONSUMER_SQL_URL",
        "cosmos": connection_text(settings, config.cosmos_connection, "Cosmos DB"),
    }.get(store) or connection_text(settings, config.storage_connection, "storage")
    return connection_text(settings, config.hub_connection, f"hub {config.hub}"), stored


def run(work: Callable[[], Coroutine[Any, Any, _T]], whom: Callable[[], str]) -> _T:
    """The result of `work`; an expected error becomes one message and exit status 1. `whom` it asks is printed if it is slow."""
    import_module("consumer.running.assembly")  # it loads the SDKs, and asks nobody
    try:
        with say_if_slow(whom, errors):
            return asyncio.run(work())
    except TidemarkError as error:
        fail(str(error))


def asked(where: tuple[Path, str | None], store: Literal["checkpoints", "dead_letters"]) -> Callable[[], str]:
    """Whom a command about a store asks, for the folder and hub `where`."""

    def whom() -> str:
        root, hub = where
        definition = find_hub(load_definition(load_settings(root)), hub)
        return ", ".join(
            _connections(definition.config, definition.settings, getattr(definition.config, store))
        )

    return whom


def plain(text: str) -> str:
    """The text for the console, with markup and control characters escaped. Lines stay apart."""
    return escape("\n".join(map(one_line, text.split("\n"))))


def fail(message: str) -> NoReturn:
    """Ends the command with exit status 1."""
    errors.print(f"[red]error:[/] {plain(without_secrets(message))}", soft_wrap=True)
    raise typer.Exit(1)


def ask(question: str, *, yes: bool) -> None:
    """Ends the command with exit status 1 unless the answer is yes."""
    try:
        is_agreed = yes or typer.confirm(question)
    except typer.Abort:  # Ctrl-C, or an input that has ended
        fail("nobody answered, so nothing was changed; --yes answers without a terminal")
    if not is_agreed:
        fail("nothing was changed")


def soon(seconds: float = DEADLINE) -> float:
    """A deadline by the clock of the running loop."""
    return asyncio.get_running_loop().time() + seconds


def number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"
