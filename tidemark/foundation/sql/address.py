"""Checks that all parsers read a database URL in the same way, and names a database in messages. Pure.

A '@', ':' or '/' that is not encoded in a password ends the user part too early, and each parser ends it at another place:
SQLAlchemy raises an error with half of the password in its text, and libpq looks for a host of that name. So the URL is checked
strictly at the start. Errors give the position of the problem, never the text.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

from tidemark.foundation.errors import SettingsError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:\+[A-Za-z0-9_]+)?://")
_USER = re.compile(r"(?:[^\s@:/?#]*(?::[^\s@:/?#]*)?@)?")
_HOST = re.compile(
    r"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]*(?:[\\,][A-Za-z0-9_$-]+)?)(?::[0-9]{1,5})?(?=[/?]|$)"
)
_DATABASE = re.compile(r"(?:/[^\s@:?#/]*)?(?=\?|$)")
_QUERY = re.compile(r"(?:\?[^\s&=#@/]+=[^\r\n&]*(?:&[^\s&=#@/]+=[^\r\n&]*)*)?$")
_PARTS = (
    ("the user name and password", _USER),
    ("the host, and a port of digits", _HOST),
    ("the database", _DATABASE),
    ("parameters such as name=value&name=value", _QUERY),
)
_ODBC = re.compile(r"(?s)\s*([\w ]+?)\s*=\s*(\{(?:[^}]|\}\})*\}|[^;{}]*)\s*(?:;|$)")
_SERVER = re.compile(r"(?i)(?:tcp:)?([a-z0-9_][a-z0-9._-]*)(?:[\\,][a-z0-9_]+)?")
_NAME = re.compile(r"[\w.-]{1,128}")

CODES = "'@' is written %40, ':' %3A, '/' %2F, '?' %3F, '#' %23, and a blank %20"


def check_url(url: str, setting: str) -> None:
    """Raises SettingsError, which names `setting` and the position, for a URL whose parts are ambiguous."""
    begun = _SCHEME.match(url)
    if begun is None:
        raise SettingsError(
            f"{setting} is no database URL; expected sqlite:///file, postgresql://user@host/database or mssql+pyodbc://..."
        )
    if _is_file(url, begun.end()):
        return
    at = begun.end()
    for what, form in _PARTS:
        match = form.match(url, at)
        if match is None:
            raise SettingsError(
                f"{setting} cannot be read from character {at + 1} on, where {what} should stand; in a user name, a"
                f" password, a database's name and a parameter {CODES}"
            )
        at = match.end()


def location_of(url: str) -> str:
    """The database for messages: scheme, host and name, as far as they are unambiguous."""
    begun = _SCHEME.match(url)
    if begun is None:
        return "a database"
    if _is_file(url, begun.end()):
        return url.partition("?")[0]
    try:
        check_url(url, "")
    except SettingsError:
        return begun[0]
    user = _USER.match(url, begun.end())
    at = user.end() if user else begun.end()
    place, _, query = url[at:].partition("?")
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if name.casefold() == "odbc_connect":
            return f"{begun[0]}{_of_odbc(unquote_plus(value))}"
    return f"{begun[0]}{place}"


def _is_file(url: str, start: int) -> bool:
    """Whether the rest after the scheme is the path of a file, which may have any characters."""
    return url.startswith("sqlite") and url[start : start + 1] in {"", "/", "?"}


def _of_odbc(text: str) -> str:
    """`server/database` of an ODBC connection string; '' if it cannot be read to its end."""
    pairs: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _ODBC.match(text, at)
        if match is None:
            return ""
        pairs.setdefault(match[1].casefold(), match[2].strip().strip("{}"))
        at = match.end()
    server = _SERVER.fullmatch(pairs.get("server", pairs.get("address", pairs.get("addr", ""))))
    database = _NAME.fullmatch(pairs.get("database", ""))
    return f"{server[1] if server else ''}{f'/{database[0]}' if database else ''}"


_REASONS = (
    ("refused", "the connection was refused"),
    ("password authentication failed|login failed|no password supplied", "the login was refused"),
    (
        "resolve host|could not translate|name or service not known|nodename nor|getaddrinfo|unknown host",
        "there is no such host",
    ),
    ("does not exist|cannot open database", "there is no such database, or this login may not open it"),
    ("timeout|timed out", "no answer in time"),
    ("certificate|ssl|tls", "TLS cannot be agreed upon, or the certificate is not trusted"),
    ("too many|remaining connection slots", "the server has no connection left"),
    ("starting up|shutting down|not currently available|recovery mode", "the server does not serve for now"),
    ("unreachable|no route", "there is no way to the host"),
    ("closed the connection|reset by peer|broken pipe", "the connection was closed at once"),
    (
        "can't open lib|driver manager|data source name not found",
        "the driver that the URL names is not installed",
    ),
    ("not allowed to access|firewall", "the server's firewall does not let this address in"),
    (
        'missing "="|invalid connection option|invalid dsn|invalid integer|invalid uri',
        "the driver cannot read what the URL says",
    ),
)
"""Parts of drivers' errors in lower case, separated by `|`, and what they mean. The first match counts."""


def describe_connection_failure(text: str) -> str:
    """Describe a driver's error about a failed connection in our own words. Those of the driver may contain a part of the URL
    that it took for a host, an option or a database.
    """
    lower = text.casefold()
    return next(
        (reason for parts, reason in _REASONS if any(part in lower for part in parts.split("|"))),
        "the driver gives a reason that is not shown, as it may hold parts of the URL",
    )
