"""What keeps the log readable: no secrets, whoever logs them, and no lines of SDKs.

SDKs write signed addresses, and exceptions what they had. The Functions worker lets the root logger pass INFO, and at
INFO the SDKs write two lines per request, which the host sends on unsampled, to be paid for: twenty for each of ours.
So their loggers get a level of their own, which no later level or handler of the root logger changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from foundation.log.tail import without_tail
from foundation.sanitize import without_secrets
from foundation.settings_reader import SDK_LOG_LEVEL, read_log_level

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
    except Exception:  # noqa: BLE001 - arguments that do not fit: the handler reports it
        return
    if (shown := without_secrets(text)) != text:
        record.msg, record.args = shown, None
    if record.exc_info and record.exc_info[0] is not None:
        story = _formatter.formatException(record.exc_info)
        if (shown := without_secrets(story)) != story:
            record.exc_info, record.exc_text = None, shown


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
    make = logging.getLogRecordFactory()
    if not isinstance(make, _Factory):
        logging.setLogRecordFactory(_Factory(make))
