"""Keys and columns of table rows, and the spelling of a namespace in keys. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from itertools import count, takewhile
from typing import Any

STRING_CHARS = 32_000  # the limit is 32 Ki UTF-16 units; chunks are ASCII
KEY_CHARS = 400  # a key takes 512 characters; the rest is for a prefix or a time
_MAX_MICROSECONDS = 253_402_300_800 * 1_000_000  # the end of the year 9999
_UNSAFE = re.compile(r"[^A-Za-z0-9._@:-]")


_PROTOCOL_PORTS = {"443", "5671"}  # AMQP over web sockets, and AMQP with TLS
_AZURE = ".servicebus."  # in the name of every namespace, in all clouds


class TooLargeError(ValueError):
    """A value is larger than the service can store. The message names the limit."""


def namespace_host(address: str) -> str:
    """The host of a namespace or storage account, spelled as positions and states are stored and compared.

    Letter case, a scheme, a path, the final dot and a port of the protocol are removed. Azure also accepts AMQP at port 5672. An
    emulator keeps that port, which distinguishes two of them on one machine.
    """
    host = address.strip().rpartition("://")[2].partition("/")[0].lower()
    name, _, port = host.rpartition(":")
    if port in _PROTOCOL_PORTS or (port == "5672" and _AZURE in name):
        host = name
    return host.removesuffix(".")


def key_of(text: str) -> str:
    """`text` as part of a key: other characters than ASCII letters, digits and `._@:-` become `~HH` per byte.

    Distinct texts give distinct keys. Long ones end in a hash, so any text is accepted.
    """
    raw = text.encode("utf-8", "surrogatepass").decode("latin-1")
    safe = _UNSAFE.sub(lambda match: f"~{ord(match[0]):02X}", raw)
    if len(safe) > KEY_CHARS:
        digest = hashlib.sha256(raw.encode("latin-1")).hexdigest()[:32]
        return f"{safe[: KEY_CHARS - 40]}~-{digest}"
    return safe


def inverted(at: float) -> str:
    """A time as 18 digits that sort newest first, to the microsecond.

    Raises ValueError for a time before 1970 or after the year 9999.
    """
    return f"{_inverted(at):018d}"


def after(at: float) -> str:
    """The first 18 digits that stand for a time before `at`; any `at` is accepted."""
    return f"{_inverted(min(max(at, 0.0), 253_402_300_799.0)) + 1:018d}"


def _inverted(at: float) -> int:
    microseconds = round(at * 1_000_000) if -1e12 < at < 1e12 else -1
    if not 0 <= microseconds < _MAX_MICROSECONDS:
        raise ValueError(
            f"time {at!r} cannot be stored; accepted are seconds since 1970, up to the year 9999"
        )
    return _MAX_MICROSECONDS - 1 - microseconds


def in_columns(value: str | bytes, prefix: str, size: int = STRING_CHARS) -> dict[str, str | bytes]:
    """`value` over as many columns `prefix00`, `prefix01`, ... as it takes, of `size` each."""
    starts = enumerate(range(0, len(value), size))
    return {f"{prefix}{index:02d}": value[start : start + size] for index, start in starts}


def of_columns(row: Mapping[str, Any], prefix: str) -> list[Any]:
    """The values of such columns, in order."""
    pieces = (row.get(f"{prefix}{index:02d}") for index in count())
    return list(takewhile(lambda piece: piece is not None, pieces))
