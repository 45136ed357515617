"""The options of the command line that name a place, and the place they name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from foundation.app_settings import own_settings
from foundation.errors import SettingsError
from foundation.http.deployed_app import DeployedApp, read_access
from scaling.places.deployed import DeployedPlace

Root = Annotated[Path, typer.Option("--root", help="Folder of tidemark.toml, .env and local.settings.json.")]
App = Annotated[
    str | None,
    typer.Option("--app", help="A deployed app, through its API: https://NAME.azurewebsites.net."),
]
Account = Annotated[
    str | None,
    typer.Option("--account", help="A deployed app, through its storage account of this name."),
]


class Where(Struct, frozen=True):
    """What the command line names: an app, or a storage account, or else what the settings in `root` name."""

    root: Path
    app: str | None = None
    account: str | None = None

    def deployed(self) -> DeployedPlace | None:
        """The app that is named. Nothing of `local.settings.json` is read for it. Raises SettingsError."""
        if self.app is None:
            return None
        if self.account is not None:
            raise SettingsError("--account: found beside --app; one of them is accepted")
        own = own_settings(self.root)
        return DeployedPlace(DeployedApp(read_access(self.app, own), own))
