"""From app settings to the Azure SDKs' clients: connection strings, or an identity settings family.

A connection is named by a prefix, as in a trigger's `connection`: `AzureWebJobsStorage`, or any other such
as `OrdersServiceBus`. The setting of that very name holds a connection string; without it, the identity
family `<prefix>__accountName`, `<prefix>__tableServiceUri`, ... is read (`:` works in place of `__`, and
case does not matter, as in the Functions host, which also lets the connection string win). Messages and
reprs name settings and never show their values.
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from urllib.parse import urlsplit

from msgspec import Struct

from tidemark.foundation.errors import SettingsError
from tidemark.foundation.keys import namespace_host
from tidemark.foundation.sanitize import describe_error, error_text, sanitize_line
from tidemark.foundation.secrets.known import hide_text, hide_token

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken
    from azure.core.credentials_async import AsyncTokenCredential
    from azure.data.tables.aio import TableServiceClient
    from azure.eventhub.aio import EventHubConsumerClient
    from azure.identity.aio import DefaultAzureCredential, ManagedIdentityCredential
    from azure.storage.blob.aio import ContainerClient
    from azure.storage.queue.aio import QueueClient

CA_BUNDLE = "TIDEMARK_CA_BUNDLE"
"""Setting with the path of a PEM file; it replaces the system's certificate authorities."""

# The SDKs' defaults (10 retries up to 2 minutes apart for tables, 15 s and more for queues, 300 s to
# connect) outlast a one-minute tick. The next tick is our real retry.
RETRIES = 3
CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 30.0

TOKEN_MARGIN = 300.0
"""Seconds before its end at which a token is replaced: no later than azure-core would."""

Settings = Mapping[str, str]
_Client = TypeVar("_Client")

_lending = Lock()
"""Of the process's environment, while something is lent to it."""

_TLS_OBJECT = re.compile(r" ssl:(<[^>]*>|\w+)")


class ConnectionSettingsError(SettingsError, ValueError):
    """A connection's settings are missing or malformed; the message names them, not their values."""


class Endpoint(Struct, frozen=True):
    """How to reach a namespace of Service Bus or Event Hubs, which are addressed alike, or one service of a storage
    account: by connection string or by `credential`; one of them is set. `prefix` names the connection.
    """

    prefix: str
    address: str
    connection_string: str | None = None
    credential: AsyncTokenCredential | None = None

    def client(self, kind: type[_Client], *names: str, **options: Any) -> _Client:
        """A client of the SDK, by whatever there is. Raises ConnectionSettingsError for what the SDK refuses."""
        make = cast("Any", kind)
        try:
            if self.connection_string is None:
                return cast("_Client", make(self.address, *names, credential=self.credential, **options))
            return cast("_Client", make.from_connection_string(self.connection_string, *names, **options))
        except ValueError as error:
            raise ConnectionSettingsError(
                f"{self.prefix} is refused by the SDK: {describe_error(error)}"
            ) from error

    def __repr__(self) -> str:
        return (
            f"Endpoint({self.address!r} by {'a connection string' if self.connection_string else 'identity'})"
        )


