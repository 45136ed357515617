"""App settings, as a command of the `tidemark` tool reads them."""

from __future__ import annotations

from pathlib import Path

from foundation import app_settings
from foundation.errors import SettingsError


def settings_of(root: Path) -> dict[str, str]:
    """The app's settings: see `app_settings`. Raises SettingsError."""
    try:
        return app_settings.settings_of(root)
    except ValueError as error:
        raise SettingsError(str(error)) from None
