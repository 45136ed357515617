"""What a command was given that decides where its lines go and what they become. It is stored before the first line goes
out, and the next start compares it for equality (pure).
"""

from __future__ import annotations

from collections.abc import Mapping

GivenOptions = dict[str, str]
"""Values by the name of their option; `namespace` by its host, never by the connection string, which is a secret. What was
not given is absent.
"""


def only_given(values: Mapping[str, str | None]) -> GivenOptions:
    """Those that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def describe_differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Each value that is not what it was, in words; empty if nothing differs."""
    names = [*before, *(name for name in now if name not in before)]
    return [
        f"{name} was {before.get(name, 'not given')}, now it is {now.get(name, 'not given')}"
        for name in names
        if before.get(name) != now.get(name)
    ]
