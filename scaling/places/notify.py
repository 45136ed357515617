"""`tidemark notify test`: what each webhook answers, asked from here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from foundation.app_settings import ROOT
from foundation.errors import TidemarkError
from foundation.sanitize import one_line
from scaling.notices.announcer import Delivered
from scaling.notices.events import test_notice
from scaling.places.where import Root
from scaling.service.autoscaler import Autoscaler

Answers = dict[str, Delivered]
"""By webhook."""

Run = Callable[[Path, Callable[[Autoscaler], Coroutine[Any, Any, Answers]]], Answers]
"""Runs work with the autoscaler of a folder; expected errors end the command."""


def notify_app(run: Run) -> typer.Typer:
    notify = typer.Typer(name="notify", help="Webhooks: who is told of what happens.", no_args_is_help=True)
    notify.callback()(lambda: None)  # or the only command would be the whole

    @notify.command("test")
    def test(
        webhook: Annotated[str | None, typer.Argument(help="Only this one; else all.")] = None,
        root: Root = ROOT,
    ) -> None:
        """Sends a notice of kind `test` to the webhooks, from here, and shows their answers. Exit status 1 if one failed."""
        found, console = run(root, lambda autoscaler: _tested(autoscaler, webhook)), Console()
        for name, answer in found.items():
            told = answer.problem or f"answered {answer.status}"
            colour = "red" if answer.problem else "green"
            console.print(f"[{colour}]{escape(one_line(name))}[/] {escape(told)}", soft_wrap=True)
        if any(answer.problem for answer in found.values()):
            raise typer.Exit(1)

    return notify


async def _tested(autoscaler: Autoscaler, webhook: str | None) -> Answers:
    announcer, now = autoscaler.ports.announcer, autoscaler.clock()
    named = {} if announcer is None else announcer.notify.webhooks
    if announcer is None or (webhook is not None and webhook not in named):
        configured = ", ".join(named) or "none; add a table [notify.webhooks.NAME] to tidemark.toml"
        raise TidemarkError(f"WEBHOOK: found '{webhook or ''}'; configured are {configured}")
    notice = test_notice(now)
    chosen = [each for name, each in named.items() if webhook in {None, name}]
    answers = await asyncio.gather(*(announcer.deliver(each, notice, now) for each in chosen))
    return {each.name: answer for each, answer in zip(chosen, answers, strict=True)}
