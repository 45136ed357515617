"""What the options of the sources have in common."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.util import find_spec

from spark_jobs.errors import InputError

SETTINGS = "secretSettings"
"""The option that carries a connection's settings to processes whose environment may be another. By its name Spark
redacts it where it shows options.
"""

_SHARED = ("TIDEMARK_CA_BUNDLE", "SSL_CERT_FILE")


def positive(name: str, text: str) -> int:
    """Raises InputError for what is no whole number above zero."""
    if not text.isascii() or not text.isdigit() or not int(text):
        raise InputError(f"{name} is '{text}'; accepted is a whole number above 0")
    return int(text)


def carried(settings: Mapping[str, str], connection: str) -> dict[str, str]:
    """The settings of a connection as an option."""
    names = [
        name for name in settings if name in {connection, *_SHARED} or name.startswith(f"{connection}__")
    ]
    return {SETTINGS: json.dumps({name: settings[name] for name in names})}


def environment(options: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, and the settings that the options carry."""
    return {**os.environ, **json.loads(options.get(SETTINGS) or "{}")}


def needs_stream_limits(source: str) -> None:
    """Raises InputError on a Spark whose Python sources do not know where a batch begins (before 4.2)."""
    if find_spec("pyspark.sql.streaming.datasource") is None:
        raise InputError(f'streams from "{source}" need PySpark 4.2 or newer; batches work with 4.0')
