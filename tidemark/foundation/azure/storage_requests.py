"""Requests of storage services, made here and sent by aiohttp: signed, repeated where that is safe, errors in azure-core's words.

A thousand targets make three thousand of them a minute, and azure-core alone, without any SDK, takes as much CPU for one as
aiohttp does for sending it (`benchmarks.function_path`). What is rare stays the SDKs'.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.request import getproxies

from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import (
    AzureError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from msgspec import Struct

from tidemark.foundation.azure.connections import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    Settings,
    tls_context,
    transport_options,
)
from tidemark.foundation.azure.retry_after import retry_after
from tidemark.foundation.version import VERSION

if TYPE_CHECKING:
    import aiohttp

SCOPE = "https://storage.azure.com/.default"

REPEATED = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which a request is made again."""

REPEATED_ADDITIONS = frozenset({429, 500, 503, 504})
"""Those after which what adds something is, too. It may be there already then: a row says so, and messages may come twice."""

MAX_WAIT = 60.0
FIRST_WAIT = 0.5
RENEWED_BEFORE = 300.0
"""Seconds before its end at which a token is replaced, as the SDKs do it."""

HEADERS = {"x-ms-version": "2019-02-02", "User-Agent": f"tidemark/{VERSION}"}
"""What every request has. The version is one that all of Azure's clouds and Azurite know."""

_ERRORS = {404: ResourceNotFoundError, 409: ResourceExistsError}


class Reply(Struct, frozen=True):
    """An answer of any status, named as azure-core names its own: errors carry it. `headers` are looked up in any case."""

    status_code: int
    headers: Mapping[str, str] = {}
    content: bytes = b""
    reason: str = ""

    def text(self, encoding: str | None = None) -> str:
        return self.content.decode(encoding or "utf-8", "replace")


class Wire(Protocol):
    """Sends one request, once."""

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """Raises ServiceRequestError where nothing was sent, ServiceResponseError where that is not known."""

    async def sleep(self, seconds: float) -> None:
        """Waits before the next try."""

    async def aclose(self) -> None: ...


class StorageWire:
    """The wire, over one session that is opened by its first request."""

    def __init__(self, settings: Settings) -> None:
        """Raises ConnectionSettingsError."""
        transport_options(settings)
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        import aiohttp  # noqa: PLC0415 - only when needed
        from yarl import URL  # noqa: PLC0415 - the same

        session = self._session or await self._opened()
        try:
            # The address is encoded already, as it is signed.
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
        import aiohttp  # noqa: PLC0415 - see above

        trusted: Any = True
        if transport_options(self._settings):
            trusted = await asyncio.to_thread(tls_context, self._settings)
        if self._session is None:  # not opened by another while this one read the authorities
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=trusted),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=CONNECT_TIMEOUT, sock_read=READ_TIMEOUT
                ),
                trust_env=bool(getproxies()),  # looked for at every request then
                skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type"),
            )
        return self._session


class Signer:
    """Nobody's: what opens the service is in the address."""

    async def sign(self, method: str, url: str, headers: dict[str, str]) -> str:  # for those that do
        """Puts what opens the service into `headers`, or into the address, which is returned."""
        return url

    def refused(self) -> None:
        """The service did not accept it."""


class StorageRequests:
    """Requests of one service of an account. They raise AzureError: HttpResponseError with the service's code as `error_code`.

    What fails is tried again, `retries` times; what adds something only where nothing was sent, or the service said no.
    """

    def __init__(self, wire: Wire, signer: Signer, retries: int) -> None:
        self._wire = wire
        self._signer = signer
        self._retries = retries

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> Reply:
        """The answer, if the service did what was asked: a redirect comes from somebody else, and nothing is written."""
        left = self._retries
        while True:
            made = {**HEADERS, **headers}
            signed = await self._signer.sign(method, url, made)
            wait = FIRST_WAIT * 2 ** (self._retries - left)
            try:
                reply = await self._wire.send(method, signed, made, body)
            except ServiceRequestError:
                if not left:
                    raise
            except ServiceResponseError:
                if not left or method == "POST":
                    raise
            else:
                again = REPEATED_ADDITIONS if method == "POST" else REPEATED
                if not left or reply.status_code not in again:
                    if reply.status_code == 401:
                        self._signer.refused()
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
    """The service's word for an error: from JSON, from XML where its front answers, else from a header."""
    try:
        return str(json.loads(reply.content)["odata.error"]["code"])
    except (ValueError, LookupError, TypeError, RecursionError):
        _, _, rest = reply.content.partition(b"<Code>")
        code = rest.partition(b"</Code>")[0].decode("ascii", "replace")
        return code or reply.headers.get("x-ms-error-code", "")


def signer_of(credential: Any, by_key: Callable[[AzureNamedKeyCredential], Signer]) -> Signer:
    """For a credential of an SDK's client: an account's key, which each service signs by in its own way, a shared access
    signature, or an identity.
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
    """The header of a request signed by the account's key (Shared Key Lite)."""
    name, key = credential.named_key
    digest = hmac.digest(base64.b64decode(key), text.encode(), hashlib.sha256)
    return f"SharedKeyLite {name}:{base64.b64encode(digest).decode()}"


class SharedAccess(Signer):
    """A shared access signature: a query that is signed itself."""

    def __init__(self, signature: str) -> None:
        self._query = signature.lstrip("?")

    async def sign(self, method: str, url: str, headers: dict[str, str]) -> str:
        return f"{url}{'&' if '?' in url else '?'}{self._query}"


class Bearer(Signer):
    """Tokens of an identity, each kept until shortly before its end."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential
        self._token: AccessToken | None = None
        self._lock = asyncio.Lock()

    async def sign(self, method: str, url: str, headers: dict[str, str]) -> str:
        if not url.startswith("https:"):
            raise AzureError("a token is sent over TLS only")
        if not self._is_fresh():
            async with self._lock:
                if not self._is_fresh():
                    self._token = await self._credential.get_token(SCOPE)
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token.token}"
        return url

    def refused(self) -> None:
        self._token = None

    def _is_fresh(self) -> bool:
        return self._token is not None and self._token.expires_on - time.time() > RENEWED_BEFORE
