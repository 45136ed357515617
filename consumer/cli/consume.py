"""`tidemark consume`, also as `python -m consumer`: one process, or several under a parent that watches them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from consumer.config import ConsumerConfig, read_config
from consumer.errors import ConsumerError, SettingsError
from consumer.supervisor import supervise
from scaling.assembly import ROOT

errors = Console(stderr=True)
log = logging.getLogger("tidemark.consumer")

SAME_ORDER = 1.0
"""Seconds within which a second signal is the first one heard twice: a terminal's Ctrl-C, systemd and `timeout` signal
the workers as well as their parent, who passes it on.
"""


def consume(
    processes: Annotated[
        int, typer.Option(min=1, help="Worker processes; the leases spread the partitions over them.")
    ] = 1,
    seconds: Annotated[
        float | None, typer.Option("--for", min=0.0, help="Stop after so many seconds.")
    ] = None,
    root: Annotated[
        Path, typer.Option("--root", help="Folder of local.settings.json; the environment wins over it.")
    ] = ROOT,
) -> None:
    """Consumes an event hub until SIGTERM or Ctrl-C, then finishes what was begun and saves the checkpoints.

    Exit status: 0 stopped in order, 2 settings, 3 an untrusted checkpoint, 4 ALLOW_BACKLOG exceeded, 5 nothing but
    poison, 6 not all that was begun was settled in time, 1 anything else.
    """
    own_modules_of(root)
    settings = settings_of(root)
    logging.basicConfig(
        level=settings.get("CONSUMER_LOG_LEVEL", "INFO").upper(),
        format="%(asctime)s %(levelname)-7s %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("azure").setLevel(logging.WARNING)
    try:
        config = read_config(settings)
        if processes > 1:
            status = supervise(processes, seconds=seconds, grace=config.shutdown + 10.0, root=root)
        else:
            asyncio.run(_run(config, settings, seconds))
            status = 0
    except ConsumerError as error:
        errors.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        status = error.exit_status
    raise typer.Exit(status)


def own_modules_of(root: Path) -> None:
    """Lets CONSUMER_TRANSFORM and CONSUMER_SQL_HANDLER name modules beside the settings, as in a Functions app."""
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))


def settings_of(root: Path) -> dict[str, str]:
    """App settings: local.settings.json where there is one, then `.env`, then the environment."""
    values = {**_local_settings(root / "local.settings.json"), **_dot_env(root / ".env")}
    return {**values, **os.environ}


def _local_settings(path: Path) -> dict[str, str]:
    from scaling.cli import local_settings  # noqa: PLC0415 - the other half's command line, only when needed

    try:
        return local_settings(path)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _dot_env(path: Path) -> dict[str, str]:
    """NAME=value lines, as the seed read them; comments and quotes as usual."""
    if not path.exists():
        return {}
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (line.removeprefix("export ").partition("=") for line in lines if line and line[0] != "#")
    return {name.strip(): value.strip().strip("'\"") for name, equals, value in pairs if equals}


class StopOrders:
    """What signals order: the first to stop in order, one that comes later to leave at once."""

    def __init__(
        self,
        stop: asyncio.Event,
        shutdown: float,
        *,
        clock: Callable[[], float],
        leave: Callable[[int], object],
    ) -> None:
        self._stop = stop
        self._shutdown = shutdown
        self._clock = clock
        self._leave = leave
        self._since: float | None = None

    def heard(self, name: str) -> None:
        now = self._clock()
        if self._since is None:
            log.info("%s: stopping in order; %g s at most", name, self._shutdown)
            self._since = now
            self._stop.set()
        elif now - self._since >= SAME_ORDER:
            log.warning("%s again: leaving at once", name)
            self._leave(130)


async def _run(config: ConsumerConfig, settings: Mapping[str, str], seconds: float | None) -> None:
    from consumer.process import ConsumerProcess  # noqa: PLC0415 - the SDKs take a second; other commands need none

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    orders = StopOrders(stop, config.shutdown, clock=loop.time, leave=os._exit)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, orders.heard, number.name)
    if seconds is not None:
        loop.call_later(seconds, stop.set)
    statistics = await ConsumerProcess(config, settings).run(stop)
    totals = statistics.totals
    log.info(
        "stopped: %d received, %d written, %d dead letters, %d retries, %d skipped as settled before",
        totals.received,
        totals.written,
        totals.dead_letters,
        totals.retried,
        totals.skipped,
    )


def main() -> None:
    """The entry point of `python -m consumer`."""
    typer.run(consume)
