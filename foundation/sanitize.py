"""Texts that cross a border: what may not leave with them, and what may not enter with them. Pure.

`without_secrets` is for whatever leaves: queue messages, the log, tables, HTTP answers, a terminal. SDKs put
connection strings and signed addresses into their exceptions, and people paste them where a name belongs.
`one_line` is for whatever came from a person or another service and is shown as part of a line: nothing in
it can begin a line of its own, move a cursor, or turn the reading direction.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

HIDDEN = "***"

# A key of a signed string, with its value up to what ends it in connection strings, queries and SQL addresses.
_NAMED = re.compile(
    r"""(?ix) (?<![a-z0-9])
    (shared\ ?access\ ?key | account\ ?key | shared\ ?access\ ?signature | sig | client_?secret | password | pwd
    | access_token | refresh_token | (?<=[?&]) code | x-functions-key)
    (\s*=\s*) (?!\*\*\*) [^\s;&"'<>\\]+"""
)
_IN_ADDRESS = re.compile(
    r"(?P<head>\b[a-z][a-z0-9+.-]{0,30}://[^/\s:@\"']*:)(?!\*\*\*@)[^/\s@\"']+(?=@)", re.IGNORECASE
)
_BEARER = re.compile(r"(?i)\b(bearer|sharedaccesssignature)( +)(?!\*\*\*)[A-Za-z0-9._~+/=%&-]{16,}")
_TOKEN = re.compile(r"\beyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{8,8000}(?:\.[A-Za-z0-9_-]*)?")
# Keys as Azure makes them: 32 or 64 bytes in base64 end with '='; 84 letters and digits in newer services.
_KEY = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_-]{40,}={1,2}(?![A-Za-z0-9=])")
_LONG = re.compile(
    r"(?<![A-Za-z0-9])(?=[A-Za-z0-9]*[a-z])(?=[A-Za-z0-9]*[A-Z])(?=[A-Za-z0-9]*\d)[A-Za-z0-9]{64,}(?![A-Za-z0-9])"
)

SHORTEST_TOKEN = 20
"""Characters of the shortest text that `_BEARER`, `_TOKEN`, `_KEY` or `_LONG` can find something in: "eyJ", 8 and 8."""

_CONNECTION = re.compile(
    r"(?i)\b(account|shared ?access)key\s*=|\b(endpoint|defaultendpointsprotocol)\s*=.*;"
)
_SIGNED = re.compile(r"(?i)\bsig\s*=|\bsharedaccesssignature\b")

_BREAKS = re.compile(r"[\t-\r\x1c-\x1e\x85\u2028\u2029]+ *")
_JOINERS = frozenset("\u200c\u200d")  # invisible, and part of ordinary words in Persian and Hindi


def secret_in(text: str) -> str | None:
    """What kind of secret `text` is or holds, in words; None for none that can be recognised."""
    if without_secrets(text) == text:
        return None
    if _CONNECTION.search(text):
        return "a connection string"
    if _SIGNED.search(text):
        return "a shared access signature"
    if _IN_ADDRESS.search(text):
        return "an address with a password"
    return "a key or token"


def without_secrets(text: str) -> str:
    """`text` with the secrets in it replaced by `***`; names, hosts and everything else stay readable."""
    # Most texts are short words of a log line: what each pattern cannot do without is looked for first.
    named = "=" in text
    if named:
        text = _NAMED.sub(rf"\1\2{HIDDEN}", text)
    if "@" in text:
        text = _IN_ADDRESS.sub(rf"\g<head>{HIDDEN}", text)
    if len(text) < SHORTEST_TOKEN:
        return text
    text = _BEARER.sub(rf"\1\2{HIDDEN}", text)
    if "eyJ" in text:
        text = _TOKEN.sub(HIDDEN, text)
    if named:
        text = _KEY.sub(HIDDEN, text)
    return _LONG.sub(HIDDEN, text)


def one_line(text: str) -> str:
    """`text` as part of one line: line breaks become spaces, other invisible characters their escapes."""
    if text.isprintable():
        return text
    return "".join(map(_visible, _BREAKS.sub(" ", text)))


def _visible(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    return character.encode("unicode_escape").decode("ascii")


def leaving(text: str) -> str:
    """`text` as it may leave in a line: without secrets, and without what could begin another line."""
    return one_line(without_secrets(text))


def words_of(error: BaseException) -> str:
    """What an exception says of itself. Never raises: one of somebody's own may fail to tell its words, or tell
    what no message can carry.
    """
    try:
        return str(error).encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent
    except Exception:  # noqa: BLE001 - see above
        return "its own words cannot be had"


def told(error: BaseException) -> str:
    """An unexpected exception in words that may leave: its type, and its text without secrets, on one line."""
    return leaving(f"{type(error).__name__}: {words_of(error)}")


class HiddenError(RuntimeError):
    """Stands for an exception that had a secret in its text: its type and its text without it."""


@contextmanager
def raising_no_secrets() -> Iterator[None]:
    """For the outermost call of an invocation: what it raises is written into the host's log."""
    try:
        yield
    except Exception as error:
        shown = "".join(traceback.format_exception(error))  # its causes are shown, too
        if without_secrets(shown) == shown:
            raise
        raise HiddenError(told(error)) from None
