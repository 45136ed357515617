"""`tidemark`, also as `python -m tidemark`: the commands of all parts that are installed. What a command needs is loaded when
it runs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemark.foundation.log.stop_at_start import leave_on_signals, take_interrupts

if TYPE_CHECKING:
    import typer

PARTS = {
    "autoscaler": "tidemark.commands.autoscaler",
    "consumer": "consumer.cli.commands",
    "publisher": "tidemark.publisher.cli.commands",
    "analysis": "tidemark.analysis.cli",
    "spark": "spark_jobs.cli",
}
"""The extra of each part, and the module whose `mount` adds its commands."""

ALONE = {
    "consumer": {"consume", "consumer", "checkpoints", "dead-letters"},
    "publisher": {"publish", "send"},
    "analysis": {"advise", "backtest", "cost", "seasons"},
    "spark": {"spark", "runs", "telemetry-aggregation"},
}
"""The commands that start without the other parts and their SDKs: in half the time (1.1 CPU s with all, 27 November 2026)."""

PANELS = {
    "Begin": ("init", "discover", "import", "lint", "schema", "doctor"),
    "See what was decided": ("status", "log", "shadow", "replay"),
    "Change what is decided": ("order", "notify"),
    "Move events": ("consume", "consumer", "checkpoints", "dead-letters", "publish", "send"),
    "Try policies on recorded load": ("history", "advise", "backtest", "seasons", "cost"),
    "Read telemetry": ("telemetry-aggregation", "runs", "spark"),
}
"""The headings of the help, and the commands below each."""


def command_line(parts: Mapping[str, str] = PARTS) -> typer.Typer:
    """All commands of the parts. A part whose packages are not installed is named at the end of the help, with how to install it."""
    import typer

    from tidemark.foundation.log.usage import CommandGroup, whole_command
    from tidemark.foundation.version import install_hint

    app = typer.Typer(
        name="tidemark",
        cls=type("CommandLine", (CommandGroup,), {"panels": PANELS}),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    absent = []
    for extra, module in parts.items():
        try:
            importlib.import_module(module).mount(app)
        except ModuleNotFoundError as error:
            if str(error.name).startswith(module.partition(".")[0]):
                raise
            absent.append(
                f"Without the {extra}: '{error.name}' is missing; {install_hint(extra).replace('[', chr(92) + '[')}"
            )
    app.info.epilog = "\n\n".join(absent)
    app.callback()(whole_command)
    return app


def main() -> None:
    """The entry point of the installed command."""
    leave_on_signals("".join(sys.argv[1:2]))
    from tidemark.foundation.log.process import report_without_secrets

    alone = {part: PARTS[part] for part, commands in ALONE.items() if commands.intersection(sys.argv[1:2])}
    with report_without_secrets():
        program = command_line(alone or PARTS)
        take_interrupts()
        program()


if __name__ == "__main__":
    main()
