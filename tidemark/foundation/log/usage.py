"""The help and the errors of the command line: types of options as other tools name them, headings, and no secrets in errors
about wrong options. It imports little, because every command imports it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from tidemark.foundation.app_settings import COMMAND_ROOT
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.pacing.patience import of_a_person
from tidemark.foundation.sanitize import without_secrets
from tidemark.foundation.version import VERSION


@contextmanager
def _usage_errors_without_secrets() -> Iterator[None]:
    """Hide secrets in usage errors: people paste a connection string in place of a name, and the error quotes it."""
    try:
        yield
    except _UsageError as error:
        error.message = without_secrets(error.message)  # type: ignore[attr-defined]  # click's own
        raise


_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The base of click's errors in options. Typer contains its own click, and does not export this class."""


def _fold_help() -> None:
    """Break words that are wider than their column of the help: typer cuts them, also the name of an option."""
    from rich.table import Table  # noqa: PLC0415 - 0.1 s, for the help alone
    from typer import rich_utils  # noqa: PLC0415 - as above

    class FoldingTable(Table):
        def add_row(self, *cells: Any, **options: Any) -> None:
            super().add_row(*cells, **options)
            texts = [text for cell in cells for text in getattr(cell, "renderables", ())]
            for part in (*self.columns, *texts):
                part.overflow = "fold"

    rich_utils.Table = FoldingTable  # type: ignore[attr-defined]  # it has no option for it


class _WithoutSecrets:
    def make_context(self, *args: Any, **options: Any) -> Any:
        _name_types(self)
        with _usage_errors_without_secrets():
            return super().make_context(*args, **options)  # type: ignore[misc]  # of the command it is mixed into

    def invoke(self, ctx: Any) -> Any:
        if "--help" in ctx.args:
            _fold_help()
        with _usage_errors_without_secrets():
            return super().invoke(ctx)  # type: ignore[misc]  # as above


class Command(_WithoutSecrets, TyperCommand):
    """The `cls` of a program that is one command."""


class CommandGroup(_WithoutSecrets, TyperGroup):
    """The `cls` of a program with several commands: it parses the options of all of them."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The headings of the help in their order, and the commands below each. Commands of none come first."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for heading, names in self.panels.items():
            for name in names:
                if (command := self.commands.pop(name, None)) is not None:
                    self.commands[name] = command  # behind those of the headings before
                    command.rich_help_panel = heading  # type: ignore[attr-defined]  # of each of typer's


_TYPES = {"str": "TEXT", "list[str]": "TEXT", "int": "INTEGER", "int range": "INTEGER"}
_TYPES |= {"float": "NUMBER", "float range": "NUMBER", "path": "PATH", "bool": ""}


def _type_name(name: str) -> str:
    text = name.strip("<>")
    is_named = text.startswith("[") or text in _TYPES.values()
    return text if is_named else _TYPES.get(text, f"[{text}]")


def _name_types(command: Any) -> None:
    """Show the types of options as command lines usually do: `--file PATH`, and nothing for a flag. Typer's own are `<path>`, `<bool>`."""
    for param in command.get_params(typer.Context(command)):  # --help is made here
        if isinstance(param, TyperOption) and param.metavar is None:
            name = "bool" if param.is_flag else param.display_type(None)  # type: ignore[arg-type]  # it uses no context
            param.metavar = _type_name(name)
        elif isinstance(param, TyperArgument) and param.metavar is None:  # its metavar would be its name
            shown = _type_name(param.display_type(None))  # type: ignore[arg-type]  # as above
            param.display_type = lambda _, shown=shown: shown  # type: ignore[method-assign, misc]
    for inner in getattr(command, "commands", {}).values():
        _name_types(inner)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - the signature that typer calls
    if wanted:
        typer.echo(f"tidemark {VERSION}")
        raise typer.Exit


def _takes_root(command: Any) -> bool:
    """Whether a command, or one of a group, reads the app's folder."""
    inner = getattr(command, "commands", {}).values()
    return any(param.name == "root" for param in command.params) or any(map(_takes_root, inner))


def app_folder_note(command: Any, arguments: Sequence[str]) -> str:
    """Which folder's tidemark.toml and settings a command reads, where it is not the current one and nobody named it; else ''."""
    chosen = any(text in {"--root", "--help"} or text.startswith("--root=") for text in arguments)
    if chosen or Path() == COMMAND_ROOT or COMMAND_ROOT not in Path.cwd().parents or not _takes_root(command):
        return ""
    return f"tidemark.toml and settings of {COMMAND_ROOT}, above the current folder (--root names another)"


PATIENT = frozenset({"consume", "publish", "send", "spark", "telemetry-aggregation"})
"""Commands that run for long, or in a job: their requests are waited for as those of a service."""


def whole_command(
    ctx: typer.Context,
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version, and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Autoscaling that explains every decision, and event consumption that loses nothing."""
    del version  # printed by its callback
    if ctx.invoked_subcommand not in PATIENT:
        try:
            ctx.with_resource(of_a_person(os.environ))
        except SettingsError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from None
    command = getattr(ctx.command, "commands", {}).get(ctx.invoked_subcommand)
    if command is not None and (note := app_folder_note(command, sys.argv[1:])):
        typer.echo(note, err=True)
