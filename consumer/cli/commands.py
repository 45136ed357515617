"""The consumer's part of the `tidemark` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from consumer.cli import add_commands
from consumer.cli.consume import consume, own_modules_of
from consumer.config import read_config
from foundation.command_settings import settings_of

if TYPE_CHECKING:
    from consumer.running.assembly import Parts


def mount(app: typer.Typer) -> None:
    """Adds the consumer's commands."""
    app.command("consume")(consume)
    add_commands(app, _open_parts)


def _open_parts(root: Path) -> Parts:
    from consumer.running.assembly import Parts  # noqa: PLC0415 - the SDKs take a second; --help needs none

    own_modules_of(root)
    settings = settings_of(root)
    return Parts(read_config(settings), settings)
