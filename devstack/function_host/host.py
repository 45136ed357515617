"""The host: one app, its listeners, its web server, from start to stop."""

import asyncio
import logging
import os
from collections.abc import Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TextIO

import azure.functions as func
from aiohttp import web
from azure.functions.queue import QueueMessage
from azure.functions.timer import TimerRequest

from devstack.function_host.clock import TRUE, HostClock
from devstack.function_host.event_hubs import EventHubListener
from devstack.function_host.http_server import HttpServer, Keys, manual_request
from devstack.function_host.indexing import EVENT_HUB, QUEUE, TIMER, IndexedFunction, index
from devstack.function_host.invocation import InvocationLog, InvocationRecord, Invoker, Outcome
from devstack.function_host.queues import POISON_SUFFIX, QueueListener, StorageQueues, waited_for
from devstack.function_host.settings import HostError, HostOptions, connection_string
from devstack.function_host.timers import run_timer
from devstack.processes.child import free_ports
from devstack.servers.started import Started
from scaling.schedules import ncrontab

logger = logging.getLogger("devstack.function_host")

STORAGE_SETTING = "AzureWebJobsStorage"
_THREADS_SETTING = "PYTHON_THREADPOOL_THREAD_COUNT"


class Listener(Protocol):
    """Runs a function on what comes from a service."""

    async def run(self, stopping: asyncio.Event) -> None:
        """Until the event is set; returns when what is at work is done."""


