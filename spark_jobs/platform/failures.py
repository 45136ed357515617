"""What Spark reports of a failure: what was raised in one of its other processes, out of its stack traces, and what it means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException

from spark_jobs.platform.classic import SPARK_ERRORS
from tidemark.analysis.errors import InputError

_RAISED = re.compile(r"^\s*tidemark\.analysis\.errors\.InputError: (.+)$", re.MULTILINE)
_UNREAD = re.compile(r"\[(?:FAILED_READ_FILE|CANNOT_READ_FILE_FOOTER)[.\w]*\] (.+)")
"""Of a damaged file, or one that is of another kind, which the line names."""
_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt|Exit)): (.+)$")
_SPARKS_OWN = {
    *("PythonException", "SparkException", "PySparkException", "StreamingQueryException"),
    *("Py4JException", "Py4JJavaError", "Py4JError"),
}


@contextmanager
def input_errors() -> Iterator[None]:
    """Around actions: an InputError of a task or of planning comes out as InputError, with Spark's own
    exception as its cause; other errors pass.
    """
    try:
        yield
    except SPARK_ERRORS as error:
        raised = input_error_of(error)
        if raised is None:
            raise
        raise raised from error


def input_error_of(error: Exception) -> InputError | None:
    """The InputError that Spark's exception stands for; None if it is another error, or not Spark's."""
    if not isinstance(error, SPARK_ERRORS):
        return None
    text = str(error)
    if raised := _RAISED.search(text):
        return InputError(raised[1].strip())
    unread = _UNREAD.search(text)
    return None if unread is None else InputError(f"a file cannot be read: {unread[1].strip()}")


def reason_of(error: BaseException) -> str:
    """The last error that the task's own Python raised, or the first line of what Spark says."""
    text = str(error)
    errors = [match for line in text.splitlines() if (match := _ERROR.match(line.strip()))]
    ours = [match for match in errors if match[1] not in _SPARKS_OWN]
    if ours:
        return f"{ours[-1][1]}: {ours[-1][2]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def first_line(error: Exception) -> str:
    """The first line that says something: py4j's own says only that there was an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith("An error occurred while calling")), "")


def is_absence(error: Exception) -> bool:
    """Whether Spark says that nothing is at the path."""
    if not isinstance(error, AnalysisException):
        return False
    # What Spark 4 calls a condition, 3.5 knows as an error class.
    named = getattr(error, "getCondition", None) or error.getErrorClass
    return bool(named() == "PATH_NOT_FOUND")
