"""What the options of the sources have in common."""

from __future__ import annotations

from importlib.util import find_spec

from spark_jobs.errors import InputError


def positive(name: str, text: str) -> int:
    """Raises InputError for what is no whole number above zero."""
    if not text.isascii() or not text.isdigit() or not int(text):
        raise InputError(f"{name} is '{text}'; accepted is a whole number above 0")
    return int(text)


def needs_stream_limits(source: str) -> None:
    """Raises InputError on a Spark whose Python sources do not know where a batch begins (before 4.2)."""
    if find_spec("pyspark.sql.streaming.datasource") is None:
        raise InputError(f'streams from "{source}" need PySpark 4.2 or newer; batches work with 4.0')
