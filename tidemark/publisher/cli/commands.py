"""The publisher's part of the `tidemark` command: `publish` and `send`."""

from __future__ import annotations

from importlib.util import find_spec

import typer

from tidemark.publisher.cli.publish import publish
from tidemark.publisher.cli.send import send

NEEDED = ("azure.eventhub", "azure.servicebus", "azure.storage.blob", "sqlalchemy")
"""Packages that the extra `publisher` installs."""


def mount(app: typer.Typer) -> None:
    """Add the publisher's commands, which load the SDKs only when they run.

    Raises ModuleNotFoundError, as an import would, for an SDK that is not installed.
    """
    for package in NEEDED:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    app.command("publish")(publish)
    app.command("send")(send)
