"""Values of a document that somebody else wrote, by the type that is wanted: what is of another type is refused with its place. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from tidemark.foundation.sanitize import one_line, shorten

_ISO = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.\d+)?S)?)?", re.IGNORECASE)
_CLOCK = re.compile(r"(?:(\d+) days?, |(\d+)\.)?(\d+):(\d+):(\d+)")
_FLAGS = {"true": True, "false": False}
_MOST = 1e12
_ABSENT = ("", "null", "~")
"""What a text is that stands for no value: YAML is read as texts."""

_ARM = re.compile(r"\[(?!\[).*\]", re.DOTALL)
_PLACEHOLDERS = (
    (re.compile(r"\{\{.*?\}\}", re.DOTALL), "a template of Helm is not rendered here: give what `helm template CHART` prints"),
    (re.compile(r"\$\{\w[^}]*\}|\$\([A-Z]\w*\)|#\{.+?\}#"), "a variable is not replaced here: give what is deployed"),
)  # fmt: skip
"""What stands in the place of a value, to be filled in by another tool, and what to do about it."""


class UnreadableError(ValueError):
    """The document does not hold what it has to; the text says where, what was found, and what is accepted."""


class Given:
    """One table of the document. Names are found in any case: Azure's own tools differ in theirs."""

    def __init__(self, value: Any, path: str) -> None:
        self.path = path
        known = value if isinstance(value, Mapping) else {}
        self._values = {str(key).casefold(): member for key, member in known.items()}
        self._unasked = {str(key).casefold(): one_line(str(key)) for key in known}

    def has(self, name: str) -> bool:
        """Whether there is a value; null, and a text without any, are none."""
        value = self._values.get(name.casefold())
        self._unasked.pop(name.casefold(), None)
        return not (value is None or (isinstance(value, str) and value.strip().casefold() in _ABSENT))

    def is_filled(self, name: str) -> bool:
        """Whether there is a value that is no empty list."""
        return self.has(name) and self._values[name.casefold()] != []

    @property
    def unasked(self) -> tuple[str, ...]:
        """The names, as they are written, of values that nobody has asked for."""
        return tuple(name for key, name in dict(self._unasked).items() if self.has(key))

    def names(self) -> tuple[str, ...]:
        """The names of the values, in lower case."""
        return tuple(self._values)

    def at(self, *names: str) -> Given:
        """A table within tables; an empty one where it is not there."""
        inner: Given = self
        for name in names:
            value = inner._values.get(name.casefold())
            if isinstance(value, str) and unresolved(value):
                raise inner.unreadable(name, "a table is accepted")
            inner = Given(value, f"{inner.path}.{name}")
        return inner

    def tables(self, name: str) -> list[Given]:
        value = self._values.get(name.casefold())
        if isinstance(value, str) and self.has(name):
            raise self.unreadable(name, "a list is accepted")
        entries = value if isinstance(value, list) else []
        return [Given(entry, f"{self.path}.{name}[{index}]") for index, entry in enumerate(entries)]

    def listed(self, name: str) -> list[Any]:
        """The plain values of a list; a single one is a list of one."""
        value = self._values.get(name.casefold())
        entries = value if isinstance(value, list) else [value] if self.has(name) else []
        for entry in entries:
            if isinstance(entry, str) and (why := unresolved(entry)):
                raise UnreadableError(f"{self.path}.{name}: found {shorten(one_line(entry), 60)}; {why}")
        return [entry for entry in entries if isinstance(entry, str | int | float)]

    def text(self, name: str, default: str = "") -> str:
        """A text that says what it means: one that another tool has to fill in first is refused."""
        text = self.raw(name, default)
        if self.has(name) and unresolved(text):
            raise self.unreadable(name, "a value is accepted")
        return text

    def raw(self, name: str, default: str = "") -> str:
        """A text as it stands, such as a name, which may look like what another tool has to fill in."""
        value = self._values.get(name.casefold())
        if not self.has(name):
            return default
        if isinstance(value, Mapping | list):
            raise self.unreadable(name, "a text is accepted")
        return one_line(str(value)).strip()

    def require(self, name: str) -> str:
        """A text that has to be there."""
        if not self.has(name):
            raise UnreadableError(f"{self.path}.{name} is missing")
        return self.text(name)

    def flag(self, name: str, *, default: bool) -> bool:
        if not self.has(name):
            return default
        flag = _FLAGS.get(self.text(name).casefold())
        if flag is None:
            raise self.unreadable(name, "true or false is accepted")
        return flag

    def number(self, name: str, default: float) -> float:
        if not self.has(name):
            return default
        value = self._values[name.casefold()]
        try:
            number = float("" if isinstance(value, bool) else value)
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if not isfinite(number) or abs(number) > _MOST:
            raise self.unreadable(name, "a number is accepted")
        return number

    def whole(self, name: str, default: int, most: int = 1_000_000) -> int:
        number = self.number(name, default)
        if number != int(number) or not 0 <= number <= most:
            raise self.unreadable(name, f"a whole number of 0 to {most} is accepted")
        return int(number)

    def seconds(self, name: str, default: float) -> float:
        """Of `PT5M`, `0:05:00` or `1 day, 0:00:00`."""
        if not self.has(name):
            return default
        text = self.text(name)
        if (match := _ISO.fullmatch(text)) and any(match.groups()):
            parts = match.groups()
        elif match := _CLOCK.fullmatch(text):
            parts = (match[1] or match[2], match[3], match[4], match[5])
        else:
            raise self.unreadable(name, "a duration such as PT5M is accepted")
        units = zip(parts, (86_400, 3_600, 60, 1), strict=True)
        seconds = sum(float(part[:9]) * unit for part, unit in units if part)
        if seconds > 1e8:
            raise self.unreadable(name, "a duration of at most some years is accepted")
        return seconds

    def seconds_of(self, name: str, default: float) -> float:
        return float(self.whole(name, int(default), 10_000_000))

    def pairs(self) -> list[tuple[str, str]]:
        """Names, in lower case, with those values that are plain."""
        plain = (name for name, value in self._values.items() if isinstance(value, str | int | float))
        return [(one_line(name), self.raw(name)) for name in plain]

    def unreadable(self, name: str, accepted: str) -> UnreadableError:
        value = self._values.get(name.casefold())
        nested = isinstance(
            value, Mapping | list
        )  # which may refer to itself, or to more than there is memory for
        text = "a table or a list" if nested else one_line(str(value))
        hint = unresolved(text)
        return UnreadableError(
            f"{self.path}.{name}: found {shorten(text, 60)}; {accepted}{hint and f'; {hint}'}"
        )


def unresolved(text: str) -> str:
    """Why a text says nothing yet: another tool has to fill it in. Empty for any other."""
    if _ARM.fullmatch(text):
        return "an expression of a template is not resolved here: give what is deployed, by `az monitor autoscale show`"
    return next((why for pattern, why in _PLACEHOLDERS if pattern.search(text)), "")


def objects_in(document: Any, levels: int = 4) -> Iterator[Any]:
    """The objects of a document: of a list, of a template's resources (by names, too, as Bicep writes them) and of those of its modules,
    of a list of Kubernetes, or the document itself.
    """
    members = document
    if isinstance(document, Mapping):
        inner = document.get("properties")
        template = document.get("template") or (isinstance(inner, Mapping) and inner.get("template"))
        if isinstance(template, Mapping) and "resources" in template:
            document = template
        lists = (document[key] for key in ("resources", "items", "value") if key in document)
        members = next((candidate for candidate in lists if isinstance(candidate, list)), None)
        if members is None and isinstance(named := document.get("resources"), Mapping):
            members = list(named.values())
    if isinstance(members, list) and levels:
        for member in members:
            yield from objects_in(member, levels - 1)
    elif isinstance(document, Mapping):
        yield document
