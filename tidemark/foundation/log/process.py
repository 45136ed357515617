"""What keeps the log readable: no secrets, whoever logs them, and no lines of SDKs.

SDKs write signed addresses, and exceptions what they had. The Functions worker lets the root logger pass INFO, and at
INFO the SDKs write two lines per request, which the host sends on unsampled, to be paid for: twenty for each of ours.
So their loggers get a level of their own, which no later level or handler of the root logger changes.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, TextIO

from tidemark.foundation.log.tail import line_without_secrets, without_tail
from tidemark.foundation.sanitize import without_secrets
from tidemark.foundation.secrets.known import hide_settings
from tidemark.foundation.settings_reader import SDK_LOG_LEVEL, read_log_level

_formatter = logging.Formatter()

LIBRARIES = ("aiohttp", "azure", "msal", "uamqp", "urllib3")
"""Loggers of the SDKs and of what they send requests with. What somebody sets below them (`azure.cosmos`) stays."""


def quiet_sdks(settings: Mapping[str, str]) -> None:
    """Sets the level that TIDEMARK_SDK_LOG_LEVEL names. Safe to call often: should a library have set its own level in
    the meantime, the next invocation has ours again.

    Never raises, as the app is being loaded: `assemble` and the consumer's `read_config` tell a wrong level.
    """
    try:
        level = read_log_level(settings)
    except ValueError:
        level = SDK_LOG_LEVEL
    for name in LIBRARIES:
        logger = logging.getLogger(name)
        if logging.getLevelName(logger.level) != level:  # setting it empties a cache of the whole process
            logger.setLevel(level)


def hide_secrets(record: logging.LogRecord) -> None:
    """Rewrites a record that holds a secret, in its message or its traceback; any other stays as it is."""
    try:
        text = record.getMessage()
    except Exception:  # arguments that do not fit: the handler reports it, with the arguments
        text, shown = repr(record.args), without_secrets(repr(record.args))
        if shown != text:
            record.msg, record.args = f"{record.msg}, with arguments that do not fit: {shown}", None
        return
    if (shown := line_without_secrets(text)) != text:
        record.msg, record.args = shown, None
    if record.exc_info and record.exc_info[0] is not None:
        story = _formatter.formatException(record.exc_info)
        if (shown := without_secrets(story)) != story:
            record.exc_info, record.exc_text = None, shown


def hide_in_tracebacks() -> None:
    """The same for what goes to standard error without being logged: what ends a process or a thread, what is raised where
    nobody can catch it, and warnings.
    """
    sys.excepthook = _tell_fault
    threading.excepthook = lambda fault: _tell_fault(
        fault.exc_type, fault.exc_value or fault.exc_type(), fault.exc_traceback
    )
    sys.unraisablehook = _tell_unraisable
    if warnings.showwarning is not _warn:
        warnings.showwarning = _warn


def _tell_unraisable(fault: Any) -> None:
    if fault.exc_value is not None:
        _tell_fault(fault.exc_type, fault.exc_value, fault.exc_traceback)


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    stream = sys.stderr if file is None else file
    if stream is not None:
        with suppress(OSError):
            stream.write(without_secrets(warnings.formatwarning(message, category, filename, lineno, line)))


def _tell_fault(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if sys.stderr is not None and not issubclass(kind, SystemExit):
        sys.stderr.write(without_secrets("".join(traceback.format_exception(kind, error, trace))))


@contextmanager
def report_without_secrets() -> Iterator[None]:
    """Around a command as a whole: an error that nobody expected ends it with its traceback and status 1, as ever, but
    without secrets. Typer has a hook of its own for these.
    """
    keep_secrets_from_logs()
    try:
        yield
    except Exception as error:  # told as the interpreter would
        _tell_fault(type(error), error, error.__traceback__)
        raise SystemExit(1) from None


class _Factory:
    """Makes records as before, without secrets. A factory sees those of all loggers, a filter those of one."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        hide_secrets(record)
        return record


class ForPeople(logging.Formatter):
    """For terminals: without the tails that are for queries."""

    def format(self, record: logging.LogRecord) -> str:
        return without_tail(super().format(record))


def keep_secrets_from_logs() -> None:
    """In this process, from now on; again is the same."""
    hide_settings(os.environ)
    hide_in_tracebacks()
    make = logging.getLogRecordFactory()
    if not isinstance(make, _Factory):
        logging.setLogRecordFactory(_Factory(make))
