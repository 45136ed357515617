"""The options that name a deployed app, for all commands that have them."""

from typing import Annotated

import typer

App = Annotated[
    str | None,
    typer.Option("--app", help="A deployed app, through its API: https://NAME.azurewebsites.net."),
]
Account = Annotated[
    str | None,
    typer.Option("--account", help="A deployed app, through its storage account of this name."),
]
