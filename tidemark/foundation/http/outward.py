"""Sends requests to configured addresses, and decides which addresses are called.

A person who may write a setting could otherwise make this app, with its identity and its place in a network, call addresses that
only the app can reach: the platform serves tokens and metadata on addresses of the link and of the machine. These are refused
by what a name resolves to when the connection is opened. Redirects are not followed, no proxy is used (it would resolve the
name itself), and plain HTTP is refused. TIDEMARK_TRUSTED_HOSTS names hosts that are excepted.

Errors name only the host, because paths and queries contain tokens.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import Struct

from tidemark.foundation.azure.connections import describe_network_error, tls_context
from tidemark.foundation.errors import SettingsError, UnavailableError
from tidemark.foundation.http.session import HoldsSession
from tidemark.foundation.sanitize import sanitize_line
from tidemark.foundation.version import VERSION

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import ResolveResult

TRUSTED = "TIDEMARK_TRUSTED_HOSTS"
"""Setting: `host` or `host:port`, separated by commas, where plain HTTP and addresses of this machine or its link are
accepted. For the local stack, and for a collector beside the app.
"""

TIMEOUT = 10.0
"""Seconds for a request with its answer. Chosen: many times what an answer takes, and less than a minute's evaluation."""

LIMIT = 1 << 20
"""Bytes of the largest answer that is read. Chosen."""

LOOKUPS = 8
"""How many names are looked up at the same time. Chosen."""

_PLATFORM = frozenset(map(ipaddress.ip_address, ("168.63.129.16", "fd00:ec2::254")))
"""Addresses at which clouds serve a machine's own secrets, and which are in no range that `is_local` knows."""

_NAT64 = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48")))
"""Prefixes behind which a translator reaches IPv4 (RFC 6052; RFC 8215, whose networks place the address as they like)."""

_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_.-]*[a-z0-9])?\.?", re.IGNORECASE)
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*", re.IGNORECASE)
_ACCEPTED = "accepted is https://HOST/..., without a user name"


class AddressError(SettingsError):
    """The address is not called. Trying again does not help, because a setting has to change."""


class Answer(Struct, frozen=True):
    """An answer of any status. `headers` need case-insensitive lookup."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


def trusted_hosts(settings: Mapping[str, str]) -> frozenset[str]:
    return frozenset(host.strip().casefold() for host in settings.get(TRUSTED, "").split(",") if host.strip())


def check_address(url: str, setting: str, trusted: frozenset[str] = frozenset()) -> str:
    """The host of `url`, as logs may show it. Resolves no name: that happens when the address is called.

    Raises AddressError naming `setting`, the host if there is one, and what is accepted.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise AddressError(f"{setting} is no address; {_ACCEPTED}") from None
    if not host or parts.username is not None or not url.isascii() or not url.isprintable() or " " in url:
        raise AddressError(f"{setting} is no address; {_ACCEPTED}")
    trust = bool(trusted & {host, f"{host}:{port}"})
    if parts.scheme != "https" and not (trust and parts.scheme == "http"):
        raise AddressError(
            f"{setting}: '{sanitize_line(host)}' is not asked over TLS; {_ACCEPTED}, or {TRUSTED}"
        )
    address = _literal(host)
    if address is None and (
        not _NAME.fullmatch(host) or _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2])
    ):
        raise AddressError(f"{setting}: '{sanitize_line(host)}' is no name of a host; {_ACCEPTED}")
    if address is not None and not trust and is_local(address):
        raise AddressError(f"{setting}: {_refusal(host)}")
    return host


def is_of_origin(link: str, origin: str) -> bool:
    """Whether a link in an answer has the scheme, host and port of `origin`, however they are written."""
    try:
        there, here = urlsplit(link), urlsplit(origin)
        ports = [parts.port or (443 if parts.scheme == "https" else 80) for parts in (there, here)]
    except ValueError:
        return False
    same = (there.scheme, there.hostname) == (here.scheme, here.hostname) and ports[0] == ports[1]
    return same and there.username is None


