"""The consumer's part of the `tidemark` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from consumer.cli.checkpoints import checkpoints_app
from consumer.cli.consume import consume, own_modules_of
from consumer.cli.dead_letters import dead_letters_app
from consumer.cli.status import consumer_app
from consumer.cli.support import OpenParts
from consumer.config import read_config
from tidemark.foundation.app_settings import settings_of

if TYPE_CHECKING:
    from consumer.running.assembly import Parts


def _open_parts(root: Path) -> Parts:
    from consumer.running.assembly import Parts  # noqa: PLC0415 - the SDKs take a second; --help needs none

    own_modules_of(root)
    settings = settings_of(root)
    return Parts(read_config(settings), settings)


def mount(app: typer.Typer, open_parts: OpenParts = _open_parts) -> None:
    """Adds the consumer's commands. `open_parts` is called once a command runs, not before."""
    app.command("consume")(consume)
    app.add_typer(checkpoints_app(open_parts))
    app.add_typer(dead_letters_app(open_parts))
    app.add_typer(consumer_app())
