"""Prints lines, tables and JSON of commands without secrets.

Secrets are hidden before the layout, because a table or a box wraps a long secret, and half a secret is not recognised.
"""

from __future__ import annotations

from typing import Any

import msgspec
import typer
from rich.console import Console as RichConsole
from rich.text import Text

from tidemark.foundation.sanitize import json_without_secrets, without_secrets


class Console(RichConsole):
    """The console of rich. It hides secrets in every text, also in the cells of tables."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Called by rich for each text, before it is wrapped."""
        shown = super().render_str(text, **options)
        hidden = without_secrets(shown.plain)
        return shown if hidden == shown.plain else Text(hidden, shown.style)


def print_json(value: object) -> None:
    """Print `value` as indented JSON on standard output, for `--json`."""
    typer.echo(msgspec.json.format(json_without_secrets(value), indent=2).decode())
