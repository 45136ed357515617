"""File systems by URL, with one identity for reading and for writing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsspec.core import url_to_fs  # type: ignore[import-untyped]

from tidemark.analysis.errors import InputError
from tidemark.foundation.secrets.known import hide_settings
from tidemark.foundation.version import install_hint

LAKE = {"abfs", "abfss", "az"}
_SCOPE = "https://storage.azure.com/.default"


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


def deltas_store(url: str) -> tuple[str, dict[str, str] | None]:
    """The URL and the options by which deltalake opens a folder, with the identity that `file_system` has: its own store knows
    nothing of connection strings, and would look for an identity in other places. Raises InputError as `file_system`.
    """
    system, root = file_system(url)
    if not is_lake(url):
        return (root if protocol_of(url) == "file" else url), None
    given = dict(part.partition("=")[::2] for part in (system.connection_string or "").split(";") if part)
    options = {
        "account_name": given.get("AccountName") or system.account_name,
        "account_key": given.get("AccountKey") or system.account_key,
        "sas_token": given.get("SharedAccessSignature") or system.sas_token,
        "endpoint": given.get("BlobEndpoint"),
    }
    if options["endpoint"] is not None and options["endpoint"].startswith("http://"):
        options["allow_http"] = "true"
    if not (given or system.account_key or system.sas_token):
        options["bearer_token"] = system.sync_credential.get_token(_SCOPE).token
    known = {name: str(value) for name, value in options.items() if value}
    hide_settings(known)
    return f"az://{root}", known
