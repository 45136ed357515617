"""What Spark shows and hands on to its other processes: options of Python data sources, and settings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import msgspec

from tidemark.analysis.errors import InputError
from tidemark.foundation.secrets.known import hide_settings

# Plans, the event log and the history server show options. Spark redacts those whose names have "secret" in them
# (spark.redaction.regex): what may hold a key travels in these and in no others.
SETTINGS = "secretSettings"
"""A connection's settings as a JSON object, for processes whose environment may be another."""
CONNECTION_STRING = "secretConnectionString"
STORAGE = "secretStorage"
"""A JSON object of arguments for the file system."""

_SHOWN = {name.removeprefix("secret").lower(): name for name in (SETTINGS, CONNECTION_STRING, STORAGE)}

FOR_EVER = "36500d"
"""`maxFileAge` of streams: by default Spark passes over files that are a week older than the newest one, in silence."""

_SHARED = ("TIDEMARK_CA_BUNDLE", "SSL_CERT_FILE")


def positive(name: str, text: str) -> int:
    """Raises InputError for what is no whole number above zero."""
    if not text.isascii() or not text.isdigit() or not int(text):
        raise InputError(f"{name} is '{text}'; accepted is a whole number above 0")
    return int(text)


def check_secrets(options: Mapping[str, str]) -> None:
    """Raises InputError for an option that may hold a key and is named so that Spark shows it."""
    for name in options:
        if name.lower() in _SHOWN:
            raise InputError(
                f"the option {name} would show its keys in Spark's plans and event log; name it {_SHOWN[name.lower()]}"
            )


def settings_in(source: str, options: Mapping[str, str]) -> dict[str, str]:
    """The app settings that the options, by names in lower case, carry. Raises InputError."""
    try:
        settings = msgspec.json.decode(options.get(SETTINGS.lower(), "{}"), type=dict[str, str])
    except msgspec.DecodeError:
        raise InputError(f"{source}: option {SETTINGS} is no JSON object of texts") from None
    hide_settings(settings)  # in the task's own process, too
    return settings


def carried(settings: Mapping[str, str], connection: str) -> dict[str, str]:
    """The settings of a connection as an option."""
    names = [
        name for name in settings if name in {connection, *_SHARED} or name.startswith(f"{connection}__")
    ]
    return {SETTINGS: json.dumps({name: settings[name] for name in names})}


def environment(options: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, and the settings that the options carry."""
    settings = {**os.environ, **json.loads(options.get(SETTINGS) or "{}")}
    hide_settings(settings)
    return settings
