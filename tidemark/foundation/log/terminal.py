"""What commands print: lines, tables and JSON, all without secrets.

Secrets are hidden before a text is laid out. A table or a box wraps a long secret, and half a secret is recognised by nobody.
"""

from __future__ import annotations

from typing import Any

import msgspec
import typer
from rich.console import Console as RichConsole
from rich.text import Text

from tidemark.foundation.sanitize import json_without_secrets, without_secrets


class Console(RichConsole):
    """Rich's console. Every text that it prints has no secrets, also one in a cell of a table."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Called by rich for each text, before it is wrapped."""
        shown = super().render_str(text, **options)
        hidden = without_secrets(shown.plain)
        return shown if hidden == shown.plain else Text(hidden, shown.style)


def print_json(value: object) -> None:
    """For `--json`: `value` on standard output, indented."""
    typer.echo(msgspec.json.format(json_without_secrets(value), indent=2).decode())
