"""Which app a command works on, how it is reached, and how a command ends that cannot go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from msgspec import Struct
from rich.markup import escape

from scaling.analysis.replay import ReplayError
from scaling.config.rule_registry import RuleError
from scaling.service.assembly import assemble, assemble_log
from scaling.service.autoscaler import Autoscaler
from tidemark.commands.access.api import ApiAccess
from tidemark.commands.access.protocol import Access
from tidemark.commands.access.storage import StorageAccess
from tidemark.foundation import app_settings
from tidemark.foundation.app_settings import COMMAND_ROOT
from tidemark.foundation.errors import ConflictError, StoreUnavailableError, TidemarkError
from tidemark.foundation.http.deployed_app import app_named
from tidemark.foundation.http.which_app import NAME_AN_APP, check_app, reached, say_if_slow
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.sanitize import one_line, without_secrets
from tidemark.foundation.settings_reader import ConfigError
from tidemark.foundation.wording import file_problem

Root = Annotated[Path, typer.Option("--root", help="Folder of tidemark.toml, .env and local.settings.json.")]

_Result = TypeVar("_Result")
_App = TypeVar("_App", Autoscaler, Access)


class Where(Struct, frozen=True):
    """The app that the command line names, or the storage account; else the one that the settings in `root` name."""

    root: Path
    app: str | None = None
    account: str | None = None


def settings_of(root: Path, account: str | None = None) -> dict[str, str]:
    """The app's settings: see `app_settings`. Raises SettingsError."""
    return app_settings.load_settings(root, account=account)


def run_here(
    where: Where,
    work: Callable[[Autoscaler], Coroutine[Any, Any, _Result]],
    *,
    log_only: bool = False,
    ask_first: bool = True,
) -> _Result:
    """Runs `work` with an autoscaler of this process. An expected error becomes one message and exit status 1.

    `ask_first` ends it at once if the local stack is meant and does not run.
    """
    return _run(lambda: _assembled(where, log_only=log_only, ask_first=ask_first), work, where)


def run_at(
    where: Where,
    work: Callable[[Access], Coroutine[Any, Any, _Result]],
    *,
    log_only: bool = False,
    ask_first: bool = True,
    report_unread: Callable[[str], None] | None = None,
) -> _Result:
    """Runs `work` on the app. `report_unread` is given what cannot be read although the rest can."""

    def opened() -> Access:
        app = app_named(where.root, where.app, where.account)
        if app is not None:
            return ApiAccess(app)
        return StorageAccess(_assembled(where, log_only=log_only, ask_first=ask_first), report_unread)

    return _run(opened, work, where)


def _assembled(where: Where, *, log_only: bool, ask_first: bool) -> Autoscaler:
    """The log of an account that is named can be read without the settings of its targets."""
    settings = settings_of(where.root, where.account)
    if ask_first:
        check_app(where.root, settings, app_settings.STORAGE, way_on=NAME_AN_APP)
    try:
        return assemble(settings, root=where.root)
    except ConfigError:
        if not log_only or where.account is None:
            raise
        return assemble_log(settings)


def _run(
    opened: Callable[[], _App], work: Callable[[_App], Coroutine[Any, Any, _Result]], where: Where
) -> _Result:
    async def main() -> _Result:
        access = opened()
        async with aclosing(access):
            return await work(access)

    try:
        with say_if_slow(lambda: reached(where.root, where.app, where.account), Console(stderr=True)):
            return asyncio.run(main())
    except (ConfigError, StoreUnavailableError, ReplayError, RuleError, TidemarkError) as error:
        fail(str(error))
    except ConflictError:
        fail("other orders for this target kept arriving; try again")


def write_whole(path: Path, text: str) -> None:
    """All of a file, or nothing: what is cut off by a full disk is no configuration. Raises OSError that names the file in words."""
    half = path.with_name(f"{path.name}.half")
    try:
        half.write_text(text, encoding="utf-8")
        half.replace(path)
    except FileNotFoundError:
        raise OSError(f"{path} cannot be written: there is no folder {path.parent}") from None
    except OSError as error:
        raise OSError(f"{path} cannot be written: {file_problem(error)}") from error


def next_command(out: Path, linted: Path, root: Path) -> str:
    """What checks a file that was written, and no other one."""
    move = "" if out.resolve() == linted.resolve() else f"move it to {linted}, then "
    return f"Next: {move}tidemark lint{root_option(root)}"


def root_option(root: Path) -> str:
    """How a command that is shown names the folder: not at all where it would find it."""
    found = root.resolve() in {COMMAND_ROOT.resolve(), Path.cwd()}
    return "" if found else f" --root {quote(str(root))}"


def fail(message: str) -> NoReturn:
    """Ends the command with exit status 1."""
    shown = "\n".join(one_line(line) for line in without_secrets(message).split("\n"))
    Console(stderr=True).print(f"[red]error:[/] {escape(shown)}", soft_wrap=True)
    raise typer.Exit(1)


def as_text(value: object) -> str:
    """Line breaks are kept; whatever else would move a cursor is shown escaped."""
    return "?" if value is None else escape("\n".join(map(one_line, str(value).split("\n"))))
