"""Running one function once: arguments, outputs, log lines, a record of it."""

import asyncio
import contextvars
import json
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol, TextIO

import azure.functions as func
from azure.functions.queue import QueueMessageOutConverter

from devstack.function_host.indexing import RETURN, IndexedFunction
from tidemark.foundation.log.process import Lines
from tidemark.foundation.log.tail import without_tail

logger = logging.getLogger("devstack.function_host")

_HISTORY = 1000  # invocations remembered; a demo of ten minutes stays below that
_SHORT_ID = 8


class OutputSender(Protocol):
    """Where the queue outputs of functions go."""

    async def send(self, binding: Mapping[str, Any], bodies: Sequence[str | bytes]) -> None:
        """Send to the queue of an output binding, in order."""


@dataclass(slots=True)
class InvocationRecord:
    """What happened in one invocation. Filled while it runs: `succeeded` is None until its end."""

    function: str
    invocation_id: str
    reason: str
    started_at: datetime
    duration_s: float = 0.0
    succeeded: bool | None = None
    error: str = ""
    log: list[str] = field(default_factory=list)
    """Messages logged from within the invocation, of the levels the loggers let through."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an invocation: its record, and what the function returned (None if it failed)."""

    record: InvocationRecord
    value: Any = None


class InvocationLog(logging.Handler):
    """Attributes log records to the invocation they were made in, and prints them if there is a stream.

    Belongs on the root logger while the host runs. Loggers keep their levels.
    """

    current: contextvars.ContextVar["tuple[InvocationLog, InvocationRecord] | None"] = contextvars.ContextVar(
        "current_invocation", default=None
    )

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream
        self._exceptions = logging.Formatter("%(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        owner, invocation = self.current.get() or (self, None)
        if owner is not self:  # of another host in this process
            return
        text = self._exceptions.format(record)
        if invocation is not None:
            invocation.log.append(text)
        if self._stream is not None:
            print(_line(record, invocation, without_tail(text)), file=self._stream, flush=True)


class Invoker:
    """Runs functions. Each invoke() must be a task of its own or be awaited by one that does nothing else meanwhile."""

    def __init__(self, sender: OutputSender, log: InvocationLog, *, threads: int | None = None) -> None:
        """`threads` run synchronous functions; None takes Python's default, as the worker does."""
        self.records: deque[InvocationRecord] = deque(maxlen=_HISTORY)
        self._sender = sender
        self._log = log
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="function")

    async def invoke(self, function: IndexedFunction, trigger: object, *, reason: str) -> Outcome:
        """Run a function on a trigger value and send its outputs.

        Nothing the function raises comes out: the outcome's record says so. The outputs of a function that raised are
        not sent; if sending fails, the invocation has failed.
        """
        record = InvocationRecord(function.name, str(uuid.uuid4()), reason, datetime.now(UTC))
        self.records.append(record)
        token = self._log.current.set((self._log, record))
        started = time.monotonic()
        logger.info(
            "Executing 'Functions.%s' (Reason='%s', Id=%s)", function.name, reason, record.invocation_id
        )
        value = None
        try:
            value = await self._run(function, trigger, record)
            record.succeeded = True
        except Exception as error:  # whatever it is: the border between user code and the host
            record.error = repr(error)
            record.succeeded = False
            logger.exception("%s raised", function.name)
        except asyncio.CancelledError:
            record.error = "stopped with the host"
            record.succeeded = False
            raise
        finally:
            record.duration_s = time.monotonic() - started
            self._log_end(record)
            self._log.current.reset(token)
        return Outcome(record, value)

    def close(self) -> None:
        """Take no more work. A synchronous function still running is left to end by itself: threads cannot be ended."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, function: IndexedFunction, trigger: object, record: InvocationRecord) -> Any:
        arguments: dict[str, Any] = {function.trigger["name"]: trigger}
        if function.wants_context:
            arguments["context"] = _Context(function.name, record.invocation_id)
        outs = {output["name"]: _Out() for output in function.outputs if output["name"] != RETURN}
        value = await self._call(function, {**arguments, **outs})
        returned = next((output for output in function.outputs if output["name"] == RETURN), None)
        _check_returned(function.name, value, returned)
        values = {name: out.get() for name, out in outs.items()} | {RETURN: value}
        for output in function.outputs:
            if output["type"] == "queue" and values[output["name"]] is not None:
                await self._sender.send(output, queue_bodies(values[output["name"]]))
        return value

    async def _call(self, function: IndexedFunction, arguments: Mapping[str, Any]) -> Any:
        if function.is_async:
            return await function.call(**arguments)
        run = partial(contextvars.copy_context().run, function.call, **arguments)
        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def _log_end(self, record: InvocationRecord) -> None:
        logger.info(
            "Executed 'Functions.%s' (%s, Id=%s, Duration=%dms)",
            record.function,
            "Succeeded" if record.succeeded else "Failed",
            record.invocation_id,
            record.duration_s * 1000,
        )


def _check_returned(name: str, value: object, binding: Mapping[str, Any] | None) -> None:
    """Refuse what the worker refuses."""
    if binding is None and value is not None:
        raise TypeError(f"function {name} has no $return binding but returned {type(value).__name__}")
    if binding is not None and binding["type"] == "queue" and value is None:
        raise TypeError(
            f"function {name} has a queue as $return but returned None; use func.Out where none may be sent"
        )
    if binding is not None and binding["type"] == "http" and not isinstance(value, str | func.HttpResponse):
        raise TypeError(
            f"function {name} answers HTTP with HttpResponse or str, but returned {type(value).__name__}"
        )


def queue_bodies(value: object) -> list[str | bytes]:
    """The messages a queue output stands for, by the rules of the SDK's own converter.

    Raises TypeError for what the worker cannot encode.
    """
    try:
        datum = QueueMessageOutConverter.encode(value, expected_type=None)
    except NotImplementedError as error:
        raise TypeError(
            f"a queue output takes str, bytes, QueueMessage or a list of them, got {value!r}"
        ) from error
    if datum.type != "json":
        return [datum.value]
    document = json.loads(datum.value)
    items = document if isinstance(document, list) else [document]
    return [item if isinstance(item, str) else json.dumps(item) for item in items]


class _Out(func.Out[Any]):
    """An output the function may set; None until it does."""

    def __init__(self) -> None:
        self._value: Any = None

    def set(self, val: Any) -> None:
        self._value = val

    def get(self) -> Any:
        return self._value


class _Context(func.Context):
    """What a function may ask about its own invocation. There is no tracing and no retry policy to tell of."""

    def __init__(self, function_name: str, invocation_id: str) -> None:
        self._function_name = function_name
        self._invocation_id = invocation_id
        self._local = threading.local()
        self._local.invocation_id = invocation_id

    @property
    def invocation_id(self) -> str:
        return self._invocation_id

    @property
    def function_name(self) -> str:
        return self._function_name

    @property
    def function_directory(self) -> str:
        return ""

    @property
    def thread_local_storage(self) -> Any:
        return self._local

    @property
    def trace_context(self) -> Any:
        return SimpleNamespace(trace_parent="", trace_state="", attributes={})

    @property
    def retry_context(self) -> Any:
        return SimpleNamespace(retry_count=0, max_retry_count=0, exception=None)


_LINES = Lines()


def _line(record: logging.LogRecord, invocation: InvocationRecord | None, text: str) -> str:
    level = "" if record.levelno <= logging.INFO else f"{record.levelname} "
    source = f"{invocation.function} {invocation.invocation_id[:_SHORT_ID]} " if invocation else ""
    return f"[{_LINES.formatTime(record)}] {source}{level}{text}"
