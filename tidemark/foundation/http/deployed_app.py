"""Client of the HTTP API of a deployed app, with a token of the signed-in user or a function key."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
from azure.core.exceptions import AzureError
from msgspec import Struct

from tidemark.foundation.app_settings import own_settings
from tidemark.foundation.azure.connections import IdentityCredential, describe_network_error, tls_context
from tidemark.foundation.errors import SettingsError, TidemarkError
from tidemark.foundation.http.session import HoldsSession
from tidemark.foundation.pacing import patience
from tidemark.foundation.sanitize import sanitize_line, without_secrets
from tidemark.foundation.version import VERSION

if TYPE_CHECKING:
    import aiohttp

CLIENT_ID = "TIDEMARK_SIGN_IN_CLIENT_ID"
"""Setting of a user: the client id of the app registration, for a token of Microsoft Entra ID."""

KEY = "TIDEMARK_APP_KEY"
"""Setting of a user: a function key, for an app without sign-in."""

MAX_ANSWER = 256 * 1024 * 1024
"""Bytes of one answer. The status of 1,000 targets, each with a few metrics and all their samples, has some 50 million. Chosen: five times that."""

_GUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_ACCEPTED = "accepted is https://NAME.azurewebsites.net, or http://localhost:PORT"
_T = TypeVar("_T")


class AppError(TidemarkError):
    """The app is unreachable, or answered with an error. The message has its answer and what to do."""


class Access(Struct, frozen=True):
    """The address of an app, and its `client_id` or `key`; neither for a local host without keys."""

    address: str
    client_id: str | None = None
    key: str | None = None

    def __repr__(self) -> str:
        return f"Access({self.address!r} by {'sign-in' if self.client_id else 'a key' if self.key else 'nothing'})"


def read_access(address: str, settings: Mapping[str, str]) -> Access:
    """The way to open the app, from the user's own `settings`. A client id wins over a key, because an app with sign-in accepts
    no keys. A host on this machine gets a key or nothing, because a token is sent over TLS only.

    Raises SettingsError, which names the given and the accepted values.
    """
    url = _address(address)
    client_id, key = (settings.get(name, "").strip() or None for name in (CLIENT_ID, KEY))
    secure = url.startswith("https:")
    if client_id is not None and secure:
        if not _GUID.fullmatch(client_id):
            raise SettingsError(f"{CLIENT_ID} is not a client id, accepted: that of the app registration")
        return Access(url, client_id=client_id)
    if key is None and secure:
        raise SettingsError(
            f"{url} needs a sign-in or a key: set {CLIENT_ID} (and sign in with `az login`), or {KEY}, in the environment or in .env"
        )
    if key is not None and not (key.isascii() and key.isprintable() and len(key) <= 1000):
        raise SettingsError(f"{KEY} is not a key, accepted: one line of ASCII characters")
    return Access(url, key=key)


def app_named(root: Path, app: str | None, account: str | None) -> DeployedApp | None:
    """The app of the option --app, with the user's own settings in `root`; committed files are not read. None without the option.

    Raises SettingsError, also if `account` is given, too.
    """
    if app is None:
        return None
    if account is not None:
        raise SettingsError("--account: found beside --app; one of them is accepted")
    settings = own_settings(root)
    return DeployedApp(read_access(app, settings), settings)


def _address(text: str) -> str:
    """The address up to the host. A user may paste the address of a page, with a key in it, which no error shows.

    Raises SettingsError.
    """
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise SettingsError(f"--app is no address; {_ACCEPTED}") from None
    local = host in {"localhost", "127.0.0.1", "::1"}
    known = parts.scheme == "https" or (parts.scheme == "http" and local)
    if not known or not host or parts.username is not None or parts.query or parts.fragment:
        raise SettingsError(f"--app: found '{sanitize_line(re.split('[?#]', text)[0])[:200]}'; {_ACCEPTED}")
    if parts.path.strip("/") not in {"", "api"}:
        raise SettingsError(f"--app: found the path '{sanitize_line(parts.path)[:200]}'; {_ACCEPTED}")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}{'' if port is None else f':{port}'}"


class DeployedApp(HoldsSession):
    """The API of one app. An async context manager. All methods raise AppError."""

    def __init__(
        self, access: Access, settings: Mapping[str, str], *, credential: IdentityCredential | None = None
    ) -> None:
        self._access = access
        self._settings = settings
        self._credential = credential or IdentityCredential()

    @property
    def access(self) -> Access:
        return self._access

    async def get(
        self, path: tuple[str, ...], type_: type[_T], *, within: float | None = None, **parameters: str | None
    ) -> _T:
        """The answer of a read within `within` seconds, or those that a person waits. `path` has the parts below /api. Parameters that are None are omitted."""
        given = {name: value for name, value in parameters.items() if value is not None}
        return await self._ask("GET", path, type_, within, params=given)

    async def post(self, path: tuple[str, ...], type_: type[_T], body: Mapping[str, Any]) -> _T:
        """The answer of an order. An order is sent once, because it may have been carried out even without an answer."""
        return await self._ask("POST", path, type_, None, data=msgspec.json.encode(body))

    async def _ask(
        self, method: str, path: tuple[str, ...], type_: type[_T], within: float | None, **options: Any
    ) -> _T:
        import aiohttp

        url = "/".join((self._access.address, "api", *(quote(part, safe="") for part in path)))
        headers = {"Accept": "application/json", **await self._opening()}
        if method == "POST":
            headers["Content-Type"] = "application/json"
        try:
            within = within or patience.held().whole
            # A redirect leads to a page where people sign in; neither token nor key may go there.
            timeout = aiohttp.ClientTimeout(total=within)
            answer = await self._opened().request(
                method, _encoded(url), headers=headers, allow_redirects=False, timeout=timeout, **options
            )
            async with answer:
                body = await _limited(answer)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            reason = (
                f"no answer within {within:g} s; after idle time an app may need a minute to start"
                if isinstance(error, TimeoutError)
                else describe_network_error(error)
            )
            doubt = (
                "; whether the order was carried out is not known: look at the log"
                if method == "POST"
                else ""
            )
            raise AppError(
                f"{self._access.address} cannot be reached: {without_secrets(reason)}{doubt}"
            ) from None
        if answer.status != 200:
            raise AppError(self._refusal(answer.status, body))
        try:
            return msgspec.json.decode(body, type=type_)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise AppError(
                f"{self._access.address} answered what this version ({VERSION}) does not read: {sanitize_line(str(error))};"
                " is it Tidemark, and of the same version?"
            ) from None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            import aiohttp

            secure = self._access.address.startswith("https:")
            context: ssl.SSLContext | bool = tls_context(self._settings) if secure else True
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context),
                headers={"User-Agent": f"tidemark/{VERSION}"},
                trust_env=secure,  # proxies; one would see the key of a request without TLS
            )
        return self._session

    async def _opening(self) -> dict[str, str]:
        if self._access.key is not None:
            return {"x-functions-key": self._access.key}
        if self._access.client_id is None:
            return {}
        scope = f"api://{self._access.client_id}/.default"
        try:
            token = await self._credential.get_token(scope)
        except (AzureError, ValueError) as error:
            raise AppError(
                f"no token for {scope}: sign in with `az login --scope {scope}`. {without_secrets(str(error))}"
            ) from None
        return {"Authorization": f"Bearer {token.token}"}

    def _refusal(self, status: int, body: bytes) -> str:
        """The error for a status other than 200, with the app's own message if it has one."""
        try:
            message = sanitize_line(msgspec.json.decode(body, type=_Refusal).error)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            message = ""
        where = self._access.address
        if message:
            return f"{where} answered {status}: {message}"
        if status in {301, 302, 303, 307, 308}:
            return f"{where} wants a sign-in (it answered {status}): set {CLIENT_ID}, and sign in with `az login`"
        if status in {401, 403}:
            return f"{where} answered {status}: {self._not_opened()}"
        if status == 404:
            return f"{where} answered 404: there is no Tidemark of this version, or the app is stopped"
        return f"{where} answered {status} without a word of Tidemark's: the platform is in between"

    def _not_opened(self) -> str:
        if self._access.client_id is not None:
            return (
                f"the token for app registration {self._access.client_id} was not accepted; is that the app's ({CLIENT_ID}),"
                " and may your program ask for its tokens (the parameter signInClientApplications)?"
            )
        if self._access.key is not None:
            return f"the key of {KEY} does not open this; a function key opens one function, the host key all of them"
        return f"it wants a key: set {KEY}"


class _Refusal(Struct, frozen=True):
    error: str


def _encoded(url: str) -> Any:
    """The URL without further encoding: quoted parts stay, and an escaped slash does not separate a path."""
    from yarl import URL

    return URL(url, encoded=True)


async def _limited(answer: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in answer.content.iter_chunked(1 << 20):
        size += len(part)
        if size > MAX_ANSWER:
            raise ValueError(f"the answer is larger than {MAX_ANSWER} bytes")
        parts.append(part)
    return b"".join(parts)
