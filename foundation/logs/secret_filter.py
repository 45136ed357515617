"""Keeps secrets out of log records, whoever logs them: SDKs write signed addresses, and exceptions what they had."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from foundation.sanitize import without_secrets

_formatter = logging.Formatter()


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


def keep_secrets_from_logs() -> None:
    """In this process, from now on; again is the same."""
    make = logging.getLogRecordFactory()
    if not isinstance(make, _Factory):
        logging.setLogRecordFactory(_Factory(make))
