"""One sentence for a command that is given no app, or the local stack while that does not run. Without it, each SDK fails in its own
words after many attempts, or the first setting that is missing is named.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from urllib.parse import urlsplit

from rich.console import Console
from rich.markup import escape

from tidemark.foundation.app_settings import STORAGE, load_settings
from tidemark.foundation.errors import SettingsError, TidemarkError
from tidemark.foundation.pacing.patience import SETTING, held
from tidemark.foundation.sanitize import sanitize_line, shorten

_STORAGE_PORT = 10002
"""Azurite's for tables. It serves them, queues and blobs in one process, so that one port shows all."""

NAME_AN_APP = "or name a deployed app with --app or --account"

_OF_AN_APP = ("tidemark.toml", "host.json", "local.settings.json", ".env")

_EMULATOR = re.compile(
    r"Endpoint=sb://(localhost|127\.0\.0\.1)(?::(\d+))?;.*UseDevelopmentEmulator=true", re.IGNORECASE
)

_ADDRESS = re.compile(r"https?://(localhost|127\.0\.0\.1):(\d+)/?", re.IGNORECASE)


def check_app(root: Path, settings: Mapping[str, str], *connections: str, way_on: str = "") -> None:
    """Raises SettingsError if nothing in `root` or in the environment names an app, or if one of these connections is to the
    local stack and nothing listens there.

    `way_on` says how else the command can be given an app. It takes a millisecond: on this machine nobody is waited for.
    """
    check_named(root, settings, *connections, way_on=way_on)
    if text := local_stack_problem(settings, *connections):
        raise SettingsError(f"{text}{way_on and ', '}{way_on}")


def check_named(root: Path, settings: Mapping[str, str], *connections: str, way_on: str = "") -> None:
    """Raises SettingsError if nothing in `root` is of an app, and none of these connections is in the environment."""
    is_app = any((root / name).exists() for name in _OF_AN_APP)
    if not is_app and not any(name.partition("__")[0] in connections for name in settings):
        raise SettingsError(
            f"no app is named: {root} has none of {', '.join(_OF_AN_APP)}. Run the command in the app's folder, give it as --root,"
            f" {way_on or 'or set its settings in the environment'}"
        )


def local_stack_problem(settings: Mapping[str, str], *connections: str) -> str:
    """One sentence if one of these connections is to the local stack and nothing listens there; else ''."""
    for name in connections:
        address = _local_address(settings.get(name, ""))
        if address is not None and not _listens(address):
            return (
                f"the local stack is not running: {name} names it, and nothing listens on {address[0]}:{address[1]}. Start it"
                " with `make start` in a clone of Tidemark"
            )
    return ""


_ADDRESS_KEY = re.compile(
    r"(?:^|;)\s*(?:AccountName|(?:Account|Table)?Endpoint)\s*=\s*([^;]+)", re.IGNORECASE
)


def connection_text(settings: Mapping[str, str], prefix: str, what: str) -> str:
    """`storage: acme (AzureWebJobsStorage__accountName)`: where a connection leads, and which setting says so. Of an address only the
    host is shown, and of a connection string only its account or endpoint. A connection string wins, as for the clients.
    """
    names = {name.replace(":", "__").casefold(): name for name, value in settings.items() if value.strip()}
    for part in _LEADING:
        if name := names.get(f"{prefix}{part}".casefold()):
            return f"{what}: {_leads_to(settings[name].strip(), is_string=not part)} ({sanitize_line(name)})"
    return f"{what}: {prefix} is not set"


_LEADING = (
    "",  # a connection string
    "__accountName",
    "__fullyQualifiedNamespace",
    "__accountEndpoint",
    "__tableServiceUri",
    "__queueServiceUri",
    "__blobServiceUri",
)


def reached(root: Path, app: str | None, account: str | None) -> str:
    """Whom a command about an app asks: the app that is named, or its storage."""
    if app is not None:
        return f"app: {_leads_to(app, is_string=False)} (--app)"
    return connection_text(load_settings(root, account=account), STORAGE, "storage")


SLOW = 5.0
"""Seconds after which a command says whom it asks. Chosen: most end sooner, and four attempts without an answer take 25 s."""


@contextmanager
def say_if_slow(
    whom: Callable[[], str], console: Console, *, what: str = "each answer", within: float | None = None
) -> Iterator[Callable[[], None]]:
    """Prints whom a command asks, by which setting, and how long `what` is waited for, if the block takes longer than SLOW. What it
    yields ends that early.
    """

    def say() -> None:
        with suppress(TidemarkError):  # the command ends with it, too
            waits = f"{what} is waited for {within or held().whole:g} s at most ({SETTING})"
            text = f"{SLOW:g} s so far; asking {escape(whom())}; {waits}"
            console.print(text, style="dim", soft_wrap=True, highlight=False)

    timer = Timer(SLOW, say)
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def _leads_to(value: str, *, is_string: bool) -> str:
    if _is_azurite(value):
        return "the local stack"
    match = _ADDRESS_KEY.search(value) if is_string else None
    text = match[1] if match else "" if is_string else value
    try:
        host = urlsplit(text if "://" in text else f"x://{text}").hostname
    except ValueError:
        host = None
    return shorten(host, 100) if host else "a connection string"


def _is_azurite(connection: str) -> bool:
    return "usedevelopmentstorage=true" in connection.replace(" ", "").casefold()


def _local_address(connection: str) -> tuple[str, int] | None:
    if _is_azurite(connection):
        return "127.0.0.1", _STORAGE_PORT
    match = _EMULATOR.search(connection) or _ADDRESS.fullmatch(connection.strip())
    return (match[1], int(match[2] or 5672)) if match else None


def _listens(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=1.0):
            return True
    except OSError:
        return False
