"""From Spark's stack traces to the one line that says what happened in a task. Pure."""

from __future__ import annotations

import re

_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt|Exit)): (.+)$")
_SPARKS_OWN = {"PythonException", "SparkException", "Py4JJavaError", "PySparkException"}


def reason_of(error: BaseException) -> str:
    """The last error that the task's own Python raised, or the first line of what Spark says."""
    text = str(error)
    found = [match for line in text.splitlines() if (match := _ERROR.match(line.strip()))]
    told = [match for match in found if match[1] not in _SPARKS_OWN]
    if told:
        return f"{told[-1][1]}: {told[-1][2]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
