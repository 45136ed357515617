"""How deltalake opens a folder of a storage account, from the settings of a connection."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from urllib.parse import urlsplit

from tidemark.foundation.azure.connections import identity_setting, storage_endpoint
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.secrets.known import hide_settings

_LAKE = {"abfs", "abfss", "az"}
_AZURITE = "UseDevelopmentStorage"
_ACCOUNT = "azure_storage_account_name"
_PUBLIC = "core.windows.net"
_IDENTITIES = ("IDENTITY_ENDPOINT", "MSI_ENDPOINT", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_SECRET")
"""Variables by which deltalake finds an identity of its own accord."""


def storage_options(uri: str, settings: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The options for a table at `uri`, without any for a local folder.

    By identity, deltalake asks for tokens itself, because a table outlives a token: a managed identity, a workload identity, or
    the login of the Azure CLI on a developer's machine. Raises SettingsError.
    """
    if check_uri(uri) == "file":
        return {}
    endpoint = storage_endpoint(settings, prefix, "blob")
    if endpoint.connection_string is None:
        options = _by_identity(endpoint.address, settings, prefix)
    else:
        options = _by_key(endpoint.connection_string)
    known = {name: value for name, value in options.items() if value}
    hide_settings(known)
    account, named = known.get(_ACCOUNT, ""), urlsplit(uri).hostname or ""
    if "@" in urlsplit(uri).netloc and account and named.partition(".")[0] != account.lower():
        raise SettingsError(f"the uri '{uri}' is in another account than {prefix}, which is of {account}")
    return known


def check_uri(uri: str) -> str:
    """The scheme of a table's address. Raises SettingsError."""
    scheme = uri.partition("://")[0] if "://" in uri else "file"
    if scheme not in {*_LAKE, "file"} or not uri.strip():
        raise SettingsError(
            f"the uri '{uri}' cannot be opened; accepted: az://container/folder, abfss://container@account.dfs.core.windows."
            "net/folder, or a local folder"
        )
    return scheme


def _by_key(text: str) -> dict[str, str]:
    given = {name.strip().casefold(): value for name, _, value in (p.partition("=") for p in text.split(";"))}
    if given.get(_AZURITE.casefold(), "").casefold() == "true":
        return {"azure_storage_use_emulator": "true"}
    account, suffix = given.get("accountname", ""), given.get("endpointsuffix", _PUBLIC)
    endpoint = given.get("blobendpoint", "").rstrip("/")
    if not endpoint and suffix != _PUBLIC:  # another cloud
        endpoint = f"https://{account}.blob.{suffix}"
    return {
        _ACCOUNT: account or _account_of(endpoint),
        "azure_storage_account_key": given.get("accountkey", ""),
        "azure_storage_sas_key": given.get("sharedaccesssignature", "").removeprefix("?"),
        "azure_endpoint": endpoint,
        "azure_allow_http": "true" if endpoint.startswith("http://") else "",
    }


def _by_identity(address: str, settings: Mapping[str, str], prefix: str) -> dict[str, str]:
    options = {
        _ACCOUNT: _account_of(address),
        "azure_endpoint": address,
        "azure_client_id": identity_setting(settings, prefix, "clientId") or "",
        # Where App Service and Container Apps serve tokens. By itself deltalake asks the address of virtual machines.
        "azure_msi_endpoint": os.environ.get("IDENTITY_ENDPOINT", ""),
    }
    managed = identity_setting(settings, prefix, "credential") is not None
    if not managed and not any(os.environ.get(name) for name in _IDENTITIES) and shutil.which("az"):
        options["azure_use_azure_cli"] = "true"
    return options


def _account_of(address: str) -> str:
    return (urlsplit(address).hostname or "").partition(".")[0]
