"""The publisher's part of the `tidemark` command: `publish` and `send`."""

from __future__ import annotations

import typer

from tidemark.publisher.cli.publish import publish
from tidemark.publisher.cli.send import send


def mount(app: typer.Typer) -> None:
    """Adds the publisher's commands. They load the SDKs when they run, not before."""
    app.command("publish")(publish)
    app.command("send")(send)
