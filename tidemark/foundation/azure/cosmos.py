"""Makes clients of Cosmos DB from app settings, as `tidemark.foundation.azure.connections` does for other services.

The setting with the name of the connection is `AccountEndpoint=...;AccountKey=...`. Without it, `<prefix>__accountEndpoint` is
read, and the identity is used.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import aiohttp
from azure.core.credentials_async import AsyncTokenCredential
from azure.core.pipeline.transport import AioHttpTransport
from azure.cosmos.aio import ContainerProxy, CosmosClient
from msgspec import Struct

from tidemark.foundation.azure import connections
from tidemark.foundation.azure.connections import ConnectionSettingsError, Settings
from tidemark.foundation.azure.cosmos_account import account_key
from tidemark.foundation.pacing import patience

_PROXIES = {"http_proxy", "https_proxy", "all_proxy"}
_EXAMPLE = "https://<account>.documents.azure.com:443/"


class CosmosEndpoint(Struct, frozen=True):
    """How to reach a Cosmos DB account: `credential` is its key, or an identity."""

    url: str
    credential: str | AsyncTokenCredential

    def __repr__(self) -> str:
        return (
            f"CosmosEndpoint({self.url!r} by {'a key' if isinstance(self.credential, str) else 'identity'})"
        )


def cosmos_endpoint(settings: Settings, prefix: str) -> CosmosEndpoint:
    """The account of a connection.

    Raises ConnectionSettingsError naming the missing or malformed setting and all that is accepted.
    """
    if connections.connection_string(settings, prefix) is not None:
        try:
            return CosmosEndpoint(*account_key(settings, prefix))
        except ValueError as error:
            raise ConnectionSettingsError(str(error)) from None
    url = connections.identity_setting(settings, prefix, "accountEndpoint") or ""
    if not url:
        raise connections.not_connected("Cosmos DB", prefix, f"{prefix}__accountEndpoint to {_EXAMPLE}")
    connections.check_url(url, f"{prefix}__accountEndpoint", _EXAMPLE, local=True)
    return CosmosEndpoint(url, connections.credential(settings, prefix))


async def cosmos_client(settings: Settings, prefix: str, **options: Any) -> CosmosClient:
    """A client that sends each request once, without retries; the caller closes it.

    `options` go to the constructor. Nothing is sent before the client is entered or used. The client closes a `transport` that
    it was given, also when it cannot be made.
    """
    endpoint = cosmos_endpoint(settings, prefix)
    transport = options.pop("transport", None) or await cosmos_transport(settings)
    arguments = {
        "retry_total": 0,
        "retry_throttle_total": -1,  # 0 would be read as "not given", and that means 9
        "no_response_on_write": True,
        "enable_compact_utf8_item_writes": True,  # escaped, a document may grow sixfold, and past the size limit
        "connection_timeout": patience.held().connect,
        **patience.held().options_of_commands(),
        "transport": transport,
        **options,
    }
    try:
        return CosmosClient(endpoint.url, endpoint.credential, **arguments)
    except BaseException:
        await transport.close()
        raise


class ContainerConnection:
    """A container of a connection. Messages name it by its repr."""

    def __init__(self, settings: Settings, connection: str, database: str, container: str) -> None:
        self._settings = settings
        self._connection = connection
        self._names = (database, container)
        self._client: CosmosClient | None = None
        self._proxy: ContainerProxy | None = None
        self._session: aiohttp.ClientSession | None = None
        """The HTTP session of the client, which closes it."""

    def __repr__(self) -> str:
        return f"container '{self._names[1]}' in database '{self._names[0]}' of connection {self._connection}"

    async def _connect(self, **options: Any) -> CosmosClient:
        cosmos_endpoint(self._settings, self._connection)  # raises before anything is opened
        transport = await cosmos_transport(self._settings)
        self._client = await cosmos_client(self._settings, self._connection, transport=transport, **options)
        self._session = transport.session
        database, container = self._names
        self._proxy = self._client.get_database_client(database).get_container_client(container)
        return self._client

    @property
    def _open(self) -> ContainerProxy:
        if self._proxy is None:
            raise RuntimeError(f"{self!r} is not open")
        return self._proxy

    async def aclose(self) -> None:
        client, self._client, self._proxy, self._session = self._client, None, None, None
        if client is not None:
            await client.close()


async def cosmos_transport(settings: Settings) -> AioHttpTransport:
    """The SDK's own transport with two differences.

    Without a setting for a proxy, it does not look for one, which takes two changes of threads per request, half of an
    upsert's CPU. And it gets the bundle of authorities as a context, because the SDK ignores the option.
    """
    proxied = any(name.casefold() in _PROXIES and value for name, value in settings.items())
    bundle = connections.transport_options(settings).get("connection_verify")
    context: ssl.SSLContext | bool = True
    if bundle is not None:
        context = await asyncio.to_thread(ssl.create_default_context, cafile=bundle)  # reads the file
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=context),  # the sink's lanes bound the requests in flight
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=proxied,
    )
    return AioHttpTransport(session=session, use_env_settings=proxied)
