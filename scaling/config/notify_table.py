"""Reads `[notify]` of tidemark.toml, which webhooks get which notices, and notes its problems. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from msgspec import Struct

from scaling.notice import Notice, NoticeKind
from tidemark.foundation.durations import duration
from tidemark.foundation.settings_reader import Reader, as_bool, as_text, one_of

Format = Literal["cloudevents", "cloudevents_binary", "azure_autoscale"]

CHOSEN = tuple(kind.value for kind in NoticeKind if kind not in {NoticeKind.SEVERAL, NoticeKind.TEST})
"""Kinds that a filter may name."""

HELD_AFTER = 1_800.0
MISSING_AFTER = 900.0
"""Three times the window most rules have: at a start windows fill up first."""

_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OURS = {"content-type", "content-length", "host"}
_BEGIN_OURS = ("webhook-", "ce-")


class Webhook(Struct, frozen=True):
    """One receiver. Its address, its key and the values of `headers` are in the app settings that are named here."""

    name: str
    url_setting: str
    key_setting: str | None = None
    headers: Mapping[str, str] = {}
    format: Format = "cloudevents"
    kinds: frozenset[str] = frozenset(CHOSEN)
    targets: tuple[str, ...] = ("*",)
    handshake: bool = False

    def wants(self, notice: Notice) -> bool:
        """Whether the filters let a notice through. What is about the app has no target to be filtered by."""
        if notice.kind in {NoticeKind.SEVERAL, NoticeKind.TEST}:
            return True
        named = not notice.target or any(fnmatchcase(notice.target, pattern) for pattern in self.targets)
        return named and notice.kind.value in self.kinds

    @property
    def counts_floods(self) -> bool:
        """The form of Azure Monitor autoscale is of one change of one resource, and has no way to count."""
        return self.format != "azure_autoscale"


class Notify(Struct, frozen=True):
    """Webhooks by name, and the seconds after which lasting conditions are notified."""

    webhooks: Mapping[str, Webhook] = {}
    held_after: float = HELD_AFTER
    missing_after: float = MISSING_AFTER

    def lasting(self, kind: NoticeKind) -> float:
        """Seconds that a condition lasts before it is notified; a budget that binds is notified at once."""
        return {NoticeKind.HELD: self.held_after, NoticeKind.METRICS_MISSING: self.missing_after}.get(
            kind, 0.0
        )


def read_notify(reader: Reader | None) -> Notify:
    if reader is None:
        return Notify()
    held = reader.take("held_after", HELD_AFTER, duration)
    missing = reader.take("missing_after", MISSING_AFTER, duration)
    named = reader.table("webhooks")
    reader.finish()
    tables = {} if named is None else {name: named.table(name) for name in named.names()}
    if not tables:
        reader.problem(
            "webhooks", "no webhook is configured; add a table such as [notify.webhooks.operations]"
        )
    webhooks = {name: _webhook(name, table) for name, table in tables.items() if table is not None}
    return Notify(webhooks, held, missing)


def _webhook(name: str, reader: Reader) -> Webhook:
    form: Any = reader.take("format", "cloudevents", one_of(get_args(Format)))
    able = (NoticeKind.SCALED.value,) if form == "azure_autoscale" else CHOSEN
    webhook = Webhook(
        name=name,
        url_setting=reader.require("url", "", _setting),
        key_setting=reader.take("key", None, _setting),
        headers=reader.take("headers", {}, _headers),
        format=form,
        kinds=frozenset(reader.take("kinds", able, lambda value: _some(value, able))),
        targets=tuple(reader.take("targets", ("*",), lambda value: _some(value, None))),
        handshake=reader.take("handshake", default=False, convert=as_bool),
    )
    reader.finish()
    return webhook


def _setting(value: Any) -> str:
    name = as_text(value)
    if not _SETTING.fullmatch(name):
        raise ValueError(f"found {value!r}; the name of an app setting is accepted, which holds the value")
    return name


def _headers(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"found {value!r}; accepted is a table of names of headers and of app settings")
    for name in value:
        ours = name.casefold() in _OURS or name.casefold().startswith(_BEGIN_OURS)
        if not _HEADER.fullmatch(name) or ours:
            raise ValueError(f"found the header {name!r}, which cannot be set here")
    return {name: _setting(setting) for name, setting in value.items()}


def _some(value: Any, accepted: tuple[str, ...] | None) -> tuple[str, ...]:
    """A list of texts that is not empty, all of them among those `accepted`."""
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
        raise ValueError(f"found {value!r}; a list of texts is accepted")
    for text in value:
        if accepted is not None and text not in accepted:
            raise ValueError(f"found '{text}'; accepted are {', '.join(accepted)}")
    return tuple(value)
