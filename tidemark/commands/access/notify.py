"""`tidemark notify test`: what each webhook answers, asked from here or by a deployed app."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import typer
from rich.markup import escape

from scaling.notices.trial import Answers
from tidemark.commands.access.protocol import Access
from tidemark.commands.access.where import Root, Where
from tidemark.foundation.app_settings import COMMAND_ROOT
from tidemark.foundation.http.deployed_options import App
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.sanitize import one_line

Run = Callable[[Where, Callable[[Access], Coroutine[Any, Any, Answers]]], Answers]
"""Runs work on an app; expected errors end the command."""


def notify_app(run: Run) -> typer.Typer:
    notify = typer.Typer(name="notify", help="Webhooks: who is told of what happens.", no_args_is_help=True)
    notify.callback()(lambda: None)  # or the only command would be the whole

    @notify.command("test")
    def test(
        webhook: Annotated[str | None, typer.Argument(help="Only this one; else all.")] = None,
        root: Root = COMMAND_ROOT,
        app: App = None,
    ) -> None:
        """Sends a notice of kind `test` to the webhooks, from here, and shows their answers. Exit status 1 if one failed.

        With --app the deployed app sends it, with its own settings and from its own network; that takes the operator's role.
        """
        try:
            found, console = run(Where(root, app), lambda access: access.test_webhooks(webhook)), Console()
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        for name, answer in found.items():
            told = answer.problem or f"answered {answer.status}"
            colour = "red" if answer.problem else "green"
            console.print(f"[{colour}]{escape(one_line(name))}[/] {escape(told)}", soft_wrap=True)
        if any(answer.problem for answer in found.values()):
            raise typer.Exit(1)

    return notify
