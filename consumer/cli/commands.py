"""The consumer's part of the `tidemark` command."""

import typer

from consumer.cli.checkpoints import checkpoints_app
from consumer.cli.consume import consume
from consumer.cli.dead_letters import dead_letters_app
from consumer.cli.status import consumer_app


def mount(app: typer.Typer) -> None:
    """Adds the consumer's commands."""
    app.command("consume")(consume)
    for group in (checkpoints_app(), dead_letters_app(), consumer_app()):
        app.add_typer(group)
