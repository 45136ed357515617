"""The options that name a deployed app and who gives it an order, for all commands that have them."""

import getpass
import os
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
By = Annotated[
    str,
    typer.Option(
        "--by",
        help="Your name, for the scaling log; without it, that of your account here. Where you are signed in, that name counts.",
    ),
]


def account_here() -> str:
    """The name of the account that runs this process; in a container it may have none, but a number."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"
