"""`tidemark order`: pause, resume, override and dry-run, as on the dashboard. The order of a shadow is `tidemark shadow`'s."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from scaling.model import Direction
from tidemark.commands.access.where import Root, Where
from tidemark.foundation.app_settings import COMMAND_ROOT
from tidemark.foundation.http.deployed_options import Account, App

By = Annotated[
    str, typer.Option("--by", help="Your name, for the scaling log; needed where nobody is signed in.")
]
Target = Annotated[str, typer.Argument(help="The target, as in tidemark.toml.")]

Give = Callable[[Where, str, str, Mapping[str, Any], str], None]
"""Gives an order to an app: target, order, its fields, and a name or ''."""


class Switch(StrEnum):
    ON = "on"
    OFF = "off"
    CONFIGURED = "configured"


_SWITCHED = {Switch.ON: True, Switch.OFF: False, Switch.CONFIGURED: None}


def orders_app(give: Give) -> typer.Typer:
    """The commands; `give` gives what they describe."""
    orders = typer.Typer(
        name="order", help="Orders to a target: they hold until lifted, or run out.", no_args_is_help=True
    )
    for name, command in {
        "pause": _pause,
        "resume": _resume,
        "override": _override,
        "dry-run": _dry_run,
    }.items():
        orders.command(name)(command(give))
    return orders


def _pause(give: Give) -> Callable[..., None]:
    def pause(
        target: Target,
        direction: Annotated[Direction | None, typer.Option(help="Only this one; else both.")] = None,
        for_: Annotated[
            str | None, typer.Option("--for", help="How long: 30m, 4h; else until resumed.")
        ] = None,
        by: By = "",
        root: Root = COMMAND_ROOT,
        app: App = None,
        account: Account = None,
    ) -> None:
        """Stops scaling a target: decisions are logged, and nothing is changed."""
        fields = {"direction": None if direction is None else str(direction), "for": for_}
        give(Where(root, app, account), target, "pause", fields, by)

    return pause


def _resume(give: Give) -> Callable[..., None]:
    def resume(
        target: Target, by: By = "", root: Root = COMMAND_ROOT, app: App = None, account: Account = None
    ) -> None:
        """Lifts every pause and override of a target, and takes over a capacity that somebody else set."""
        give(Where(root, app, account), target, "resume", {}, by)

    return resume


def _override(give: Give) -> Callable[..., None]:
    def override(
        target: Target,
        capacity: Annotated[
            int, typer.Argument(help="Held there whatever the rules say, within the bounds.")
        ],
        for_: Annotated[str, typer.Option("--for", help="How long: 30m, 4h.")] = "1h",
        by: By = "",
        root: Root = COMMAND_ROOT,
        app: App = None,
        account: Account = None,
    ) -> None:
        """Sets the capacity of a target by hand for a while."""
        give(Where(root, app, account), target, "override", {"capacity": capacity, "for": for_}, by)

    return override


def _dry_run(give: Give) -> Callable[..., None]:
    def dry_run(
        target: Target,
        switch: Annotated[Switch, typer.Argument(help="on: decide and log only; off; configured.")],
        by: By = "",
        root: Root = COMMAND_ROOT,
        app: App = None,
        account: Account = None,
    ) -> None:
        """Whether decisions of a target are carried out, or only logged."""
        give(Where(root, app, account), target, "dry-run", {"on": _SWITCHED[switch]}, by)

    return dry_run
