"""Two columns of the tables of settings in docs/settings.md: what is accepted, and the default.

People write the names and what a setting means. The two columns come from the code that reads the settings, where it knows more than
that a text is accepted, or has a default of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TypeVar

from consumer.cli.consume import OWN_LEVEL, OWN_LOG_LEVEL, read_own_level
from consumer.config import SettingsReader, config_of, read_config, read_slice
from consumer.running.assembly import Parts
from devstack.documentation.schema_tables import default_text
from scaling.calls import budgets
from scaling.config.policy_file import DEFAULT_RETENTION, DEFAULT_SCHEDULE
from scaling.scalers.arm import clients as arm
from scaling.service import metrics
from tidemark.foundation.app_settings import POLICY_FILE
from tidemark.foundation.azure import connections
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.http import callers
from tidemark.foundation.settings_reader import SDK_LEVEL, SDK_LOG_LEVEL, read_log_level

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
APP_HEAD = "| app setting | accepted | default | meaning |\n|---|---|---|---|\n"
HEAD = "| setting | accepted | default | meaning |\n|---|---|---|---|\n"

_T = TypeVar("_T")


class _Recorder(SettingsReader):
    """A reader without settings, which notes what is accepted for each, and its default."""

    def __init__(self) -> None:
        super().__init__({})
        self.found: dict[str, tuple[str, str]] = {}

    def value(self, name: str, default: _T, read: Callable[[str], _T], accepted: str) -> _T:
        del read
        words = accepted.removeprefix("a ").split("; ")[0]
        if isinstance(default, StrEnum):
            words = re.sub(r"\w+", r"`\g<0>`", words)
        is_time = words.startswith("seconds above 0")
        self.found[name] = ("duration" if is_time else words, default_text(default or None, seconds=is_time))
        if isinstance(default, bool):
            self.found[name] = (words, default_text(default))
        return default

    def of(self, name: str, default: _T, least: int = 1) -> _T:
        value = super().of(name, default, least)
        if name not in self.found:
            self.found[name] = (
                "comma-separated" if isinstance(default, tuple) else "",
                default_text(default),
            )
        return value


def _accepted_by(read: Callable[[dict[str, str]], object], name: str) -> str:
    """What is accepted for a setting, in the words with which its reader refuses another value."""
    try:
        read({name: "?"})
    except (SettingsError, ValueError) as error:
        return str(error).partition("; accepted")[2].removeprefix(" is").removeprefix(":").strip()
    raise AssertionError(f"{name}: '?' is accepted")


def app_columns() -> dict[str, tuple[str, str]]:
    """What is accepted for each of the app's own settings, and its default."""
    schedule = ("NCRONTAB", f"`{DEFAULT_SCHEDULE}`")
    texts = {
        arm.ENDPOINT: (_accepted_by(arm.endpoint, arm.ENDPOINT), f"`{arm.PUBLIC_CLOUD}`"),
        budgets.BUDGETS: (_accepted_by(budgets.budgets_of, budgets.BUDGETS), ""),
        budgets.SHARE: (_accepted_by(budgets.budgets_of, budgets.SHARE), ""),
        metrics.EXPORTER: (
            _accepted_by(partial(metrics.metrics_of, clock=float), metrics.EXPORTER),
            "`none`",
        ),
        SDK_LEVEL: (_accepted_by(read_log_level, SDK_LEVEL), f"`{SDK_LOG_LEVEL}`"),
    }
    return texts | {
        "COLLECT_SCHEDULE": schedule,
        "VERIFY_SCHEDULE": schedule,
        "SCALING_LOG_RETENTION": ("duration", default_text(DEFAULT_RETENTION, seconds=True)),
        "TIDEMARK_CONFIG": ("path", f"`{POLICY_FILE}`"),
        callers.SIGN_IN: ("true or false", default_text(value=False)),
        connections.CA_BUNDLE: ("path", ""),
    }


_VALUE = re.compile(r"\w+:<\w+>|\w+:[\w/]+|\b(?:position|none|number|never|off)\b")
"""A word that is written into a setting as it is."""


def _of_sink(settings: dict[str, str]) -> None:
    found = _CONSUMER | settings
    Parts(read_config(found), found).sink()


_CONSUMER = {
    "EVENTHUB_NAME": "hub",
    "EventHubConnection__fullyQualifiedNamespace": "namespace",
    "CosmosConnection__accountEndpoint": "https://account.documents.azure.com/",
    "COSMOS_DATABASE": "database",
    "COSMOS_CONTAINER": "container",
}
_OF_SINKS = (
    "CONSUMER_ID",
    *(f"COSMOS_{name}" for name in ("OPERATION", "IF_MISSING", "EMPTY", "GUARD", "TOMBSTONE", "TTL")),
)


def consumer_columns() -> dict[str, tuple[str, str]]:
    """What is accepted for each of the consumer's settings, and its default."""
    recorder = _Recorder()
    config_of(recorder)
    read_slice({}, recorder)
    found = recorder.found
    for name in _OF_SINKS:
        words = _accepted_by(_of_sink, name)
        shown = _VALUE.sub(r"`\g<0>`", words)
        if re.fullmatch(r"\w+(?:, \w+)*", words):
            shown = re.sub(r"\w+", r"`\g<0>`", words)
        found[name] = (shown, found.get(name, ("", ""))[1])
    found[OWN_LEVEL] = (_accepted_by(read_own_level, OWN_LEVEL), f"`{OWN_LOG_LEVEL}`")
    return found


def with_columns(page: str) -> str:
    """The page with both columns as the code has them."""
    for title, found in ((APP_HEAD, app_columns()), (HEAD, consumer_columns())):
        before, head, rest = page.partition(title)
        table, gap, after = rest.partition("\n\n")
        page = before + head + "\n".join(_row(line, found) for line in table.splitlines()) + gap + after
    return page


def _row(line: str, found: dict[str, tuple[str, str]]) -> str:
    names, accepted, default, meaning = re.split(
        r"(?<!\\) \| ", line.removeprefix("| ").removesuffix(" |"), maxsplit=3
    )
    known = [found.get(name, ("", "")) for name in re.findall(r"`(\w+)`", names)]
    words = list(dict.fromkeys(each[0] for each in known))
    defaults = [each[1] for each in known]
    if all(words):
        accepted = "; ".join(words)
    if all(defaults):
        default = "; ".join([", ".join(dict.fromkeys(defaults)), *default.split("; ")[1:]])
    return f"| {names} | {accepted} | {default} | {meaning} |"


def settings_page() -> str:
    """docs/settings.md as it should be."""
    return with_columns(PAGE.read_text("utf-8"))
