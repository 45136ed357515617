"""The commands that analyse on one machine, and how a command of a program is run: its errors are one line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from tidemark.analysis.errors import CHECK_FAILED, CheckFailedError, JobError
from tidemark.foundation.log.usage import Command
from tidemark.foundation.sanitize import raise_without_secrets
from tidemark.foundation.version import install_hint

SUMMARIES: dict[str, str] = {
    "advise": "Recorded load under today's policy, Azure Monitor, KEDA and service_level: cost, waits, what to set.",
    "backtest": "Recorded metrics against a grid of rules: SLO misses, cost, actions, and what to set.",
    "cost": "What Azure billed, by target and change: against a static peak, the shadow, autoscale of RU/s.",
    "seasons": "What targets need by the hour of the week, as a schedule to paste, with its error.",
}


def mount(parent: typer.Typer) -> None:
    """Adds the commands to `tidemark`."""
    for name, summary in SUMMARIES.items():
        add(parent, name, f"tidemark.analysis.{name}.local", summary, extra="analysis")


def add(
    parent: typer.Typer,
    name: str,
    module: str,
    summary: str,
    *,
    extra: str,
    shown: Callable[[Exception], JobError | None] | None = None,
) -> None:
    """Adds the command of a module, which is loaded when it runs and parses its own arguments: so the list of commands needs
    none of their libraries. `extra` has these; `shown` as for `run_command`.
    """

    @parent.command(
        name,
        help=summary,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def run(context: typer.Context) -> None:
        run_command(_command_of(name, module, extra), context.args, name=context.command_path, shown=shown)

    run.module = module  # type: ignore[attr-defined]  # whose options the reference lists


def run_command(
    command: Callable[..., Any],
    argv: Sequence[str] | None = None,
    *,
    name: str | None = None,
    shown: Callable[[Exception], JobError | None] | None = None,
) -> None:
    """Runs a typer function as a program and ends it. A JobError becomes one line on stderr and exit status 1, or 3 for
    a failed check; `shown` finds one in an exception of another kind.
    """
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command(cls=Command)(command)
    try:
        with raise_without_secrets():
            single(args=list(sys.argv[1:] if argv is None else argv), prog_name=name)
    except Exception as error:
        reported = error if isinstance(error, JobError) or shown is None else shown(error)
        if not isinstance(reported, JobError):
            raise
        answer = isinstance(reported, CheckFailedError)
        typer.echo(str(reported) if answer else f"error: {reported}", err=True)
        raise SystemExit(CHECK_FAILED if answer else 1) from None


def _command_of(name: str, module: str, extra: str) -> Callable[..., Any]:
    try:
        command: Callable[..., Any] = importlib.import_module(module).command
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == module.partition(".")[0]:
            raise  # not an extra that is missing: the package itself is broken
        typer.echo(f"error: '{name}' needs the package '{package}': {install_hint(extra)}", err=True)
        raise SystemExit(1) from None
    return command
