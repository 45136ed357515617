"""`tidemark order`: pause, resume, override and dry-run, as on the dashboard; and `tidemark notify test`. `tidemark shadow` gives the
order of a shadow.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.markup import escape

from scaling.model import Direction
from tidemark.commands.access.where import Root, Where, as_text, run_at
from tidemark.foundation.app_settings import COMMAND_ROOT
from tidemark.foundation.http.deployed_options import Account, App, By, account_here
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.sanitize import one_line

orders = typer.Typer(
    name="order", help="Orders to a target: they hold until lifted, or run out.", no_args_is_help=True
)
notify = typer.Typer(name="notify", help="Webhooks: who is notified of what happens.", no_args_is_help=True)
notify.callback()(lambda: None)  # else `test`, the only command, would be `notify` itself

Target = Annotated[str, typer.Argument(help="The target, as in tidemark.toml.")]


class Switch(StrEnum):
    ON = "on"
    OFF = "off"
    CONFIGURED = "configured"


_SWITCHED = {Switch.ON: True, Switch.OFF: False, Switch.CONFIGURED: None}


def _give(where: Where, target: str, name: str, fields: Mapping[str, Any], by: str) -> None:
    try:
        standing = run_at(where, lambda access: access.order(target, name, fields, by=by or account_here()))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    Console().print(f"[magenta]{as_text(f'{target}: {standing}')}[/]", soft_wrap=True)


@orders.command()
def pause(
    target: Target,
    direction: Annotated[Direction | None, typer.Option(help="Only this one; else both.")] = None,
    for_: Annotated[str | None, typer.Option("--for", help="How long: 30m, 4h; else until resumed.")] = None,
    by: By = "",
    root: Root = COMMAND_ROOT,
    app: App = None,
    account: Account = None,
) -> None:
    """Stops scaling a target: decisions are logged, and nothing is changed."""
    fields = {"direction": None if direction is None else str(direction), "for": for_}
    _give(Where(root, app, account), target, "pause", fields, by)


@orders.command()
def resume(
    target: Target, by: By = "", root: Root = COMMAND_ROOT, app: App = None, account: Account = None
) -> None:
    """Lifts every pause and override of a target, and takes over a capacity that somebody else set."""
    _give(Where(root, app, account), target, "resume", {}, by)


@orders.command()
def override(
    target: Target,
    capacity: Annotated[int, typer.Argument(help="Held there whatever the rules say, within the bounds.")],
    for_: Annotated[str, typer.Option("--for", help="How long: 30m, 4h.")] = "1h",
    by: By = "",
    root: Root = COMMAND_ROOT,
    app: App = None,
    account: Account = None,
) -> None:
    """Sets the capacity of a target by hand for a while."""
    _give(Where(root, app, account), target, "override", {"capacity": capacity, "for": for_}, by)


@orders.command()
def dry_run(
    target: Target,
    switch: Annotated[Switch, typer.Argument(help="on: decide and log only; off; configured.")],
    by: By = "",
    root: Root = COMMAND_ROOT,
    app: App = None,
    account: Account = None,
) -> None:
    """Whether decisions of a target are carried out, or only logged."""
    _give(Where(root, app, account), target, "dry-run", {"on": _SWITCHED[switch]}, by)


@notify.command("test")
def notify_test(
    webhook: Annotated[str | None, typer.Argument(help="Only this one; else all.")] = None,
    root: Root = COMMAND_ROOT,
    app: App = None,
) -> None:
    """Sends a notice of kind `test` to the webhooks, from here, and shows their answers. Exit status 1 if one failed.

    With --app the deployed app sends it, with its own settings and from its own network; that takes the operator's role.
    """
    try:
        answers, console = (
            run_at(Where(root, app), lambda access: access.test_webhooks(webhook), ask_first=False),
            Console(),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    for name, answer in answers.items():
        colour, outcome = (
            ("red", answer.problem) if answer.problem else ("green", f"answered {answer.status}")
        )
        console.print(f"[{colour}]{escape(one_line(name))}[/] {escape(outcome)}", soft_wrap=True)
    if any(answer.problem for answer in answers.values()):
        raise typer.Exit(1)
