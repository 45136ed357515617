"""The consumer's part of the `tidemark` command."""

import typer

from consumer.cli.checkpoints import checkpoints_app
from consumer.cli.consume import consume
from consumer.cli.dead_letters import dead_letters_app
from consumer.cli.lint import lint, schema
from consumer.cli.status import consumer_app


def mount(app: typer.Typer) -> None:
    """Adds the consumer's commands."""
    app.command("consume")(consume)
    groups = [group.typer_instance for group in app.registered_groups if group.typer_instance is not None]
    if not any(command.name == "lint" for group in groups for command in group.registered_commands):
        app.command("lint")(lint)  # the autoscaler's takes this file too
    running = consumer_app()
    running.command("schema")(schema)
    for group in (checkpoints_app(), dead_letters_app(), running):
        app.add_typer(group)
