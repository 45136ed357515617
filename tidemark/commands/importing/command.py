"""`tidemark import`: an autoscale setting of Azure Monitor or a ScaledObject of KEDA as a tidemark.toml."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer import Argument, Option

from scaling.resource_id import ResourceId
from tidemark.commands.access.where import Root, fail, next_command, settings_of, write_whole
from tidemark.commands.importing.azure_monitor.setting import is_autoscale, read_autoscale_setting
from tidemark.commands.importing.common.given import Given, UnreadableError
from tidemark.commands.importing.common.imported import Imported, Written, written
from tidemark.commands.importing.documents import MOST_BYTES, objects_of
from tidemark.commands.importing.keda.scaled_object import is_scaled_object, read_scaled_object
from tidemark.foundation.app_settings import COMMAND_ROOT, policy_file
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.sanitize import one_line, without_secrets
from tidemark.foundation.wording import count_text, file_problem

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console()
errors = Console(stderr=True)


@app.command("import")
def import_command(
    file: Annotated[
        Path,
        Argument(
            help="JSON of `az monitor autoscale show`, a template, JSON or YAML of KEDA; - is standard input."
        ),
    ],
    out: Annotated[
        Path | None, Option(help="File to write, else the one that lint reads; one that is there is kept.")
    ] = None,
    resource_id: Annotated[
        str, Option(help="Of a ScaledObject: the plan, app or scale set to scale in its place.")
    ] = "",
    root: Root = COMMAND_ROOT,
) -> None:
    """Writes a tidemark.toml for what Azure Monitor autoscale or KEDA does, and says what cannot be carried over."""
    linted = policy_file(root, settings_of(root))
    out = out or linted
    if out.exists():
        fail(f"{out} is there already; move it away, or name another file with --out")
    try:
        if resource_id:
            ResourceId.parse(resource_id)
        imported, refused = import_objects(objects_of(_read(file), file.name), file.name, resource_id)
        made = written(imported, file.name)
        write_whole(out, made.text)
    except (ValueError, OSError) as error:
        fail(str(error))
    _report(out, made, refused)
    console.print(escape(next_command(out, linted, root)), soft_wrap=True)
    if refused:
        raise typer.Exit(1)


def _read(file: Path) -> bytes:
    if str(file) == "-":
        return sys.stdin.buffer.read(MOST_BYTES + 1)
    try:
        with file.open("rb") as opened:
            return opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise UnreadableError(f"{file}: {file_problem(error)}") from error


def import_objects(objects: list[Any], name: str, resource_id: str = "") -> tuple[list[Imported], list[str]]:
    """What is made of the objects, and why nothing is of others. Raises UnreadableError where there is nothing to carry over."""
    imported: list[Imported] = []
    refused: list[str] = []
    seen, scaled = list[str](), list[str]()
    meant: dict[str, str] = {}
    for index, document in enumerate(objects):
        given = Given(document, name if len(objects) == 1 else f"{name}[{index}]")
        try:
            if is_scaled_object(given):
                imported.append(read_scaled_object(given, resource_id, meant))
                scaled.append(imported[-1].name)
            elif is_autoscale(given):
                imported.append(read_autoscale_setting(given, meant))
            else:
                seen.append(one_line(given.raw("kind") or given.raw("type") or "something else")[:60])
        except UnreadableError as error:
            refused.append(without_secrets(one_line(str(error))))
    if resource_id and len(scaled) > 1:
        names = ", ".join(scaled[:5])
        raise UnreadableError(
            f"--resource-id: found one resource for {len(scaled)} targets ({names}); a resource has one target, so give a file with one "
            "ScaledObject"
        )
    if not imported:
        reasons = refused or [
            f"{name}: found {', '.join(dict.fromkeys(seen)) or 'nothing'}; accepted are autoscale settings of Azure Monitor and ScaledObjects of KEDA"
        ]
        raise UnreadableError("; ".join(reasons))
    return _one_for_each_resource(imported, refused), refused


def _one_for_each_resource(imported: list[Imported], refused: list[str]) -> list[Imported]:
    """Those of which each scales a resource of its own: of several for one, the first that is switched on, else the first. The others go to `refused`."""
    kept: dict[str, Imported] = {}
    for target in sorted(imported, key=lambda target: bool(target.table.get("dry_run"))):
        owner = kept.setdefault(target.resource or str(id(target)), target)
        if owner is not target:
            refused.append(
                f"{target.source} is for the same resource as {owner.source}: a resource has one target, so that one is written, which may get "
                "the rules and metrics of both"
            )
    stays = {id(target) for target in kept.values()}
    return [target for target in imported if id(target) in stays]


def _report(out: Path, made: Written, refused: list[str]) -> None:
    console.print(f"{escape(str(out))}: {count_text(len(made.notes), 'target')}", soft_wrap=True)
    for target, notes in made.notes.items():
        for note in notes:
            console.print(f"  [yellow]{escape(target)}, not as it was:[/] {escape(note)}", soft_wrap=True)
    for reason in refused:
        errors.print(f"[red]left out:[/] {escape(reason)}", soft_wrap=True)
    _report_settings(made.settings)


def _report_settings(settings: Mapping[str, str]) -> None:
    if settings:
        console.print("App settings it needs:")
        for name, value in settings.items():
            console.print(f"  {escape(name)}: {escape(one_line(value))}", soft_wrap=True)
