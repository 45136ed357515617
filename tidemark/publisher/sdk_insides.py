"""Decides whether private names of an SDK are used: only in the version they were checked with, and unless switched off.

Otherwise, and after the first failure of a private name, the public names are used as far as they suffice.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from tidemark.publisher.errors import PublishSettingsError

SETTING = "PUBLISHER_SDK_INSIDES"
"""App setting of the commands. `off` has the effect of `sdk_insides=False` of producers and senders."""

CHANGED_SDK_ERRORS = (ImportError, AttributeError, NameError, TypeError)
"""Raised by a private name that was moved, renamed or given other arguments."""


def reason_against_insides(package: str, series: str, *, wanted: bool) -> str | None:
    """Why private names of the package are not used; None if they are. `series` is the start of the checked version."""
    if not wanted:
        return f"private names of {package} are switched off (sdk_insides=False, {SETTING}=off)"
    installed = version(package)
    if not installed.startswith(series):
        return f"{package} {installed} is installed, and its private names were checked in {series}* only"
    return None


def wants_insides(settings: Mapping[str, str]) -> bool:
    """Whether the app setting allows private names. Raises PublishSettingsError."""
    value = settings.get(SETTING, "on").strip().lower()
    if value not in {"on", "off"}:
        raise PublishSettingsError(f"{SETTING} is {value!r}, accepted: on, off")
    return value == "on"