class IdentityCredential:
    """Fetches each token with a credential of its own and closes that, so that there is nothing to close.

    A token is kept until shortly before it expires, for all clients that this is given to; no client has to own or outlive
    a credential.
    """

    def __init__(
        self, *, managed: bool = False, client_id: str | None = None, environment: Settings | None = None
    ) -> None:
        """Imports the SDK, which takes a quarter of a second: clients are mostly opened in threads.

        `environment` is what the SDK is to find there, besides what there is: it looks nowhere else for an identity endpoint.
        """
        from azure.identity import aio  # noqa: PLC0415 - and connection strings do without

        self._sdk = aio
        self._managed = managed
        self._client_id = client_id
        self._environment = dict(environment or {})
        self._tokens: dict[tuple[Any, ...], AccessToken] = {}

    def _open(self) -> DefaultAzureCredential | ManagedIdentityCredential:
        if not self._environment:
            return self._opened()
        with _lending:  # the doctor's threads open theirs at the same time
            lent = {name: value for name, value in self._environment.items() if name not in os.environ}
            os.environ.update(lent)
            try:
                return self._opened()
            finally:
                for name in lent:
                    os.environ.pop(name, None)

    def _opened(self) -> DefaultAzureCredential | ManagedIdentityCredential:
        if self._managed:
            return self._sdk.ManagedIdentityCredential(client_id=self._client_id)
        if self._client_id:
            return self._sdk.DefaultAzureCredential(managed_identity_client_id=self._client_id)
        return self._sdk.DefaultAzureCredential()

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """Asks anew where a service has turned one down, which it says by `claims`."""
        key = (*scopes, *sorted(options.items()))
        known = None if options.get("claims") else self._tokens.get(key)
        if known is None or known.expires_on < time.time() + TOKEN_MARGIN:
            async with self._open() as credential:
                known = self._tokens[key] = await credential.get_token(*scopes, **options)
                hide_token(known.token)
        return known

    async def close(self) -> None:
        """Does nothing: no resource outlives a call."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"IdentityCredential({'managed identity' if self._managed else 'default chain'})"


def describe_network_error(error: Exception) -> str:
    """A network error in words, without the TLS object the HTTP client puts into its own."""
    return f"{type(error).__name__}: {_TLS_OBJECT.sub('', str(error))}"


_TRIED = re.compile(
    r"\n\t(\w+?)(?:Credential)?: (?:\w+ authentication unavailable\. )?(.*?)\.?(?:\. .*)?(?=\n|$)"
)
"""One credential of a chain, and the first sentence of its own."""


def describe_identity_error(error: Exception) -> str:
    """What an error of a credential says, on one line; of a chain of them each by its first words, without advice."""
    words = error_text(error)
    tried = _TRIED.findall(words)
    if not tried:
        return sanitize_line(words)
    return sanitize_line("no credential gave a token: " + "; ".join(f"{name}: {why}" for name, why in tried))


def error_code(error: Exception) -> str:
    """The storage service's own word for an error: decoded by the SDK, which adds it undeclared, else from the header."""
    code = getattr(error, "error_code", None)
    if not code:
        code = getattr(getattr(error, "response", None), "headers", {}).get("x-ms-error-code")
    return str(getattr(code, "value", code) or "")  # a plain text, or one of an enumeration


def identity_setting(settings: Settings, prefix: str, name: str) -> str | None:
    """The value of `<prefix>__<name>` (or `<prefix>:<name>`), any case; None where missing or blank."""
    wanted = f"{prefix}__{name}".casefold()
    for key, value in settings.items():
        if key.replace(":", "__").casefold() == wanted and value.strip():
            return value.strip()
    return None


def connection_string(settings: Settings, prefix: str) -> str | None:
    """The setting called `prefix`, or None where missing or blank. Treat the result as a secret."""
    text = settings.get(prefix, "").strip()
    hide_text(text)
    return text or None


def credential(settings: Settings, prefix: str, environment: Settings | None = None) -> IdentityCredential:
    """The identity of a connection: the default chain, or managed identity when its settings say so. `environment` as of
    IdentityCredential.

    Raises ConnectionSettingsError for an unknown `<prefix>__credential`.
    """
    kind = identity_setting(settings, prefix, "credential")
    if kind is not None and kind.casefold() != "managedidentity":
        raise ConnectionSettingsError(
            f"{prefix}__credential is not known; accepted: managedidentity, or no such setting for the "
            "default credential chain"
        )
    client_id = identity_setting(settings, prefix, "clientId")
    return IdentityCredential(managed=kind is not None, client_id=client_id, environment=environment)


def transport_options(settings: Settings) -> dict[str, Any]:
    """Keyword arguments for any azure-core client: `connection_verify` when TIDEMARK_CA_BUNDLE is set.

    The file replaces the system's authorities, so it must hold every authority this app has to trust.
    Raises ConnectionSettingsError when there is no such file.
    """
    bundle = settings.get(CA_BUNDLE, "").strip()
    if not bundle:
        return {}
    if not Path(bundle).is_file():
        raise ConnectionSettingsError(
            f"{CA_BUNDLE} names '{bundle}', which is no file; expected the path of a PEM file of certificate "
            "authorities"
        )
    return {"connection_verify": bundle}


