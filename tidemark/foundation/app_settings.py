"""Reads app settings for commands: from the environment, then `.env`, then local.settings.json.

local.settings.json is committed and describes the local stack. Real values, above all secrets, are in the environment or in
`.env`, which git ignores. So the file never completes real settings:

* a connection that has a setting in an earlier source, in any form (`Name`, `Name__accountName`), gets nothing from a later one;
* if an earlier source names a storage account that is no emulator, the command is about a deployed app, and the file is not read;
* nor if the command line names a subscription, or a resource of one, and the file names other subscriptions.

Values of the command line come before all sources, by the same rules.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from pathlib import Path

from tidemark.foundation.errors import SettingsError
from tidemark.foundation.sanitize import sanitize_line
from tidemark.foundation.secrets.known import hide_settings
from tidemark.foundation.wording import file_problem

PATHS = ("TIDEMARK_CA_BUNDLE", "CONSUMER_FILE")
"""Settings that are paths. TIDEMARK_CONFIG is always relative to the app's root."""

_SUBSCRIPTION = re.compile(
    r"/subscriptions/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:/|$)", re.IGNORECASE
)
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_EMULATORS = ("usedevelopmentstorage=true", "accountname=devstoreaccount1", "/devstoreaccount1")


def load_settings(
    root: Path, environment: Mapping[str, str] | None = None, *, account: str | None = None, about: str = ""
) -> dict[str, str]:
    """The settings for the app in `root`. `account` is the storage account of the command line, `about` its resource id or the
    beginning of one.

    A path in a file is relative to that file, and a path in the environment to the current folder. Raises SettingsError for a
    file that cannot be read, and for an invalid `account`.
    """
    settings = _settings_of(root, environment, account, about)
    hide_settings(settings)
    return settings


def _settings_of(
    root: Path, environment: Mapping[str, str] | None, account: str | None, about: str
) -> dict[str, str]:
    named = own_settings(root, environment)
    if account is not None:
        if not _ACCOUNT.fullmatch(account):
            raise SettingsError(
                f"--account: found '{sanitize_line(account)[:100]}'; the name of a storage account is accepted: 3 to 24"
                " lower-case letters and digits"
            )
        return _over(named, {f"{STORAGE}__accountName": account})
    if _is_deployed(named):
        return named
    local = local_settings(root / "local.settings.json")
    if about and (there := subscriptions_of(local.values())) and there.isdisjoint(subscriptions_of([about])):
        return named
    return _over(_placed(local, root), named)


def subscriptions_of(texts: Iterable[str]) -> set[str]:
    """The subscriptions of all resource ids in `texts`, in lower case."""
    return {match[1].lower() for text in texts for match in _SUBSCRIPTION.finditer(text)}