def is_local(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address means this machine, its link, or the platform below it, in any notation."""
    if isinstance(address, ipaddress.IPv6Address) and any(is_local(inner) for inner in _within(address)):
        return True
    address = ipaddress.ip_address(address.packed)  # without a zone, with which it would be another address
    reserved = address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
    return reserved or address in _PLATFORM


def _within(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    number = int(address)
    if address in _NAT64[1]:
        # RFC 6052, 2.2: after a prefix of 48, 56, 64 or 96 bits, around the byte that stays empty.
        octets = address.packed
        forms = (octets[6:8] + octets[9:11], octets[7:8] + octets[9:12], octets[9:13], octets[12:])
        return [ipaddress.IPv4Address(form) for form in forms if any(form)] or [ipaddress.IPv4Address(0)]
    embedded = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    # IPv4-compatible (RFC 4291, 2.5.5.1), and IPv4-translated (RFC 2765, 2.1).
    if address in _NAT64[0] or (number >> 32 == 0 and number > 1) or number >> 32 == 0xFFFF0000:
        embedded.append(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    if (number >> 32) & 0xFCFFFFFF == 0x00005EFE:  # ISATAP, RFC 5214, 6.1
        embedded.append(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    return [inner for inner in embedded if inner is not None]


class Outward(HoldsSession):
    """Sends requests to configured addresses. An async context manager, or closed with `aclose`."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._trusted = trusted_hosts(settings)

    async def ask(
        self,
        method: str,
        url: str,
        *,
        setting: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout: float = TIMEOUT,
        limit: int = LIMIT,
        cut: bool = False,
    ) -> Answer:
        """Send one request; returns an answer of any status, also a redirect. With a `limit` of 0 its body is not read, and with
        `cut` only the beginning of a longer one.

        Raises AddressError, which names `setting`, for an address that is not called, and UnavailableError without a complete
        answer: then it is unknown whether the request was received.
        """
        import aiohttp

        host = check_address(url, setting, self._trusted)
        try:
            session = await self._opened()
            asked = session.request(
                method,
                url,
                headers=headers,
                data=body,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout),
            )
            async with asked as answer:
                try:
                    body = await (_beginning(answer, limit) if cut else _body(answer, limit, host))
                except UnavailableError:
                    if answer.status == 200:
                        raise
                    body = b""  # status and headers of a refusal suffice
                return Answer(answer.status, answer.headers, body)
        except TimeoutError:
            raise UnavailableError(f"{host}: no answer within {timeout:g} s") from None
        except aiohttp.ClientPayloadError:
            raise UnavailableError(f"{host}: the answer broke off before its end") from None
        except (aiohttp.ClientConnectionError, OSError) as error:
            if isinstance(cause := getattr(error, "os_error", None), _LocalAddressError):
                raise AddressError(f"{setting}: {cause}") from None
            raise UnavailableError(f"{host}: {sanitize_line(describe_network_error(error))}") from None
        except (aiohttp.ClientError, ValueError) as error:  # their texts contain addresses and headers
            raise UnavailableError(f"{host}: no HTTP answer ({type(error).__name__})") from None

    async def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            import aiohttp

            context = await asyncio.to_thread(tls_context, self._settings)
            if self._session is None:  # another task may have opened it meanwhile
                self._session = aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(ssl=context, resolver=_resolver(self._trusted)),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    # A small answer could unpack to any size.
                    headers={"User-Agent": f"tidemark/{VERSION}", "Accept-Encoding": "identity"},
                    auto_decompress=False,
                )
        return self._session


class _LocalAddressError(OSError):
    """An OSError, as the transport expects from a resolver."""


def _resolver(trusted: frozenset[str]) -> Any:
    """A resolver that refuses local addresses. It has its own threads: a name server that does not answer blocks one for half
    a minute, and the few threads of the event loop are needed for Azure's names.
    """
    import aiohttp

    threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="names")

    class Checked(aiohttp.abc.AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            asked = partial(
                socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
            )
            resolved = await asyncio.get_running_loop().run_in_executor(threads, asked)
            trust = bool(trusted & {host.casefold(), f"{host.casefold()}:{port}"})
            resolvers = list[Any]()
            for of_family, _, proto, _, (at, *_) in resolved:
                address = _literal(str(at))
                if not trust and (address is None or is_local(address)):
                    raise _LocalAddressError(_refusal(f"{host} ({at})"))
                entry = {"hostname": host, "host": str(at), "port": port, "family": of_family, "proto": proto}
                resolvers.append({**entry, "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV})
            return resolvers

        async def close(self) -> None:
            threads.shutdown(wait=False)

    return Checked()


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _refusal(host: str) -> str:
    return (
        f"{sanitize_line(host)} is an address of this machine or its link, which is not called; see {TRUSTED}"
    )


async def _beginning(answer: aiohttp.ClientResponse, limit: int) -> bytes:
    """What comes of the body, up to `limit`: the status is known, whatever becomes of the rest."""
    import aiohttp

    try:
        return await answer.content.readexactly(limit)
    except asyncio.IncompleteReadError as error:
        return error.partial
    except (aiohttp.ClientError, OSError):
        return b""


async def _body(answer: aiohttp.ClientResponse, limit: int, host: str) -> bytes:
    if not limit:
        return b""
    if (encoding := answer.headers.get("Content-Encoding", "identity")) != "identity":
        raise UnavailableError(
            f"{host}: the answer has the encoding '{sanitize_line(encoding)[:40]}', which was not requested"
        )
    parts, size = [], 0
    async for part in answer.content.iter_chunked(1 << 16):
        size += len(part)
        if size > limit:
            raise UnavailableError(f"{host}: the answer is larger than {limit} bytes")
        parts.append(part)
    return b"".join(parts)
