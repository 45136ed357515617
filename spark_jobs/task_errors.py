"""What tasks may say when they fail. They run in Spark's other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from tidemark.analysis.errors import JobError
from tidemark.foundation.log.process import keep_secrets_from_logs
from tidemark.foundation.sanitize import HiddenError, raise_without_secrets

_Arguments = ParamSpec("_Arguments")
_Item = TypeVar("_Item")


@contextmanager
def failing_without_secrets() -> Iterator[None]:
    """Around what runs in Spark's other processes. Spark writes the whole traceback of an error into its logs and into the
    exception at the driver, with the errors of the SDKs that caused it.
    """
    keep_secrets_from_logs()  # that process is none of ours until now
    try:
        with raise_without_secrets():
            yield
    except HiddenError as error:
        if isinstance(error.__context__, JobError):  # the driver knows it by its type
            raise type(error.__context__)(str(error.__context__)) from None
        raise


def fails_without_secrets(
    task: Callable[_Arguments, Iterator[_Item]],
) -> Callable[_Arguments, Iterator[_Item]]:
    """`failing_without_secrets` around all that a task gives."""

    @wraps(task)
    def run(*args: _Arguments.args, **options: _Arguments.kwargs) -> Iterator[_Item]:
        with failing_without_secrets():
            yield from task(*args, **options)

    return run
