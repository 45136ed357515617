"""The page on the command line: every command with its arguments and options, from the program itself."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer import Typer
from typer.main import get_command

from tidemark.__main__ import PANELS, command_line

_TYPES = {
    "str": "text",
    "list[str]": "text, repeated",
    "int": "whole number",
    "float": "number",
    "path": "path",
    "bool": "",
}


def page() -> str:
    """docs/reference/command-line.md."""
    program: Any = get_command(command_line())
    lines = [
        "# The command line, command by command",
        "",
        "Here you look up what a command takes. Its own `--help` shows the same.",
        "",
        "`make reference` writes this page from the program. `--root`, which most commands have, is the folder of `tidemark.toml`, `.env` and",
        "`local.settings.json`: see [settings of the command line](../settings.md#settings-of-the-command-line).",
        "",
    ]
    for heading, names in PANELS.items():
        lines += [f"## {heading}", ""]
        for name in names:
            if name in program.commands:
                lines += _command(f"tidemark {name}", program.commands[name])
    return "\n".join(lines).rstrip() + "\n"


def _command(path: str, command: Any) -> Iterator[str]:
    yield from (f"### `{path}`", "", _plain(command.help or command.short_help or ""), "")
    if module := getattr(
        command.callback, "module", ""
    ):  # its options are known once its packages are loaded
        single = Typer(add_completion=False)
        single.command()(importlib.import_module(module).command)
        command = get_command(single)
    if inner := getattr(command, "commands", {}):
        for name, subcommand in inner.items():
            yield from _command(f"{path} {name}", subcommand)
        return
    rows = [
        _row(parameter)
        for parameter in command.params
        if not getattr(parameter, "hidden", False) and parameter.name not in ("root", "help")
    ]
    if rows:
        yield from ("| takes | type | default | |", "|---|---|---|---|", *rows, "")


def _row(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.name.upper()]
    flag = is_option and parameter.is_flag
    kind = "" if flag else _kind(parameter.display_type(None).strip("<>"))
    given = parameter.default
    default = (
        "required"
        if parameter.required
        else ""
        if flag or given is None or callable(given)
        else str(getattr(given, "value", given))
    )
    shown = (
        f"`{default}`"
        if default not in ("", "required", "()", "[]") and not isinstance(given, Path)
        else default
    )
    if isinstance(given, Path) and given.is_absolute():
        shown = ""
    text = _plain(getattr(parameter, "help", "") or "")
    return f"| {', '.join(f'`{name}`' for name in names)} | {kind} | {'' if shown in ('()', '[]') else shown} | {text} |"


def _kind(name: str) -> str:
    if "|" in name:
        return ", ".join(f"`{choice}`" for choice in name.split("|"))
    plain, _, bounds = name.partition(" range")
    return f"{_TYPES.get(plain, plain)}{bounds}".replace("<", "&lt;")


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("\\[", "[")
