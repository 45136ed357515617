"""Keeps secrets and lines of SDKs out of the log of a process.

SDKs log signed addresses, and exceptions contain their arguments. The root logger of the Functions worker passes INFO, at which
the SDKs log two lines per request. The host would send them without sampling: twenty paid lines for each of ours. So the loggers
of the SDKs get their own level, which no later level or handler of the root logger changes.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, TextIO

from tidemark.foundation.log.tail import line_without_secrets, without_tail
from tidemark.foundation.sanitize import one_line, without_secrets
from tidemark.foundation.secrets.known import hide_settings
from tidemark.foundation.settings_reader import SDK_LOG_LEVEL, read_log_level

_formatter = logging.Formatter()

LIBRARIES = ("aiohttp", "azure", "msal", "uamqp", "urllib3")
"""Loggers of the SDKs and their HTTP libraries. Levels of loggers below them (`azure.cosmos`) stay."""


_OURS = {"tidemark", "consumer", "scaling", "spark_jobs"}


def quiet_sdks(settings: Mapping[str, str]) -> None:
    """Set the level of TIDEMARK_SDK_LOG_LEVEL. Call it at every invocation, in case a library has set its own level since.

    Never raises, because the app is being loaded: `assemble` and the consumer's `read_config` report a wrong level.
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
    """Replace the secrets in the message and traceback of a record. A message of ours is one line without control characters,
    because errors of services and of users' code are in it. A record without such texts stays unchanged.
    """
    try:
        text = record.getMessage()
    except Exception:  # arguments that do not fit: the handler reports it, with the arguments
        text, shown = repr(record.args), without_secrets(repr(record.args))
        if shown != text:
            record.msg, record.args = f"{record.msg}, with arguments that do not fit: {shown}", None
        return
    is_ours = record.name.partition(".")[0] in _OURS
    shown = line_without_secrets(one_line(text) if is_ours else text)
    if shown != text:
        record.msg, record.args = shown, None
    if record.exc_info and record.exc_info[0] is not None:
        traceback_text = _formatter.formatException(record.exc_info)
        if (shown := without_secrets(traceback_text)) != traceback_text:
            record.exc_info, record.exc_text = None, shown


def hide_in_tracebacks() -> None:
    """Hide secrets in texts that go to standard error without a logger: errors that end the process or a thread, errors that
    cannot be caught, and warnings.
    """
    sys.excepthook = _print_error
    threading.excepthook = lambda fault: _print_error(
        fault.exc_type, fault.exc_value or fault.exc_type(), fault.exc_traceback
    )
    sys.unraisablehook = _print_unraisable
    if warnings.showwarning is not _warn:
        warnings.showwarning = _warn


def _print_unraisable(fault: Any) -> None:
    if fault.exc_value is not None:
        _print_error(fault.exc_type, fault.exc_value, fault.exc_traceback)


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


def _print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if sys.stderr is not None and not issubclass(kind, SystemExit):
        sys.stderr.write(without_secrets("".join(traceback.format_exception(kind, error, trace))))


@contextmanager
def report_without_secrets() -> Iterator[None]:
    """For a whole command: an unexpected error ends it with the traceback and status 1, as usual, but without secrets. Typer has
    its own hook for such errors. A full disk is one line.
    """
    keep_secrets_from_logs()
    try:
        yield
    except Exception as error:  # printed as the interpreter would
        if isinstance(error, OSError) and error.errno in _NO_ROOM and error.filename is None:
            _forget_output()
            sys.stderr.write(f"error: what the command writes finds no room: {error.strerror}\n")
        else:
            _print_error(type(error), error, error.__traceback__)
        raise SystemExit(1) from None


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _forget_output() -> None:
    """Let the end of the process write nothing more to a standard output that takes nothing: it would be another error."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Factory:
    """Creates records without secrets, with the factory before it. A factory sees the records of all loggers, a filter those of one."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        hide_secrets(record)
        return record


class Lines(logging.Formatter):
    """Formats lines with their time in UTC, as every process of this project does: so lines of two machines can be put in order."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, form: str = "%(asctime)s %(levelname)-7s %(message)s") -> None:
        super().__init__(form)


class LinesForPeople(Lines):
    """Formats lines for terminals, without the tails, which are for queries."""

    def format(self, record: logging.LogRecord) -> str:
        return without_tail(super().format(record))


def keep_secrets_from_logs() -> None:
    """Keep secrets out of the logs of this process from now on. Calling it again changes nothing."""
    hide_settings(os.environ)
    hide_in_tracebacks()
    make = logging.getLogRecordFactory()
    if not isinstance(make, _Factory):
        logging.setLogRecordFactory(_Factory(make))
