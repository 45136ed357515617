"""Loads the user's function, named as `module:function`."""

from __future__ import annotations

import importlib
from typing import cast

from consumer.mapping.documents import Transform
from tidemark.foundation.errors import SettingsError


def load_transform(name: str) -> Transform:
    """The function that a setting names. Raises SettingsError if it cannot be imported or called."""
    module_name, separator, function_name = name.partition(":")
    if not (module_name and separator and function_name):
        raise SettingsError(f"the transform '{name}' is not known; expected module:function")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except AttributeError:
        raise SettingsError(
            f"the transform '{name}': module '{module_name}' has no '{function_name}'"
        ) from None
    except Exception as error:  # the user's module may raise anything while it is imported
        raise SettingsError(
            f"the transform '{name}': its module cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        raise SettingsError(
            f"the transform '{name}' is no function; expected transform(document, event) -> mapping"
        )
    return cast("Transform", function)
