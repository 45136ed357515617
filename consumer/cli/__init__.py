"""The consumer's commands below `tidemark`: `checkpoints`, `dead-letters` and `consumer`."""

from __future__ import annotations

import typer

from consumer.cli.checkpoints import checkpoints_app
from consumer.cli.dead_letters import dead_letters_app
from consumer.cli.status import consumer_app
from consumer.cli.support import OpenParts


def add_commands(app: typer.Typer, open_parts: OpenParts) -> None:
    """Adds them to the product's command line. `open_parts` is called once a command runs, not before."""
    app.add_typer(checkpoints_app(open_parts))
    app.add_typer(dead_letters_app(open_parts))
    app.add_typer(consumer_app())
