"""`tidemark consume`, also as `python -m consumer`: one process, or several under a parent that watches them."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from consumer.cli.support import errors, own_modules_of
from consumer.config import FILE
from consumer.definition.loading import load_definition, only_hub
from consumer.definition.model import Definition
from consumer.errors import OrphanedError, ShutdownError
from consumer.probes.fleet import LOCAL, worker_port
from consumer.probes.server import EVERYWHERE, Board, ProbeServer, ProcessAnswers
from consumer.running.supervisor import supervise
from consumer.running.worker import Worker, watch_parent
from consumer.telemetry.interval import dropped_text
from tidemark.foundation.app_settings import COMMAND_ROOT, STORAGE, load_settings
from tidemark.foundation.azure.connections import transport_options
from tidemark.foundation.azure.exporting import otlp_tracing
from tidemark.foundation.errors import SettingsError, TidemarkError
from tidemark.foundation.http.which_app import check_named, local_stack_problem
from tidemark.foundation.log.process import (
    Lines,
    LinesForPeople,
    keep_secrets_from_logs,
    quiet_sdks,
    report_without_secrets,
)
from tidemark.foundation.log.usage import Command
from tidemark.foundation.sanitize import without_secrets
from tidemark.foundation.settings_reader import read_log_level
from tidemark.foundation.tracing.names import SETTING, Mode
from tidemark.foundation.wording import count_text

log = logging.getLogger("tidemark.consumer")

STDIN = 0  # its file descriptor

SAME_ORDER = 1.0
"""Seconds within which a second signal counts as the same order: a terminal's Ctrl-C, systemd and `timeout` signal the
workers as well as their parent, which passes the signal on.
"""

GRACE = 10.0
"""Seconds that a worker may take beyond CONSUMER_SHUTDOWN, to close connections and send its last telemetry."""


def consume(
    processes: Annotated[
        int, typer.Option(min=1, help="Worker processes; leases spread the partitions over them.")
    ] = 1,
    seconds: Annotated[
        float | None, typer.Option("--for", min=0.0, help="Stop after so many seconds.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            help="Stop once every partition has settled up to there: latest, a time that is over, or numbers such as 0=500,1=700.",
        ),
    ] = None,
    root: Annotated[
        Path,
        typer.Option(
            "--root", help="Folder of .env and local.settings.json; the environment wins over both."
        ),
    ] = COMMAND_ROOT,
    hub: Annotated[str | None, typer.Option("--hub", help="Only this hub of CONSUMER_FILE.")] = None,
    worker: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Consumes an event hub, or the hubs of CONSUMER_FILE, until SIGTERM or Ctrl-C, then finishes what was begun and saves the
    checkpoints.

    EVENTHUB_RATELIMIT is for the command as a whole: several worker processes divide it. What fails in one of several hubs
    ends or restarts that one; the command ends when all have ended.

    Exit status: 0 stopped in order, 2 settings, 3 an untrusted checkpoint, 4 ALLOW_BACKLOG_OF or
    ALLOW_BACKLOG_TO exceeded, 5 nothing but poison, 6 not all that was begun was settled in time, 7 the parent of a worker is gone, 1 anything else.
    """
    own_modules_of(root)
    try:
        settings = dict(load_settings(root))
        check_named(root, settings, STORAGE, *_NAMING)
        if until is not None:
            settings["CONSUMER_UNTIL"] = until
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(LinesForPeople() if sys.stderr.isatty() else Lines())
        logging.basicConfig(level=read_own_level(settings), handlers=[handler])
        keep_secrets_from_logs()
        quiet_sdks(settings)
        definition = load_definition(settings)
        if hub is not None:
            definition = only_hub(definition, hub)
        config = definition.hubs[0].config
        if not worker and (problem := local_stack_problem(settings, STORAGE, "EventHubConnection")):
            transport_options(settings)  # raises without the certificate, for which waiting is no use
            log.warning("%s; this waits for it", problem)
        if processes > 1:
            status = supervise(
                processes,
                seconds=seconds,
                grace=config.shutdown + GRACE,
                root=root,
                http_port=config.http_port,
                hub=hub,
                until=until,
            )
        else:
            asyncio.run(_run(definition, seconds, Worker.parse(worker) if worker else None))
            status = 0
    except TidemarkError as error:
        errors.print(f"[red]error:[/] {escape(without_secrets(str(error)))}", soft_wrap=True)
        status = error.exit_status
    raise typer.Exit(status)


_NAMING = (
    *("EventHubConnection", "EVENTHUB_CONNSTRING", "EVENTHUB_NAME"),
    *("CosmosConnection", "COSMOS_CONNSTRING", "CONSUMER_SQL_URL", FILE),
)
"""Settings of which an environment has one, if a consumer is configured there, as in a container."""

OWN_LEVEL, OWN_LOG_LEVEL = "CONSUMER_LOG_LEVEL", "INFO"


