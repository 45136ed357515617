"""The consumer's part of the `tidemark` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from consumer.cli_checkpoints import checkpoints_app
from consumer.cli_dead_letters import dead_letters_app
from consumer.command import consume, settings_of
from consumer.config import read_config

if TYPE_CHECKING:
    from consumer.assembly import Parts


def mount(app: typer.Typer) -> None:
    """Adds the consumer's commands."""
    app.command("consume")(consume)
    app.add_typer(checkpoints_app(_open_parts), name="checkpoints")
    app.add_typer(dead_letters_app(_open_parts), name="dead-letters")


def _open_parts(root: Path) -> Parts:
    from consumer.assembly import Parts  # noqa: PLC0415 - the SDKs take a second; --help needs none

    settings = settings_of(root)
    return Parts(read_config(settings), settings)
