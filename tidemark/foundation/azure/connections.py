"""Makes clients of the Azure SDKs from app settings: by connection string, or by identity.

A prefix names a connection, as the `connection` of a trigger does: `AzureWebJobsStorage`, or any other such as
`OrdersServiceBus`. The setting of that name is a connection string. Without it, the identity settings
`<prefix>__accountName`, `<prefix>__tableServiceUri`, ... are read. `:` may stand for `__`, case does not matter, and a
connection string wins, all as in the Functions host. Messages and reprs name settings and never show their values.
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
from tidemark.foundation.pacing import patience
from tidemark.foundation.sanitize import describe_error, error_text, sanitize_line
from tidemark.foundation.secrets.known import hide_text, hide_token

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken
    from azure.core.credentials_async import AsyncTokenCredential
    from azure.data.tables.aio import TableServiceClient
    from azure.eventhub.aio import EventHubConsumerClient
    from azure.identity.aio import DefaultAzureCredential, ManagedIdentityCredential
    from azure.storage.blob.aio import ContainerClient
    from azure.storage.queue.aio import QueueClient, QueueServiceClient

CA_BUNDLE = "TIDEMARK_CA_BUNDLE"
"""Setting with the path of a PEM file. Its certificate authorities replace those of the system."""

RETRIES = 3
"""Of requests that were refused. Chosen: the next evaluation, a minute later, tries again anyway. Without an answer: `patience`."""

TOKEN_MARGIN = 300.0  # seconds before a token expires at which it is replaced, as in azure-core

Settings = Mapping[str, str]
_Client = TypeVar("_Client")

_lending = Lock()  # held while variables are added to the environment of the process


class ConnectionSettingsError(SettingsError, ValueError):
    """The settings of a connection are missing or malformed. The message names them, not their values."""


class Endpoint(Struct, frozen=True):
    """How to reach a namespace of Service Bus or Event Hubs, or one service of a storage account: by connection string or by
    `credential`, one of which is set. `prefix` names the connection.
    """

    prefix: str
    address: str
    connection_string: str | None = None
    credential: AsyncTokenCredential | None = None

    def client(self, kind: type[_Client], *names: str, **options: Any) -> _Client:
        """A client of the SDK. Raises ConnectionSettingsError if the SDK refuses the settings."""
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
    """A credential without anything to close: it opens a credential of the SDK for each token, and closes it again.

    A token is shared by all clients of this object, and replaced shortly before it expires. No client has to own a credential.
    """

    def __init__(
        self, *, managed: bool = False, client_id: str | None = None, environment: Settings | None = None
    ) -> None:
        """Import the SDK, which takes a quarter of a second; clients are mostly opened in threads.

        `environment` are variables that the SDK finds in addition to those of the process, because it looks for an identity
        endpoint nowhere else.
        """
        from azure.identity import aio

        self._sdk = aio
        self._managed = managed
        self._client_id = client_id
        self._environment = dict(environment or {})
        self._tokens: dict[tuple[Any, ...], AccessToken] = {}
        self._failures: dict[tuple[Any, ...], Exception] = {}

    def _open(self) -> DefaultAzureCredential | ManagedIdentityCredential:
        if not self._environment:
            return self._opened()
        with _lending:  # threads of the doctor do this at the same time
            lent = {name: value for name, value in self._environment.items() if name not in os.environ}
            os.environ.update(lent)
            try:
                return self._opened()
            finally:
                for name in lent:
                    os.environ.pop(name, None)

    def _opened(self) -> DefaultAzureCredential | ManagedIdentityCredential:
        options = patience.held().options_of_commands()
        if self._client_id or self._managed:
            options["client_id" if self._managed else "managed_identity_client_id"] = self._client_id
        managed, chain = self._sdk.ManagedIdentityCredential, self._sdk.DefaultAzureCredential
        return managed(**options) if self._managed else chain(**options)

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """A token. With `claims`, by which a service refuses a token, a new one is requested."""
        key = (*scopes, *sorted(options.items()))
        known = None if options.get("claims") else self._tokens.get(key)
        if known is None or known.expires_on < time.time() + TOKEN_MARGIN:
            if key in self._failures and key not in self._tokens:
                raise self._failures[key]
            try:
                async with self._open() as credential:
                    known = self._tokens[key] = await credential.get_token(*scopes, **options)
            except Exception as error:
                if patience.held() is not patience.OF_A_SERVICE:  # its next requests would wait for the same
                    self._failures[key] = error
                raise
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
    """The type and text of a network error on one line, without a TLS object, and without what Event Hubs' client repeats."""
    words, _, _ = error_text(error).partition("\nError condition:")
    return sanitize_line(f"{type(error).__name__}: {words}")


