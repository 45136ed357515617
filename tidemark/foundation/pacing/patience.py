"""How long requests of this process are waited for: as by a service, or as by a person at a terminal.

Clients read it when they are made. A command line sets it once, for all of its clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from tidemark.foundation.durations import parse_duration
from tidemark.foundation.errors import SettingsError

SETTING = "TIDEMARK_PATIENCE"
"""Variable of the environment: how long a command waits for an answer."""


class Patience(NamedTuple):
    """All in seconds. `repeated` is how often a request that nobody answered is sent again."""

    whole: float
    connect: float
    read: float
    repeated: int

    def timeouts(self) -> dict[str, float]:
        """Keyword arguments for any client of azure-core."""
        return {"connection_timeout": self.connect, "read_timeout": self.read}

    def repetitions(self) -> dict[str, int]:
        """Keyword arguments for its retries, beside `retry_total`, which counts refusals too."""
        return {"retry_connect": self.repeated, "retry_read": self.repeated}

    def options(self) -> dict[str, Any]:
        """Both."""
        return {**self.timeouts(), **self.repetitions()}

    def options_of_commands(self) -> dict[str, Any]:
        """Both, for clients that have others of their own in a service."""
        return {} if self is OF_A_SERVICE else self.options()


OF_A_SERVICE = Patience(120.0, 5.0, 30.0, 3)
"""Chosen: the defaults of the SDKs (10 retries up to 2 minutes apart for tables, 300 s to connect) take longer than the minute between two
evaluations. The next evaluation tries again anyway.
"""

DEFAULT = 30.0
"""Seconds that a person waits. Chosen: two attempts at a service that hangs."""

LEAST = 5.0

_held = OF_A_SERVICE


def asked_for(environment: Mapping[str, str]) -> float:
    """Seconds that a person waits. Raises SettingsError for what is no duration in TIDEMARK_PATIENCE."""
    text = environment.get(SETTING, "").strip()
    try:
        seconds = parse_duration(text) if text else DEFAULT
    except ValueError as error:
        raise SettingsError(f"{SETTING}: {error}") from None
    if seconds < LEAST:
        raise SettingsError(f"{SETTING}: found '{text}'; accepted: {LEAST:g}s and more, such as 2m")
    return seconds


def held() -> Patience:
    return _held


@contextmanager
def of_a_person(environment: Mapping[str, str]) -> Iterator[None]:
    """What clients that are made in this block wait for. Raises SettingsError as `asked_for` does.

    An attempt gets two fifths of the time, so that a second one and the pause before it fit in, and a tenth to connect: an account
    that does not exist may be behind a firewall that says nothing.
    """
    global _held  # noqa: PLW0603 - as the log of a process: its commands come one after another
    seconds = asked_for(environment)
    before, _held = _held, Patience(seconds, seconds * 0.1, seconds * 0.4, 1)
    try:
        yield
    finally:
        _held = before
