"""What the platform fills in: properties that templates read and nobody wrote."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any


def _storage(name: str, _id: str) -> dict[str, Any]:
    services = ("blob", "queue", "table")
    return {
        "primaryEndpoints": {service: f"https://{name}.{service}.core.windows.net/" for service in services}
    }


def _identity(_name: str, identifier: str) -> dict[str, Any]:
    return {
        key: str(uuid.uuid5(uuid.NAMESPACE_URL, f"{identifier}/{key}"))
        for key in ("principalId", "clientId", "tenantId")
    }


def _insights(_name: str, _id: str) -> dict[str, Any]:
    return {
        "ConnectionString": "InstrumentationKey=0;IngestionEndpoint=https://in/",
        "AppId": str(uuid.UUID(int=0)),
    }


def _site(name: str, _id: str) -> dict[str, Any]:
    return {"defaultHostName": f"{name}.azurewebsites.net"}


def _workspace(_name: str, identifier: str) -> dict[str, Any]:
    return {"customerId": str(uuid.uuid5(uuid.NAMESPACE_URL, identifier))}


PROVIDERS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "Microsoft.Insights/components": _insights,
    "Microsoft.ManagedIdentity/userAssignedIdentities": _identity,
    "Microsoft.OperationalInsights/workspaces": _workspace,
    "Microsoft.Storage/storageAccounts": _storage,
    "Microsoft.Web/sites": _site,
}


def provided(kind: str, name: str, identifier: str) -> dict[str, Any]:
    return PROVIDERS[kind](name, identifier) if kind in PROVIDERS else {}
