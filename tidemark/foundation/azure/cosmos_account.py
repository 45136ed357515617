"""Reads the account of a Cosmos DB connection. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit


def account_name(url: str) -> str:
    """The account of an address; the whole host if the address is not one of the service."""
    host = urlsplit(url).netloc
    return host.partition(".")[0] if ".documents." in host else host


def account_key(settings: Mapping[str, str], connection: str) -> tuple[str, str]:
    """Address and key of the connection string in the setting `connection`.

    Raises ValueError naming the setting, never its value.
    """
    text = settings.get(connection, "")
    parts = {
        name.strip().casefold(): value.strip()
        for name, _, value in (piece.partition("=") for piece in text.split(";"))
    }
    url, key = parts.get("accountendpoint", ""), parts.get("accountkey", "")
    if not text.strip():
        raise ValueError(
            f"no Cosmos DB connection '{connection}': set {connection} to a connection string. With an "
            "identity, throughput can only be set through Resource Manager: give resource_id instead"
        )
    if not url.startswith(("https://", "http://localhost", "http://127.0.0.1")) or not key:
        raise ValueError(
            f"{connection} is not a Cosmos DB connection string; expected "
            "AccountEndpoint=https://<account>.documents.azure.com:443/;AccountKey=<key>;"
        )
    return url, key