def storage_endpoint(settings: Settings, prefix: str, service: str) -> Endpoint:
    """The endpoint of `service` (`table`, `queue` or `blob`) of a storage connection.

    Raises ConnectionSettingsError naming the missing or malformed setting and all that is accepted.
    """
    text = connection_string(settings, prefix)
    if text is not None:
        _check_storage(text, prefix, service)
        return Endpoint(prefix, "", text)
    url = identity_setting(settings, prefix, f"{service}ServiceUri")
    account = identity_setting(settings, prefix, "accountName")
    if url is not None:
        check_url(url, f"{prefix}__{service}ServiceUri", f"https://<account>.{service}.core.windows.net")
    elif account is not None:
        if not (account.isascii() and account.isalnum()):
            raise ConnectionSettingsError(
                f"{prefix}__accountName is not a storage account's name; expected letters and digits only"
            )
        url = f"https://{account}.{service}.core.windows.net"
    else:
        text = "a connection string (or UseDevelopmentStorage=true)"
        raise not_connected(
            "storage", prefix, f"{prefix}__{service}ServiceUri or {prefix}__accountName", text
        )
    return Endpoint(prefix, url.rstrip("/"), credential=credential(settings, prefix))


def table_service(settings: Settings, prefix: str, **options: Any) -> TableServiceClient:
    """A client of the account's Table service; `options` go to its constructor. The caller closes it."""
    from azure.data.tables.aio import TableServiceClient  # noqa: PLC0415 - not every part has tables

    retries = {"retry_total": RETRIES, "retry_backoff_factor": 0.5}
    return _storage_client(TableServiceClient, settings, prefix, "table", **{**retries, **options})


def queue_client(settings: Settings, prefix: str, name: str, **options: Any) -> QueueClient:
    """A client of the queue `name`; the caller closes it.

    It encodes text as base64 on sending, as the Functions queue trigger expects, and hands received
    messages out as stored, because not everybody who writes to a queue encodes. `options` go to the
    constructor.
    """
    from azure.storage.queue import TextBase64EncodePolicy  # noqa: PLC0415 - not every part has queues
    from azure.storage.queue.aio import QueueClient  # noqa: PLC0415

    arguments = {**_RETRY_SLOWER, "message_encode_policy": TextBase64EncodePolicy(), **options}
    return _storage_client(QueueClient, settings, prefix, "queue", name, **arguments)


def blob_container(settings: Settings, prefix: str, name: str, **options: Any) -> ContainerClient:
    """A client of the blob container `name`; `options` go to its constructor. The caller closes it."""
    from azure.storage.blob.aio import ContainerClient  # noqa: PLC0415 - a quarter of a second, only when needed

    return _storage_client(ContainerClient, settings, prefix, "blob", name, **{**_RETRY_SLOWER, **options})


_RETRY_SLOWER = {"retry_total": RETRIES, "initial_backoff": 1, "increment_base": 2, "random_jitter_range": 1}


def _storage_client(
    kind: type[_Client], settings: Settings, prefix: str, service: str, *names: str, **options: Any
) -> _Client:
    timeouts = {"connection_timeout": CONNECT_TIMEOUT, "read_timeout": READ_TIMEOUT}
    arguments = {**timeouts, **transport_options(settings), **options}
    return storage_endpoint(settings, prefix, service).client(kind, *names, **arguments)


def tls_context(settings: Settings) -> ssl.SSLContext:
    """Trusts what TIDEMARK_CA_BUNDLE names, else the authorities the SDK trusts. Blocks while it reads them."""
    import certifi  # noqa: PLC0415 - only when needed

    return ssl.create_default_context(
        cafile=transport_options(settings).get("connection_verify", certifi.where())
    )


