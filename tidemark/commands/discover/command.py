"""`tidemark discover`: a first tidemark.toml for what a subscription has."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from azure.core.exceptions import AzureError
from rich.markup import escape
from typer import Option

from scaling.scalers.arm.clients import ENDPOINT, manager_text, open_resources
from scaling.scalers.arm.errors import classify
from tidemark.commands.access.where import Root, fail, next_command, write_whole
from tidemark.commands.discover.found import Discovery
from tidemark.commands.discover.reading import SubscriptionReader
from tidemark.commands.discover.writing import Written, written
from tidemark.foundation.app_settings import (
    COMMAND_ROOT,
    load_settings,
    local_settings,
    policy_file,
    subscriptions_of,
)
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.http.which_app import local_stack_problem, say_if_slow
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.sanitize import one_line, without_secrets
from tidemark.foundation.wording import count_text

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console()
errors = Console(stderr=True)


@app.command("discover")
def discover_command(
    out: Annotated[
        Path | None, Option(help="File to write, else the one that lint reads; one that is there is kept.")
    ] = None,
    subscription: Annotated[
        str,
        Option(
            envvar="AZURE_SUBSCRIPTION_ID",
            help="Id of the subscription; else that of the resources in the app settings, as on the local stack.",
        ),
    ] = "",
    settings_file: Annotated[
        Path | None,
        Option(
            "--settings", help="A local.settings.json to which the app settings that are missing are added."
        ),
    ] = None,
    root: Root = COMMAND_ROOT,
) -> None:
    """Reads a subscription, or the local stack, and writes a first tidemark.toml for what it found: in dry-run, with comments."""
    try:
        settings = load_settings(root, about=f"/subscriptions/{subscription}" if subscription else "")
    except SettingsError as error:
        fail(str(error))
    subscriptions = subscriptions_of(settings.values())
    chosen = subscription or (subscriptions.pop() if len(subscriptions) == 1 else "")
    if subscriptions_of([f"/subscriptions/{chosen}"]) != {chosen.lower()}:
        raise typer.BadParameter(f"found '{chosen}'; a GUID is accepted", param_hint="--subscription")
    linted = policy_file(root, settings)
    out = out or linted
    if out.exists():
        fail(f"{out} is there already; move it away, or name another file with --out")
    if problem := local_stack_problem(settings, ENDPOINT):
        fail(f"{problem}, or name a subscription with --subscription")
    try:
        with say_if_slow(lambda: manager_text(settings), errors):
            resources = asyncio.run(_read(settings, chosen))
        for line in not_read(resources.unread):
            errors.print(f"[yellow]not read:[/] {escape(one_line(without_secrets(line)))}", soft_wrap=True)
        made = written(resources, settings)
        keep(out, made, settings_file)
    except (ValueError, OSError, SettingsError) as error:
        fail(str(error))
    except AzureError as error:
        fail(classify(error).story)
    _tell(out, resources, made, settings_file)
    console.print(escape(next_command(out, linted, root)), soft_wrap=True)


def not_read(unread: Iterable[str]) -> Iterator[str]:
    """Each reason once, with the lists that failed for it: without a sign-in all of them do."""
    places = defaultdict[str, list[str]](list)
    for line in unread:
        place, _, reason = line.partition(": ")
        places[reason].append(place)
    for reason, names in places.items():
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{names[0]}{others}: {reason}"


async def _read(settings: Mapping[str, str], subscription: str) -> Discovery:
    async with await asyncio.to_thread(open_resources, settings, patient=True) as client:
        return await SubscriptionReader(client, subscription).read()


def keep(out: Path, made: Written, settings_file: Path | None) -> None:
    """The file, and before it the settings that it names: a file without them would not pass."""
    if settings_file is not None and made.settings and settings_file.name == ".env":
        there = settings_file.read_text(encoding="utf-8-sig") if settings_file.exists() else ""
        gap = "\n" if there and not there.endswith("\n") else ""
        write_whole(
            settings_file, there + gap + "".join(f"{name}={value}\n" for name, value in made.settings.items())
        )
    elif settings_file is not None and made.settings:
        local_settings(settings_file)  # raises for another form
        there = json.loads(settings_file.read_text(encoding="utf-8-sig")) if settings_file.exists() else {}
        values = {**made.settings, **there.get("Values", {})}
        document = {"IsEncrypted": False, **there, "Values": values}
        write_whole(settings_file, json.dumps(document, indent=2) + "\n")
    write_whole(out, made.text)


def _tell(out: Path, resources: Discovery, made: Written, settings_file: Path | None) -> None:
    targets, sources = count_text(len(made.targets), "target"), count_text(len(resources.sources), "backlog")
    console.print(
        f"{escape(str(out))}: {targets} in dry-run, of {sources} found; every guess is marked", soft_wrap=True
    )
    if made.settings and settings_file is None:
        console.print("App settings it needs:")
        for name, value in made.settings.items():
            console.print(f"  {escape(name)}={escape(value)}", soft_wrap=True)