_TRIED = re.compile(
    r"\n\t(\w+?)(?:Credential)?: (?:\w+ authentication unavailable\. )?(.*?)\.?(?:\. .*)?(?=\n|$)"
)
"""One credential of a chain, and the first sentence of its error."""


def describe_identity_error(error: Exception) -> str:
    """The text of a credential's error on one line; for a chain of credentials, the first sentence of each."""
    words = error_text(error)
    tried = _TRIED.findall(words)
    if not tried:
        return sanitize_line(words)
    return sanitize_line("no credential gave a token: " + "; ".join(f"{name}: {why}" for name, why in tried))


def error_code(error: Exception) -> str:
    """The error code of the storage service: from an attribute that the SDK adds without declaring it, else from the header."""
    code = getattr(error, "error_code", None)
    if not code:
        code = getattr(getattr(error, "response", None), "headers", {}).get("x-ms-error-code")
    return str(getattr(code, "value", code) or "")  # a text, or a member of an enumeration


def identity_setting(settings: Settings, prefix: str, name: str) -> str | None:
    """The value of `<prefix>__<name>` or `<prefix>:<name>` in any case; None if it is missing or blank."""
    wanted = f"{prefix}__{name}".casefold()
    for key, value in settings.items():
        if key.replace(":", "__").casefold() == wanted and value.strip():
            return value.strip()
    return None


def connection_string(settings: Settings, prefix: str) -> str | None:
    """The value of the setting `prefix`; None if it is missing or blank. Treat it as a secret."""
    text = settings.get(prefix, "").strip()
    hide_text(text)
    return text or None


def credential(settings: Settings, prefix: str, environment: Settings | None = None) -> IdentityCredential:
    """The identity of a connection: the default chain, or a managed identity if its settings ask for it. `environment` is that
    of IdentityCredential.

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
    """Keyword arguments for any client of azure-core: `connection_verify` if TIDEMARK_CA_BUNDLE is set.

    The file replaces the system's authorities, so it must have every authority that this app has to trust. Raises
    ConnectionSettingsError if there is no such file.
    """
    bundle = settings.get(CA_BUNDLE, "").strip()
    if not bundle:
        return {}
    if not Path(bundle).is_file():
        of_stack = ".devstack" in Path(bundle).parts
        raise ConnectionSettingsError(
            f"{CA_BUNDLE} names '{bundle}', which is no file; expected the path of a PEM file of certificate authorities"
            + ("; the local stack writes this one at its first start: `make start`" if of_stack else "")
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
    from azure.data.tables.aio import TableServiceClient

    retries = {"retry_total": RETRIES, "retry_backoff_factor": 0.5}
    return _storage_client(TableServiceClient, settings, prefix, "table", **{**retries, **options})


def queue_client(settings: Settings, prefix: str, name: str, **options: Any) -> QueueClient:
    """A client of the queue `name`; the caller closes it. `options` go to the constructor.

    It encodes the text of messages that it sends as base64, which the queue trigger of Functions expects. It does not decode
    received messages, because not every sender encodes.
    """
    from azure.storage.queue import TextBase64EncodePolicy
    from azure.storage.queue.aio import QueueClient

    arguments = {**_RETRY_SLOWER, "message_encode_policy": TextBase64EncodePolicy(), **options}
    return _storage_client(QueueClient, settings, prefix, "queue", name, **arguments)


def queue_service(settings: Settings, prefix: str) -> QueueServiceClient:
    """A client of the account's queues, for their names. The caller closes it."""
    from azure.storage.queue.aio import QueueServiceClient

    return _storage_client(QueueServiceClient, settings, prefix, "queue", **_RETRY_SLOWER)