def event_hub_client(
    settings: Settings, prefix: str, hub: str, group: str, **options: Any
) -> EventHubConsumerClient:
    """A client of the event hub `hub` and a consumer group; the caller closes it. Blocks while it reads the
    certificate authorities, once for all the connections it will open; not with an `ssl_context` among `options`.

    `hub` wins over an EntityPath in the connection string. `options` go to the constructor.
    """
    from azure.eventhub.aio import EventHubConsumerClient  # noqa: PLC0415 - half a second, only when needed

    endpoint = event_hubs_endpoint(settings, prefix)
    if "ssl_context" not in options:
        # One for all connections: the SDK opens one for each request and would read the file anew, 35 ms each.
        options["ssl_context"] = tls_context(settings)
    return endpoint.client(EventHubConsumerClient, consumer_group=group, eventhub_name=hub, **options)


def _namespace_endpoint(settings: Settings, prefix: str, *, product: str) -> Endpoint:
    text = connection_string(settings, prefix)
    if text is not None:
        parts = _parts(text)
        signed = {"sharedaccesskeyname", "sharedaccesskey"} <= parts.keys()
        host = urlsplit(parts.get("endpoint", "")).netloc
        if not host or not (signed or "sharedaccesssignature" in parts):
            raise ConnectionSettingsError(
                f"{prefix} is not {product} connection string; expected Endpoint=sb://<namespace>/ with "
                "SharedAccessKeyName and SharedAccessKey, or with SharedAccessSignature"
            )
        return Endpoint(prefix, namespace_host(host), text)
    namespace = identity_setting(settings, prefix, "fullyQualifiedNamespace")
    if namespace is None:
        way = f"{prefix}__fullyQualifiedNamespace to <namespace>.servicebus.windows.net"
        raise not_connected(product.partition(" ")[2], prefix, way)
    # A pasted sb:// or https:// address means the same namespace.
    host = urlsplit(namespace if "://" in namespace else f"sb://{namespace}").netloc
    return Endpoint(prefix, namespace_host(host), credential=credential(settings, prefix))


service_bus_endpoint = partial(_namespace_endpoint, product="a Service Bus")
event_hubs_endpoint = partial(_namespace_endpoint, product="an Event Hubs")


def not_connected(
    service: str, prefix: str, by_identity: str, text: str = "a connection string"
) -> ConnectionSettingsError:
    """No setting of a connection is there; with all that are accepted."""
    return ConnectionSettingsError(
        f"no {service} connection '{prefix}': set {prefix} to {text}, or, for identity, {by_identity} (optionally "
        f"with {prefix}__credential=managedidentity and {prefix}__clientId)"
    )


def _parts(text: str) -> dict[str, str]:
    pairs = (piece.partition("=") for piece in text.split(";"))
    return {key.strip().casefold(): value.strip() for key, _, value in pairs if value.strip()}


def _check_storage(text: str, prefix: str, service: str) -> None:
    parts = _parts(text)
    if parts.get("usedevelopmentstorage", "").casefold() == "true":
        return
    keyed = {"accountname", "accountkey"} <= parts.keys()
    shared = "sharedaccesssignature" in parts and (f"{service}endpoint" in parts or "accountname" in parts)
    if not (keyed or shared):
        raise ConnectionSettingsError(
            f"{prefix} is not a storage connection string; expected AccountName and AccountKey, or "
            f"{service.capitalize()}Endpoint and SharedAccessSignature, or UseDevelopmentStorage=true"
        )


def check_url(url: str, setting: str, example: str, *, local: bool = False) -> None:
    """Raises ConnectionSettingsError for what is not https, or `local` and http for a server on this machine."""
    parsed = urlsplit(url)
    here = local and parsed.hostname in {"localhost", "127.0.0.1", "::1"}
    secure = parsed.scheme == "https" or (parsed.scheme == "http" and here)
    if not secure or not parsed.netloc or parsed.query:
        raise ConnectionSettingsError(
            f"{setting} is not an https address without a query; expected for example {example}"
        )
