"""The options of the command line that say how to reach an app."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from tidemark.commands.access.api import ApiAccess
from tidemark.foundation.http.deployed_app import app_named

Root = Annotated[Path, typer.Option("--root", help="Folder of tidemark.toml, .env and local.settings.json.")]


class Where(Struct, frozen=True):
    """What the command line names: an app, or a storage account, or else what the settings in `root` name."""

    root: Path
    app: str | None = None
    account: str | None = None

    def deployed(self) -> ApiAccess | None:
        """The app that is named; None where none is. Raises SettingsError."""
        app = app_named(self.root, self.app, self.account)
        return None if app is None else ApiAccess(app)
