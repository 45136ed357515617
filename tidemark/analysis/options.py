"""The options that commands share, each with its name, help and default once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from tidemark.analysis.errors import job_errors
from tidemark.foundation.app_settings import COMMAND_ROOT, settings_of

ROOT_FOLDER = COMMAND_ROOT

Since = Annotated[
    str | None, Option("--from", help="Only from this time on: ISO 8601, UTC; today, yesterday.")
]
Until = Annotated[str | None, Option("--to", help="Only before this time: ISO 8601, UTC; today, yesterday.")]
Allow = Annotated[
    list[str] | None,
    Option(help="NAME=NUMBER or NAME=SHARE that may be left out; more is exit status 3. Repeat per name."),
]
Root = Annotated[
    Path, Option("--root", help="Folder of .env and local.settings.json; the environment wins over both.")
]


def app_settings(root: Path) -> dict[str, str]:
    """The app's settings: local.settings.json and `.env` in `root`, then the environment. Raises InputError."""
    with job_errors():
        return settings_of(root)
