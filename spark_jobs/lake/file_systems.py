"""File systems by URL, with one identity for reading and for writing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsspec.core import url_to_fs  # type: ignore[import-untyped]

from tidemark.analysis.errors import InputError
from tidemark.foundation.secrets.known import hide_settings
from tidemark.foundation.version import install_hint

LAKE = {"abfs", "abfss", "az"}


def protocol_of(url: str) -> str:
    return url.partition("://")[0] if "://" in url else "file"


def is_lake(url: str) -> bool:
    return protocol_of(url) in LAKE


def file_system(url: str, storage: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The file system, and the path there. `storage` are its arguments; a data lake's default is the identity of
    azure-identity, or AZURE_STORAGE_* variables.

    Raises InputError for a kind of URL that is unknown or not installed.
    """
    hide_settings({name: str(value) for name, value in (storage or {}).items()})
    try:
        system, root = url_to_fs(url, **(storage or ({"anon": False} if is_lake(url) else {})))
    except (ImportError, ValueError) as error:
        raise InputError(
            f"'{url}' cannot be opened: {error}; accepted: a local folder, or abfss://container@account.dfs.core."
            f"windows.net/path ({install_hint('data-lake')})"
        ) from error
    return system, root
