"""`tidemark doctor`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from scaling.doctor.checks import Case
from scaling.doctor.examination import CONSUMED, HUB, LEGACY_HUB, examine, examine_deployed
from tidemark.foundation.app_settings import COMMAND_ROOT, STORAGE, load_settings, own_settings
from tidemark.foundation.checkup import Checkup, Verdict, worst_first
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.http.deployed_app import AppError, app_named
from tidemark.foundation.http.deployed_options import App
from tidemark.foundation.http.which_app import (
    check_named,
    connection_text,
    local_stack_problem,
    reached,
    say_if_slow,
)
from tidemark.foundation.log.terminal import Console, print_json
from tidemark.foundation.sanitize import sanitize_line

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console()
errors = Console(stderr=True)

_COLOURS = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "red", Verdict.UNKNOWN: "red"}


@app.command("doctor")
def doctor_command(
    target: Annotated[list[str] | None, typer.Option(help="Only this target; may be repeated.")] = None,
    root: Annotated[
        Path, typer.Option(help="Folder of tidemark.toml, .env and local.settings.json.")
    ] = COMMAND_ROOT,
    app_: App = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Tries what a deployment needs, with your own rights, and says what to do about what fails. Exit status 1 then.

    With --app the deployed app tries it, with its own rights.
    """
    logging.getLogger("azure").addHandler(logging.NullHandler())  # errors are shown below, in our own words
    try:
        with say_if_slow(lambda: reached(root, app_, None), errors):
            checkup, settings = asyncio.run(_checkup(root, app_, tuple(target or ())))
    except (AppError, SettingsError) as error:
        errors.print(f"[red]error:[/] {escape(sanitize_line(str(error)))}", soft_wrap=True)
        raise typer.Exit(1) from None
    except ValueError as error:
        raise typer.BadParameter(sanitize_line(str(error))) from None
    if json_:
        print_json(checkup.document())
    else:
        _show(checkup, _BY_THE_APP if app_ else _BY_YOU)
        if settings is not None:
            _show_connections(settings)
    status = 0 if checkup.is_healthy else 1
    if checkup.left:  # threads that nobody can stop, which Python would wait for
        sys.stdout.flush()
        os._exit(status)
    raise typer.Exit(status)


async def _checkup(
    root: Path, address: str | None, targets: tuple[str, ...]
) -> tuple[Checkup, Mapping[str, str] | None]:
    """The checks, and the settings that were examined here; None where the app examined its own."""
    deployed = app_named(root, address, None)
    if deployed is None:
        settings = load_settings(root)
        way_on = "or name a deployed app with --app"
        try:
            check_named(root, settings, STORAGE, HUB, LEGACY_HUB, way_on=way_on)
        except SettingsError as error:
            raise AppError(str(error)) from None
        if problem := local_stack_problem(
            settings, STORAGE
        ):  # every check would fail for it, in words of its own
            raise AppError(f"{problem}, {way_on}")
        return await examine(Case(settings, root, time.time, targets)), settings
    async with deployed:
        return await examine_deployed(deployed, own_settings(root), targets), None


_BY_YOU = "Tried with your own rights. The app tries with its own: tidemark doctor --app https://..., docs/doctor.md."
_BY_THE_APP = "Tried by the app with its own rights; whom it lets in, from here."


def _show_connections(settings: Mapping[str, str]) -> None:
    """Where the app's storage and the consumer's hub are, and by which settings."""
    wanted = {STORAGE: "storage"}
    if CONSUMED in settings:
        wanted[LEGACY_HUB if settings.get(LEGACY_HUB, "").strip() else HUB] = "hub"
    for prefix, what in wanted.items():
        console.print(escape(connection_text(settings, prefix, what)), style="dim", soft_wrap=True)


def _show(checkup: Checkup, footer: str) -> None:
    """The worst last, where the prompt is."""
    for finding in reversed(worst_first(checkup.findings)):
        colour = _COLOURS[finding.verdict]
        what = escape(sanitize_line(f"{finding.check} {finding.subject}: {finding.found}"))
        console.print(f"[{colour}]{finding.verdict:8}[/] {what}", soft_wrap=True)
        if finding.remedy:
            console.print(f"         -> {escape(sanitize_line(finding.remedy))}", soft_wrap=True)
    console.print(checkup.summary)
    console.print(footer, style="dim", soft_wrap=True)
