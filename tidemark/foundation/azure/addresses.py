"""Where a connection leads: the same text for a connection string and for an identity, without its credentials."""

from __future__ import annotations

from urllib.parse import urlsplit

from tidemark.foundation.azure.connections import Settings, connection_string, identity_setting, parts_of

_AZURITE = {"blob": 10000, "queue": 10001, "table": 10002}
"""The ports that UseDevelopmentStorage=true means, as the SDKs have them."""


def address_of(settings: Settings, prefix: str, service: str = "") -> str:
    """The address of a connection: of `service` of a storage account, else of a namespace of Service Bus or Event Hubs. Of an account
    with its usual address that is its name. Where the settings do not say, the connection's own name.
    """
    text = connection_string(settings, prefix)
    if text is None:
        names = [f"{service}ServiceUri", "accountName"] if service else ["fullyQualifiedNamespace"]
        given = [identity_setting(settings, prefix, name) for name in names]
    else:
        parts = parts_of(text)
        names = [f"{service}endpoint", "accountname"] if service else ["endpoint"]
        given = [parts.get(name) for name in names]
        if service and parts.get("usedevelopmentstorage", "").casefold() == "true":
            given = [f"127.0.0.1:{_AZURITE[service]}/devstoreaccount1"]
    value = next(filter(None, given), "")
    parsed = urlsplit(value if "://" in value else f"//{value}")
    host = (parsed.hostname or "") + (f":{parsed.port}" if parsed.port else "")
    account, usual, _ = host.partition(f".{service}." if service else "\n")
    return f"{account if usual else host}{parsed.path.rstrip('/')}" or prefix