class FunctionHost(Started):
    """Hosts one function app. start() and stop() once each, on one event loop."""

    def __init__(
        self,
        app: func.FunctionApp,
        *,
        settings: Mapping[str, str] | None = None,
        host_json: Mapping[str, Any] | None = None,
        port: int = 0,
        storage_connection: str | None = None,
        admin_key: str = "",
        function_key: str = "",
        log_stream: TextIO | None = None,
        grace_s: float = 10.0,
        clock: HostClock = TRUE,
    ) -> None:
        """Index the app and check all of it; does no I/O. Raises HostError naming the function and binding at fault.

        settings: what %NAME% and connections resolve to; the environment if not given. The functions themselves read
            the environment, which is not touched here.
        host_json: the parsed file; the defaults of the real host if not given.
        port: to listen on, on the loopback address; 0 takes a free one.
        storage_connection: connection string in place of the setting AzureWebJobsStorage.
        admin_key, function_key: see Keys.
        log_stream: where log lines go; nowhere if not given.
        grace_s: how long stop() waits for what runs.
        clock: what timers go by.
        """
        self._settings = dict(os.environ if settings is None else settings)
        if storage_connection is not None:
            self._settings[STORAGE_SETTING] = storage_connection
        self._options = HostOptions.parse({"version": "2.0"} if host_json is None else host_json)
        self._functions = {function.name: function for function in index(app, self._settings)}
        self._log = InvocationLog(log_stream)
        self._queues = StorageQueues(self._settings, self._options.queues)
        self._listeners: list[Listener] = [self._listener(function) for function in self._active(QUEUE)]
        self._listeners += [self._event_hub_listener(function) for function in self._active(EVENT_HUB)]
        self._schedules = [(function, self._schedule(function)) for function in self._active(TIMER)]
        self._check_outputs()
        self._invoker = Invoker(self._queues, self._log, threads=self._thread_count())
        self._web = HttpServer(
            list(self._functions.values()),
            self._options.route_prefix,
            Keys(admin_key, function_key),
            call=self._answer,
            run=self._start_manual_run,
        )
        self._grace_s = grace_s
        self._clock = clock
        self._wanted_port = port
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def port(self) -> int:
        """The port listened on; 0 before start()."""
        return self._port

    @property
    def functions(self) -> Sequence[IndexedFunction]:
        """The functions of the app, in its order."""
        return list(self._functions.values())

    @property
    def invocations(self) -> Sequence[InvocationRecord]:
        """The last invocations, oldest first, running ones included; bounded."""
        return list(self._invoker.records)

    async def start(self) -> None:
        """Listen for HTTP, then start timers and queue listeners. Raises OSError if the port is taken."""
        self._runner = web.AppRunner(self._web.application, access_log=None, shutdown_timeout=self._grace_s)
        await self._runner.setup()
        try:
            site = web.TCPSite(self._runner, "127.0.0.1", self._wanted_port or free_ports(1)[0])
            await site.start()
        except OSError:
            await self._runner.cleanup()
            raise
        self._port = int(self._runner.addresses[0][1])
        logging.getLogger().addHandler(self._log)
        for listener in self._listeners:
            self._own(listener.run(self._stopping))
        for function, schedule in self._schedules:
            self._own(self._run_timer(function, schedule))

    async def stop(self) -> None:
        """Take no more triggers, wait for what runs, close everything. Idempotent.

        What still runs after grace_s is cancelled if it is asynchronous; messages it worked on come again.
        """
        self._stopping.set()
        if self._runner is not None:
            await asyncio.gather(self._runner.cleanup(), self._end_tasks())
            self._runner = None
        self._invoker.close()
        await self._queues.aclose()
        logging.getLogger().removeHandler(self._log)

    async def run_function(self, name: str, text: str = "") -> InvocationRecord:
        """Run a function now, whatever its schedule, and wait for its end.

        `text` is the body of the queue message or of the POST; timers ignore it. Raises HostError for an unknown name;
        what the function raises is in the record.
        """
        if name not in self._functions:
            raise HostError(f"there is no function {name}; there are: {', '.join(sorted(self._functions))}")
        outcome = await self._run_manually(self._functions[name], text)
        return outcome.record

    def _active(self, trigger_type: str) -> list[IndexedFunction]:
        return [
            function
            for function in self._functions.values()
            if function.trigger["type"] == trigger_type and not function.disabled
        ]

    def _listener(self, function: IndexedFunction) -> QueueListener:
        async def process(message: func.QueueMessage) -> bool:
            outcome = await self._invoker.invoke(
                function, message, reason=f"New queue message on '{queue_name}'"
            )
            return outcome.record.succeeded is True

        where = f"function {function.name}"
        queue_name, connection = function.trigger["queueName"], function.trigger["connection"]
        poison = None
        if not queue_name.endswith(POISON_SUFFIX):
            poison = self._queues.client(connection, queue_name + POISON_SUFFIX, where=where)
        client = self._queues.client(connection, queue_name, where=where)
        return QueueListener(self._queues, client, poison, self._options.queues, process)

    def _event_hub_listener(self, function: IndexedFunction) -> Listener:
        async def process(events: list[func.EventHubEvent]) -> bool:
            reason = f"{len(events)} events of '{function.trigger['eventHubName']}'"
            return (await self._invoker.invoke(function, events, reason=reason)).record.succeeded is True

        where = f"function {function.name}"
        return EventHubListener(
            function.trigger,
            connection_string(function.trigger["connection"], self._settings, where=where),
            connection_string(STORAGE_SETTING, self._settings, where=where),
            self._options.event_hubs,
            function.retry,
            process,
        )

    def _schedule(self, function: IndexedFunction) -> ncrontab.Schedule:
        try:
            return ncrontab.parse(function.trigger["schedule"])
        except ValueError as error:
            raise HostError(f"function {function.name}: {error}") from error

    def _check_outputs(self) -> None:
        """Name an output without a connection now, not when the first message is to be sent."""
        for function in self._functions.values():
            for output in function.outputs:
                if output["type"] == "queue":
                    where = f"function {function.name}: binding {output['name']}"
                    self._queues.client(output["connection"], output["queueName"], where=where)

    def _thread_count(self) -> int | None:
        text = self._settings.get(_THREADS_SETTING)
        if text is not None and not text.isdecimal():
            raise HostError(f"setting {_THREADS_SETTING} is {text!r}, accepted: a whole number")
        return int(text) if text else None

    async def _run_timer(self, function: IndexedFunction, schedule: ncrontab.Schedule) -> None:
        async def fire(past_due: bool) -> None:  # noqa: FBT001 - the one thing a timer is told
            request = TimerRequest(past_due=past_due)
            await self._invoker.invoke(function, request, reason="Timer fired")

        await run_timer(
            schedule,
            fire,
            _TimerClock(self._clock, self._stopping),
            run_on_startup=bool(function.trigger.get("runOnStartup")),
        )

    async def _answer(self, function: IndexedFunction, request: func.HttpRequest) -> func.HttpResponse | str:
        outcome = await self._invoker.invoke(function, request, reason="This function was called by HTTP")
        if not outcome.record.succeeded:
            raise web.HTTPInternalServerError
        answer: func.HttpResponse | str = (
            outcome.value
        )  # the invoker lets a function answer HTTP with nothing else
        return answer

    def _start_manual_run(self, function: IndexedFunction, text: str) -> None:
        self._own(self._run_manually(function, text))

    async def _run_manually(self, function: IndexedFunction, text: str) -> Outcome:
        trigger: object
        if function.trigger["type"] == TIMER:
            trigger = TimerRequest()
        elif function.trigger["type"] == QUEUE:
            trigger = QueueMessage(id="", body=text, dequeue_count=0, pop_receipt="")  # type: ignore[no-untyped-call]
        elif function.trigger["type"] == EVENT_HUB:
            trigger = [func.EventHubEvent(body=text.encode())]
        else:
            trigger = manual_request(text)
        return await self._invoker.invoke(function, trigger, reason="This function was run by hand")

    async def _end_tasks(self) -> None:
        tasks = set(self._tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _own(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run as a task that stop() waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a listener of the host ended", exc_info=task.exception())


class _TimerClock:
    """Time for timers."""

    def __init__(self, clock: HostClock, stopping: asyncio.Event) -> None:
        self._clock = clock
        self._stopping = stopping

    def now(self) -> datetime:
        return self._clock.now()

    async def wait(self, seconds: float) -> bool:
        return await waited_for(self._stopping, self._clock.true_seconds(seconds))
