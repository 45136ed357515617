"""Sends requests to storage services through aiohttp: signs them, repeats them where that is safe, and raises azure-core's errors.

A thousand targets make three thousand requests a minute, and azure-core alone, without any SDK, takes as much CPU for one as
aiohttp for sending it (`benchmarks.function_path`). Rare requests use the SDKs.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.request import getproxies

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import (
    AzureError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from msgspec import Struct

from tidemark.foundation.azure.connections import Settings, tls_context, transport_options
from tidemark.foundation.azure.retry_after import retry_after
from tidemark.foundation.pacing import patience
from tidemark.foundation.version import VERSION

if TYPE_CHECKING:
    import aiohttp

SCOPE = "https://storage.azure.com/.default"

REPEATED = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which a request is repeated. Source: the retry policy of azure-core."""

REPEATED_ADDITIONS = frozenset({429, 500, 503, 504})
"""Statuses after which a request that adds something is repeated, too. It may have been added: then a row conflicts, and a message is doubled."""

MAX_WAIT = 60.0
FIRST_WAIT = 0.5
"""Seconds: the longest wait that a service may ask for, and the first one of ours, which doubles. Chosen."""

HEADERS = {"x-ms-version": "2019-02-02", "User-Agent": f"tidemark/{VERSION}"}
"""Headers of every request. All clouds of Azure and Azurite support this version."""

_ERRORS = {404: ResourceNotFoundError, 409: ResourceExistsError}


class Reply(Struct, frozen=True):
    """An answer of any status, with the names of azure-core, whose errors contain it. `headers` need case-insensitive lookup."""

    status_code: int
    headers: Mapping[str, str] = {}
    content: bytes = b""
    reason: str = ""

    def text(self, encoding: str | None = None) -> str:
        return self.content.decode(encoding or "utf-8", "replace")


class Wire(Protocol):
    """Sends requests, each once."""

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """Raises ServiceRequestError if nothing was sent, and ServiceResponseError if that is unknown."""

    async def sleep(self, seconds: float) -> None:
        """Wait before the next attempt."""

    async def aclose(self) -> None: ...


class StorageWire:
    """A Wire over one session, which its first request opens."""

    def __init__(self, settings: Settings) -> None:
        """Raises ConnectionSettingsError."""
        transport_options(settings)
        self._settings = settings
        self._waits = patience.held()
        self._session: aiohttp.ClientSession | None = None

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        import aiohttp
        from yarl import URL

        session = self._session or await self._opened()
        try:
            # The address is encoded already, because its encoded form is signed.
            async with session.request(
                method, URL(url, encoded=True), headers=headers, data=body, allow_redirects=False
            ) as answer:
                content = await answer.read()
                return Reply(answer.status, answer.headers, content, answer.reason or "")
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ServiceRequestError(error, error=error) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ServiceResponseError(error, error=error) from error

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _opened(self) -> aiohttp.ClientSession:
        import aiohttp

        trusted: Any = True
        if transport_options(self._settings):
            trusted = await asyncio.to_thread(tls_context, self._settings)
        if self._session is None:  # another task may have opened it meanwhile
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=trusted),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self._waits.connect, sock_read=self._waits.read
                ),
                trust_env=bool(getproxies()),  # with it, aiohttp looks for a proxy at every request
                skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type"),
            )
        return self._session


class Signer(Protocol):
    """Authorises requests."""

    async def sign(self, method: str, url: str, headers: dict[str, str]) -> str:
        """Add the credential to `headers`, or to the address, which is returned."""


class StorageRequests:
    """Sends requests to one service of an account. Raises AzureErrors: HttpResponseError has the service's code as `error_code`.

    A failed request is repeated up to `retries` times, and less often where nobody answers a person; one that adds something only if
    nothing was sent, or the service refused.
    """

    def __init__(self, wire: Wire, signer: Signer, retries: int) -> None:
        self._wire = wire
        self._signer = signer
        self._retries = retries
        self._unanswered = patience.held().repeated

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> Reply:
        """The answer of a request that succeeded. A redirect is an error: it comes from another server, and nothing was written."""
        left, unanswered = self._retries, self._unanswered
        while True:
            made = {**HEADERS, **headers}
            signed = await self._signer.sign(method, url, made)
            wait = FIRST_WAIT * 2 ** (self._retries - left)
            try:
                reply = await self._wire.send(method, signed, made, body)
            except (ServiceRequestError, ServiceResponseError) as error:
                added = method == "POST" and isinstance(error, ServiceResponseError)
                if added or not (left and unanswered):
                    raise
                unanswered -= 1
            else:
                again = REPEATED_ADDITIONS if method == "POST" else REPEATED
                if not left or reply.status_code not in again:
                    return _checked(reply)
                asked = retry_after(reply.headers)
                wait = wait if asked is None else min(max(asked, 0.0), MAX_WAIT)
            left -= 1
            await self._wire.sleep(wait)


def _checked(reply: Reply) -> Reply:
    if 200 <= reply.status_code < 300:
        return reply
    code = code_in(reply)
    kind = _ERRORS.get(reply.status_code, HttpResponseError)
    error = kind(f"{reply.status_code} {code or reply.reason}", response=cast("Any", reply))
    setattr(error, "error_code", code)  # noqa: B010 - undeclared, as the SDKs add it
    raise error


def code_in(reply: Reply) -> str:
    """The service's code for an error: from JSON, from XML where a front end answers, else from a header."""
    try:
        return str(json.loads(reply.content)["odata.error"]["code"])
    except (ValueError, LookupError, TypeError, RecursionError):
        _, _, rest = reply.content.partition(b"<Code>")
        code = rest.partition(b"</Code>")[0].decode("ascii", "replace")
        return code or reply.headers.get("x-ms-error-code", "")


def signer_of(credential: Any, by_key: Callable[[AzureNamedKeyCredential], Signer]) -> Signer:
    """The signer for the credential of an SDK's client: an account key, by which each service signs differently (`by_key`), a
    shared access signature, or an identity.
    """
    if isinstance(credential, AzureNamedKeyCredential):
        return by_key(credential)
    if isinstance(credential, AzureSasCredential):
        return SharedAccess(credential.signature)
    return Bearer(credential)


def path_of(address: str) -> str:
    """The path of an address with a scheme, as it is sent."""
    return address[address.index("/", len("https://")) :].partition("?")[0]


def authorization(credential: AzureNamedKeyCredential, text: str) -> str:
    """The Authorization header of a request that is signed with the account key (Shared Key Lite)."""
    name, key = credential.named_key
    digest = hmac.digest(base64.b64decode(key), text.encode(), hashlib.sha256)
    return f"SharedKeyLite {name}:{base64.b64encode(digest).decode()}"


class SharedAccess:
    """Adds a shared access signature to the query."""

    def __init__(self, signature: str) -> None:
        self._query = signature.lstrip("?")

    async def sign(self, method: str, url: str, headers: dict[str, str]) -> str:
        return f"{url}{'&' if '?' in url else '?'}{self._query}"


class Bearer:
    """Adds the token of an identity, which `credential` keeps until shortly before it expires."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential
        self._lock = asyncio.Lock()  # the first requests, which come at once, need one token

    async def sign(self, method: str, url: str, headers: dict[str, str]) -> str:
        if not url.startswith("https:"):
            raise AzureError("a token is sent over TLS only")
        async with self._lock:
            token = await self._credential.get_token(SCOPE)
        headers["Authorization"] = f"Bearer {token.token}"
        return url
