"""What stops a job, by who must act. One line of text says it all: the command prints it and ends with status 1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.foundation.errors import SettingsError, ShownError, TidemarkError

CHECK_FAILED = 3
"""Exit status of a job that ran well and whose answer is no, for use in pipelines (reconciliation)."""


class JobError(ShownError):
    """A job cannot go on. The text is the whole message for people."""


class InputError(JobError):
    """An input or a setting is not usable. The text names it, what was found and what is accepted."""


class CheckFailedError(JobError):
    """The job ran, and its answer is no: exit status 3."""


@contextmanager
def job_errors() -> Iterator[None]:
    """Around calls of the consumer: its SettingsError comes out as InputError, its other errors as JobError."""
    try:
        yield
    except SettingsError as error:
        raise InputError(str(error)) from error
    except TidemarkError as error:
        raise JobError(str(error)) from error
