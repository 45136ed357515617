"""Whether the private names of an SDK may be used: the version that they were looked at in, and nobody says no.

Where they may not, or fail once, the public names do, as far as they go.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from tidemark.publisher.errors import PublishSettingsError

SETTING = "PUBLISHER_SDK_INSIDES"
"""App setting of the command line: `off` is `sdk_insides=False` of the producers and senders."""

CHANGED = (ImportError, AttributeError, NameError, TypeError)
"""What a private name that was moved, renamed or given other arguments raises."""


def why_not(package: str, series: str, *, wanted: bool) -> str | None:
    """Why its private names are not used, None if they are. `series` is the beginning of the version they are of."""
    if not wanted:
        return f"the insides of {package} are not to be used (sdk_insides=False, {SETTING}=off)"
    found = version(package)
    if not found.startswith(series):
        return f"{package} {found} is installed, and its insides are known of {series}* only"
    return None


def wants_insides(settings: Mapping[str, str]) -> bool:
    """What the app setting says. Raises PublishSettingsError."""
    found = settings.get(SETTING, "on").strip().lower()
    if found not in {"on", "off"}:
        raise PublishSettingsError(f"{SETTING} is {found!r}, accepted: on, off")
    return found == "on"
