"""Clients of Azure Resource Manager, in any cloud or on the local test bed.

AZURE_RESOURCE_MANAGER_ENDPOINT   its address; default the public cloud's
AZURE_RESOURCE_MANAGER_AUDIENCE   what tokens are asked for; default that of the cloud the endpoint is in
AzureResourceManager__credential, AzureResourceManager__clientId   as for any connection by identity
TIDEMARK_CA_BUNDLE                certificate authorities to trust instead of the system's
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scaling.calls.limiter import PATIENCE
from scaling.scalers.arm.resources import ArmResources
from tidemark.foundation.azure.connections import IdentityCredential, credential
from tidemark.foundation.pacing.patience import held

if TYPE_CHECKING:
    from azure.mgmt.web.aio import WebSiteManagementClient

ENDPOINT = "AZURE_RESOURCE_MANAGER_ENDPOINT"
AUDIENCE = "AZURE_RESOURCE_MANAGER_AUDIENCE"
CONNECTION = "AzureResourceManager"
IDENTITY = ("IDENTITY_ENDPOINT", "IDENTITY_HEADER")
"""What the platform puts into an app's environment, and local.settings.json has for the local stack."""

PUBLIC_CLOUD = "https://management.azure.com"

# Clouds whose audience is the address of their Resource Manager. Elsewhere (private links, the local
# server) tokens are asked for the public cloud unless AUDIENCE says otherwise.
_CLOUDS = frozenset(
    {PUBLIC_CLOUD, "https://management.chinacloudapi.cn", "https://management.usgovcloudapi.net"}
)

LONG_PATIENCE = 600.0
"""Seconds a call of a command waits for its turn, where nobody waits for it in turn."""

# Refusals (409, 429, 5xx) are answers the scaler decides about; only connections are tried again here.
_RETRIES: dict[str, Any] = {"retry_total": 2, "retry_status": 0, "retry_backoff_factor": 0.5}


def endpoint(settings: Mapping[str, str]) -> str:
    """The address of Resource Manager. Raises ValueError when the setting is not an https address."""
    text = settings.get(ENDPOINT, "").strip().rstrip("/") or PUBLIC_CLOUD
    parts = urlsplit(text)
    if parts.scheme != "https" or not parts.netloc or parts.path or parts.query:
        raise ValueError(
            f"{ENDPOINT} is '{text}'; accepted is an https address without a path, such as {PUBLIC_CLOUD}"
        )
    return text


def manager_text(settings: Mapping[str, str]) -> str:
    """`Azure Resource Manager: https://management.azure.com (AZURE_RESOURCE_MANAGER_ENDPOINT)`. Raises ValueError."""
    return f"Azure Resource Manager: {endpoint(settings)} ({ENDPOINT})"


def scope(settings: Mapping[str, str]) -> str:
    """What tokens for Resource Manager are asked for."""
    address = endpoint(settings)
    audience = settings.get(AUDIENCE, "").strip().rstrip("/")
    return f"{audience or (address if address in _CLOUDS else PUBLIC_CLOUD)}/.default"


def open_web(settings: Mapping[str, str], subscription: str) -> WebSiteManagementClient:
    """A client of App Service for one subscription. Imports the SDK (half a second): call it in a thread.

    Raises ValueError naming the setting at fault.
    """
    from azure.mgmt.web.aio import WebSiteManagementClient

    return WebSiteManagementClient(identity_of(settings), subscription, **_options(settings))


def open_resources(settings: Mapping[str, str], *, patient: bool = False) -> ArmResources:
    """A client of resources of any type; as `open_web`. A `patient` one waits out throttling: for many lists in a row."""
    options = _options(settings, patience=LONG_PATIENCE if patient else PATIENCE)
    retries = {name: options.pop(name) for name in (*_RETRIES, *held().repetitions())}
    if patient:
        retries |= {"retry_total": 8, "retry_status": 8}
    return ArmResources(identity_of(settings), retries=retries, **options)


def identity_of(settings: Mapping[str, str]) -> IdentityCredential:
    """What signs in to Resource Manager; as `open_web`."""
    return credential(settings, CONNECTION, _local_identity(settings))


def _local_identity(settings: Mapping[str, str]) -> dict[str, str]:
    """The local stack's identity, for a command that has it from local.settings.json; the host has it in the environment.
    Only where Resource Manager is on the same host: a token of the local stack opens nothing else.
    """
    local = {name: settings[name] for name in IDENTITY if settings.get(name, "").strip()}
    hosts = [urlsplit(address).hostname for address in (local.get(IDENTITY[0], ""), endpoint(settings))]
    return local if len(local) == len(IDENTITY) and hosts[0] == hosts[1] else {}


def _options(settings: Mapping[str, str], *, patience: float = PATIENCE) -> dict[str, Any]:
    """What every client of Resource Manager is opened with."""
    from scaling.calls.transport import GatedTransport

    return {
        "base_url": endpoint(settings),
        "credential_scopes": [scope(settings)],
        "transport": GatedTransport(settings, patience=patience, origin=endpoint(settings)),
        **_RETRIES,
        **held().repetitions(),
    }