def blob_container(settings: Settings, prefix: str, name: str, **options: Any) -> ContainerClient:
    """A client of the blob container `name`; `options` go to its constructor. The caller closes it."""
    from urllib.request import getproxies

    from azure.storage.blob.aio import ContainerClient

    # With it, aiohttp looks for a proxy at every request, which takes two changes of threads.
    arguments = {"use_env_settings": bool(getproxies()), **_RETRY_SLOWER, **options}
    return _storage_client(ContainerClient, settings, prefix, "blob", name, **arguments)


_RETRY_SLOWER = {"retry_total": RETRIES, "initial_backoff": 1, "increment_base": 2, "random_jitter_range": 1}


def _storage_client(
    kind: type[_Client], settings: Settings, prefix: str, service: str, *names: str, **options: Any
) -> _Client:
    arguments = {**patience.held().options(), **transport_options(settings), **options}
    return storage_endpoint(settings, prefix, service).client(kind, *names, **arguments)


def tls_context(settings: Settings) -> ssl.SSLContext:
    """A context that trusts the authorities of TIDEMARK_CA_BUNDLE, or else those of the SDK. Blocks while it reads them."""
    import certifi

    return ssl.create_default_context(
        cafile=transport_options(settings).get("connection_verify", certifi.where())
    )


def event_hub_client(
    settings: Settings, prefix: str, hub: str, group: str, **options: Any
) -> EventHubConsumerClient:
    """A client of the event hub `hub` and a consumer group; the caller closes it. `options` go to the constructor.

    `hub` wins over an EntityPath in the connection string. Without an `ssl_context` in `options`, the call blocks while it
    reads the certificate authorities, once for all connections of the client.
    """
    from azure.eventhub.aio import EventHubConsumerClient

    endpoint = event_hubs_endpoint(settings, prefix)
    if "ssl_context" not in options:
        # The SDK opens a connection for each request, and would read the file each time, which takes 35 ms.
        options["ssl_context"] = tls_context(settings)
    return endpoint.client(EventHubConsumerClient, consumer_group=group, eventhub_name=hub, **options)


def _namespace_endpoint(settings: Settings, prefix: str, *, product: str) -> Endpoint:
    text = connection_string(settings, prefix)
    if text is not None:
        parts = parts_of(text)
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
    """The error for a connection without settings, with all settings that are accepted."""
    return ConnectionSettingsError(
        f"no {service} connection '{prefix}': set {prefix} to {text}, or, for identity, {by_identity} (optionally "
        f"with {prefix}__credential=managedidentity and {prefix}__clientId)"
    )


def parts_of(text: str) -> dict[str, str]:
    """The values of a connection string, by their names in lower case."""
    pairs = (piece.partition("=") for piece in text.split(";"))
    return {key.strip().casefold(): value.strip() for key, _, value in pairs if value.strip()}


def _check_storage(text: str, prefix: str, service: str) -> None:
    parts = parts_of(text)
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
    """Raises ConnectionSettingsError unless the address uses https, or, with `local`, http to a server on this machine."""
    parsed = urlsplit(url)
    here = local and parsed.hostname in {"localhost", "127.0.0.1", "::1"}
    secure = parsed.scheme == "https" or (parsed.scheme == "http" and here)
    if not secure or not parsed.netloc or parsed.query:
        raise ConnectionSettingsError(
            f"{setting} is not an https address without a query; expected for example {example}"
        )
