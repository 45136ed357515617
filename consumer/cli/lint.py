"""`tidemark lint FILE` for the consumer's file: what its start would refuse, reported before it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consumer.cli.support import Json, Root, console, fail, own_modules_of, plain
from consumer.config import FILE, Hosting, read_hosting
from consumer.definition.loading import load_definition
from consumer.definition.model import HubDefinition
from tidemark.foundation.app_settings import COMMAND_ROOT, load_settings
from tidemark.foundation.errors import TidemarkError
from tidemark.foundation.log.terminal import print_json
from tidemark.foundation.settings_reader import ConfigError
from tidemark.foundation.wording import count_text

ConsumerFile = Annotated[Path, typer.Argument(help="The consumer's file.")]


def lint_file(file: Path, root: Path, *, json_: bool) -> None:
    """Prints what is wrong in a consumer's file, or else its doubts. Exit status 1 for what a start would refuse."""
    own_modules_of(root)
    try:
        definition = load_definition({**load_settings(root), FILE: str(file)}, _build)
    except TidemarkError as error:
        if not json_:
            fail(str(error))
        found = error.__cause__.problems if isinstance(error.__cause__, ConfigError) else [error]
        print_json({"problems": [*map(str, found)], "doubts": []})
        raise typer.Exit(1) from None
    if json_:
        print_json({"problems": [], "doubts": definition.doubts})
        return
    for doubt in definition.doubts:
        console.print(f"[yellow]warning[/] {plain(doubt)}", soft_wrap=True)
    hubs = count_text(len(definition.hubs), "hub")
    sinks = count_text(len({sink.name for hub in definition.hubs for sink in hub.sinks}), "sink")
    doubts = count_text(len(definition.doubts), "warning")
    console.print(plain(f"{file}: {hubs} and {sinks} checked, {doubts}"), soft_wrap=True)


def _build(hub: HubDefinition) -> None:
    """Builds what a hub needs, without a connection. Raises SettingsError."""
    from consumer.running.assembly import Parts
    from consumer.running.hosted import check

    parts = Parts(hub.config, hub.settings, hub)
    parts.preparation(parts.sink())
    parts.checkpoints(), parts.dead_letters()
    if read_hosting(hub.settings) is Hosting.TRIGGER:
        check(hub.config)


def schema() -> None:
    """Prints the JSON Schema of the consumer's file, by which editors complete and check it."""
    from consumer.definition.schema import schema as schema_of_file

    print_json(schema_of_file())


def lint(file: ConsumerFile, root: Root = COMMAND_ROOT, json_: Json = False) -> None:
    """Checks the consumer's file."""
    lint_file(file, root, json_=json_)