def read_own_level(settings: Mapping[str, str]) -> str:
    """The level of the process's own log. Raises SettingsError."""
    try:
        return read_log_level(settings, OWN_LEVEL, OWN_LOG_LEVEL)
    except ValueError as error:
        raise SettingsError(str(error)) from None


@dataclass(eq=False)
class StopOrders:
    """Carries out signals: the first one stops in order, a later one leaves at once."""

    stop: asyncio.Event
    shutdown: float
    clock: Callable[[], float]
    leave: Callable[[int], object]
    is_orphan: bool = False
    since: float | None = None

    def orphaned(self) -> None:
        """Stops in order because the parent is gone. A stop that has begun is not hurried."""
        self.is_orphan = True
        if self.since is None:
            log.warning("the parent process is gone: stopping in order; %g s at most", self.shutdown)
            self.stop.set()
            self.since = self.clock()

    def heard(self, name: str) -> None:
        now = self.clock()
        if self.since is None:
            log.info("%s: stopping in order; %g s at most", name, self.shutdown)
            self.since = now
            self.stop.set()
        elif now - self.since >= SAME_ORDER:
            log.warning("%s again: leaving at once", name)
            self.leave(130)


class LastResort:
    """Leaves `within` seconds after an order to stop, and soon after a later one: on a thread, as the loop may be held up for ever by
    code of the user's or by a library that does not let its calls be cancelled.
    """

    def __init__(self, within: float, leave: Callable[[int], object]) -> None:
        self._within, self._leave = within, leave
        self._since: float | None = None
        self._timers: list[threading.Timer] = []

    def heard(self, *_: object) -> None:
        now, wait = time.monotonic(), self._within
        if self._since is None:
            self._since = now
        elif now - self._since >= SAME_ORDER:
            wait = min(wait, SAME_ORDER)  # a loop that hears it leaves before
        else:
            return
        self._timers.append(timer := threading.Timer(wait, self._late, [wait]))
        timer.daemon = True
        timer.start()

    def over(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _late(self, wait: float) -> None:
        log.error("the shutdown did not end within %g s, as where a transform does not return: leaving", wait)
        self._leave(ShutdownError.exit_status)


async def _run(definition: Definition, seconds: float | None, worker: Worker | None) -> None:
    # Until `_listen`, a signal ends the process at once.
    from consumer.running.hubs import Hubs
    from consumer.running.process import undivided

    # What is imported stays until the end: a full collection would walk its 80,000 objects and hold up the loop for 40 ms.
    gc.freeze()
    config = definition.hubs[0].config  # settings of the process are the same for all hubs
    stop = asyncio.Event()
    orders = StopOrders(stop, config.shutdown, clock=asyncio.get_running_loop().time, leave=os._exit)
    last = LastResort(config.shutdown + GRACE, leave=os._exit)
    _listen(orders, last, worker, within=config.shutdown + GRACE)
    if seconds is not None:
        asyncio.get_running_loop().call_later(seconds, stop.set)
        asyncio.get_running_loop().call_later(seconds, last.heard)
    hubs = Hubs(definition, share=worker.share if worker else undivided)
    probes = _answer_probes(config.http_port, hubs.boards, worker)
    tracing = (
        otlp_tracing(SETTING, "tidemark.consumer", definition.hubs[0].settings)
        if config.tracing is Mode.OTLP
        else None
    )
    try:
        totals = await hubs.run(stop)
    finally:
        last.over()
        if probes is not None:
            probes.close()
        if tracing is not None:
            await asyncio.to_thread(tracing.shutdown)  # sends the last spans
    log.info(
        "stopped: %d received, %d written, %s, %s, %d skipped as settled before%s",
        *(totals.received, totals.written, count_text(totals.dead_letters, "dead letter")),
        *(count_text(totals.retried, "retry", "retries"), totals.skipped),
        f", {dropped_text(totals.dropped)}" if totals.dropped else "",
    )
    if orders.is_orphan:
        raise OrphanedError("the parent process is gone: what was begun is finished")


def _answer_probes(port: int, boards: Sequence[Board], worker: Worker | None) -> ProbeServer | None:
    """Begins to answer; a worker on this machine only, for its parent. Raises SettingsError for a port that is taken."""
    if not port:
        return None
    where = (EVERYWHERE, port) if worker is None else (LOCAL, worker_port(port, worker.index))
    return ProbeServer(*where, ProcessAnswers(boards))


def _listen(orders: StopOrders, last: LastResort, worker: Worker | None, *, within: float) -> None:
    """Reacts to signals, and in a worker to the end of its parent, after which it leaves within `within` seconds."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, orders.heard, number.name)
        signal.signal(number, last.heard)  # the loop is woken all the same
    if worker is not None:
        watch_parent(STDIN, lambda: loop.call_soon_threadsafe(orders.orphaned), within=within)


def main() -> None:
    """The entry point of `python -m consumer`."""
    with report_without_secrets():
        program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        program.command(cls=Command)(consume)
        program()
