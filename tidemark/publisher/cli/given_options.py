"""The given options that decide where lines go and what they become (pure).

A command stores them before it sends the first line. The next start refuses other values.
"""

from __future__ import annotations

from collections.abc import Mapping

GivenOptions = dict[str, str]
"""Option name -> value; options that were not given are absent. `namespace` is the host, because a connection string is secret."""


def only_given(values: Mapping[str, str | None]) -> GivenOptions:
    """Drop the values that are None."""
    return {name: value for name, value in values.items() if value is not None}


def describe_differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """One text for each value that has changed."""
    names = [*before, *(name for name in now if name not in before)]
    return [
        f"{name} was {before.get(name, 'not given')}, now it is {now.get(name, 'not given')}"
        for name in names
        if before.get(name) != now.get(name)
    ]