def own_settings(root: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings of the environment and of `.env`, none of which are committed. Raises SettingsError."""
    environment = os.environ if environment is None else environment
    settings = _over(_placed(dot_env(root / ".env"), root), environment)
    hide_settings(settings)
    return settings


def _over(below: Mapping[str, str], above: Mapping[str, str]) -> dict[str, str]:
    """`above`, and those values of `below` whose connection has no setting in `above`."""
    families = {_family(name) for name, value in above.items() if value.strip()}
    return {**{name: value for name, value in below.items() if _family(name) not in families}, **above}


def _placed(values: dict[str, str], root: Path) -> dict[str, str]:
    """`values` with their paths made relative to `root`."""
    paths = {name: str(root / values[name].strip()) for name in PATHS if values.get(name, "").strip()}
    return {**values, **paths}


def local_settings(path: Path) -> dict[str, str]:
    """The values of a local.settings.json; none if the file is missing. Raises SettingsError if it cannot be read."""
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig")).get("Values", {})
        return {str(name): str(value) for name, value in values.items()}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise SettingsError(f"{path} cannot be read: {file_problem(error)}") from None


def dot_env(path: Path) -> dict[str, str]:
    """The values of NAME=value lines, without comments and quotes. Raises SettingsError for a file that cannot be read, or a line that is
    none; its text is not shown, for it may be a secret.
    """
    if not path.exists():
        return {}
    try:
        lines = (line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines())
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {file_problem(error)}") from None
    values: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line or line[0] == "#":
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        if not equals or not name.strip() or len(name.split()) > 1:
            raise SettingsError(f"{path}, line {number}: is no NAME=value, no comment and not empty")
        values[name.strip()] = value.strip().strip("'\"")
    return values


def _family(name: str) -> str:
    """The connection of a setting: that of AzureWebJobsStorage__accountName is `azurewebjobsstorage`. The platform also accepts `:`."""
    return name.replace(":", "__").partition("__")[0].casefold()


def _is_deployed(named: Mapping[str, str]) -> bool:
    """Whether the settings name a storage account that is no emulator."""
    storage = [
        value.strip().casefold() for name, value in named.items() if _family(name) == STORAGE.casefold()
    ]
    return any(storage) and not any(mark in value for value in storage for mark in _EMULATORS)


POLICY_FILE = "tidemark.toml"
"""The policy file in the app's root, unless TIDEMARK_CONFIG names another."""


def policy_file(root: Path, settings: Mapping[str, str]) -> Path:
    return root / settings.get("TIDEMARK_CONFIG", POLICY_FILE)


STORAGE = "AzureWebJobsStorage"
"""Prefix of the settings of the host's storage account, which has the queues, the state and the log."""


def app_folder() -> Path:
    """The folder of the app that runs here: the one with this package and host.json, as in Azure, or else `command_folder`."""
    beside = Path(__file__).resolve().parents[2]
    return beside if (beside / "host.json").is_file() else command_folder()


def command_folder() -> Path:
    """The folder of a command: the nearest one, from the current folder upwards, with a tidemark.toml, or else with a host.json or
    local.settings.json, or else the current folder.

    The search ends at the root of the repository, or without one at the home folder; elsewhere only the current folder counts.
    Folders of another owner or on another file system, such as /tmp, are not searched: a person who can put a file there must
    not decide what is scaled, and which code is loaded as a rule. Nor is the clone of the command itself, which has other
    people's settings.
    """
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was deleted; the error names the file that is looked for
        return Path()
    folders = _folders_of(here)
    for names in (("tidemark.toml",), ("host.json", "local.settings.json")):
        for folder in folders:
            if any((folder / name).is_file() for name in names):
                return folder
    return here


def _folders_of(here: Path) -> list[Path]:
    """The folders that may have the settings of the user of `here`, the nearest first."""

    def whose(folder: Path) -> tuple[int, int] | None:
        try:
            status = folder.stat()
        except OSError:  # its parent folder is not readable
            return None
        return status.st_uid, status.st_dev

    try:
        home = Path.home().resolve()
    except RuntimeError:  # this user has none
        home = here
    mine = whose(here)
    ours = [here, *takewhile(lambda folder: whose(folder) == mine, here.parents)]
    top = next((folder for folder in ours if (folder / ".git").exists()), home)
    return ours[: ours.index(top) + 1] if top in ours and top.parent != top else [here]


ROOT = app_folder()
"""The root folder for the functions; commands use COMMAND_ROOT."""

COMMAND_ROOT = command_folder()


MOST_BESIDE = 1 << 20
"""Bytes that are read of a file which a configuration names. Chosen: four times what any of them may have."""


def read_beside(configuration: Path) -> Callable[[str], bytes]:
    """Reads files that a configuration names, by their names in its folder: no more than MOST_BESIDE bytes of each.

    What it returns raises OSError, and ValueError for what is no file: a pipe would never end.
    """

    def read(name: str) -> bytes:
        path = configuration.parent / name
        if path.exists() and not path.is_file():
            raise ValueError("which is no file")
        with path.open("rb") as file:
            return file.read(MOST_BESIDE)

    return read
