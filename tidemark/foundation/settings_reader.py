"""Reads a TOML tree with types. It collects every problem instead of stopping at the first. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from math import inf
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from tidemark.foundation.sanitize import one_line, sanitize_line, secret_in, shorten, without_secrets
from tidemark.foundation.secrets.configuration import holds_secret
from tidemark.foundation.wording import count_text, did_you_mean, why_refused

_SETTING = re.compile(r"%([A-Za-z_][A-Za-z0-9_]*)%")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%")
_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]#]+?)\s*\]\]?\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(r"^\s*([A-Za-z0-9_\-\"'.]+)\s*=")

_T = TypeVar("_T")


class Problem(Struct, frozen=True):
    """One problem: where it is (file, line if known, key path), what was found, and what is accepted."""

    where: str
    text: str
    line: float = inf

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class ConfigError(Exception):
    """The configuration cannot be used. `problems` has all of its problems, by the lines of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(
            Problem(without_secrets(problem.where), without_secrets(problem.text), problem.line)
            for problem in sorted(problems, key=lambda problem: problem.line)
        )
        count = count_text(len(self.problems), "problem")
        super().__init__(f"{count} in the configuration:\n" + "\n".join(f"  {p}" for p in self.problems))


def merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `own` in place of its own, table by table. A list replaces a list."""
    tables = {**base, **own}
    for key in base.keys() & own.keys():
        if isinstance(base[key], Mapping) and isinstance(own[key], Mapping):
            tables[key] = merged(base[key], own[key])
    return tables


SDK_LEVEL = "TIDEMARK_SDK_LOG_LEVEL"
SDK_LOG_LEVEL = "WARNING"
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def read_log_level(settings: Mapping[str, str], name: str = SDK_LEVEL, default: str = SDK_LOG_LEVEL) -> str:
    """The level of a setting, else that of TIDEMARK_SDK_LOG_LEVEL, the lowest at which the Azure SDKs log. Raises ValueError."""
    text = settings.get(name, "").strip()
    level = text.upper() or default
    if level not in LOG_LEVELS:
        raise ValueError(f"{name} is '{shorten(text, 60)}'; accepted: {', '.join(LOG_LEVELS)}")
    return level


def locate(text: str) -> dict[str, int]:
    """Line numbers of a TOML text by key path (`targets.a.rules[0].step`). Best effort, for messages only."""
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    table = ""
    for number, content in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(content)
        if header:
            table = _resolve(
                header.group(2).replace('"', "").replace("'", ""), counts, many=header.group(1) == "[["
            )
            lines.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(content):
            key = assignment.group(1).replace('"', "").replace("'", "")
            lines.setdefault(f"{table}.{key}" if table else key, number)
    return lines


def _resolve(path: str, counts: dict[str, int], *, many: bool) -> str:
    """A header's path with the index of the newest entry after every array of tables on the way."""
    resolved = ""
    parts = [part.strip() for part in path.split(".")]
    for position, part in enumerate(parts):
        resolved = f"{resolved}.{part}" if resolved else part
        if many and position == len(parts) - 1:
            counts[resolved] = counts.get(resolved, -1) + 1
        if resolved in counts:
            resolved = f"{resolved}[{counts[resolved]}]"
    return resolved


class Reader:
    """Reads one table. Every `take` removes a key; `finish` reports the keys that nobody took."""

    def __init__(self, tree: Mapping[str, Any], path: str, shared: Shared) -> None:
        self._rest = dict(tree)
        self._known: list[str] = []
        self.path = path
        self.shared = shared

    def problem(self, key: str, text: str) -> None:
        """Record a problem with a key of this table ('' for the table itself)."""
        self.shared.problem(f"{self.path}.{key}".strip("."), text)

    def has(self, key: str) -> bool:
        return key in self._rest

    def take(self, key: str, default: _T, convert: Callable[[Any], _T]) -> _T:
        """The converted value. `default` if the key is absent or its value is wrong, which is recorded as a problem."""
        self._known.append(key)
        if key not in self._rest:
            return default
        raw = self._rest.pop(key)
        try:
            value = self.shared.resolved(raw)
        except ValueError as error:
            self.problem(key, str(error))
            return default
        try:
            return convert(value)
        except (ValueError, TypeError) as error:
            self.problem(key, str(error) if value == raw else _without_setting(raw, convert))
            return default

    def require(self, key: str, default: _T, convert: Callable[[Any], _T]) -> _T:
        """Like `take`, but an absent key is a problem."""
        if key not in self._rest:
            self._known.append(key)
            self.problem(key, "is missing")
            return default
        return self.take(key, default, convert)

    def found(self, **fields: Callable[[Any], Any]) -> dict[str, Any]:
        """The converted values of those keys that are present. Wrong values are recorded, and left out."""
        read = {key: self.take(key, None, convert) for key, convert in fields.items()}
        return {key: value for key, value in read.items() if value is not None}

    def table(self, key: str, *, defaults: Reader | None = None) -> Reader | None:
        """The sub-table; None if it is absent. Any other value is a problem.

        Keys that the sub-table lacks are taken from `defaults`, also in tables within it.
        """
        base = defaults._rest if defaults is not None else {}  # noqa: SLF001 - the same class
        return self._sub_table(key, base, self.shared)

    def tables(self, key: str) -> list[Reader]:
        """The tables of an array of tables; none if it is absent."""
        self._known.append(key)
        raw = self._rest.pop(key, [])
        if not isinstance(raw, list) or not all(isinstance(item, Mapping) for item in raw):
            self.problem(key, f"found {raw!r}; a list of tables is accepted")
            return []
        return [Reader(item, f"{self.path}.{key}[{i}]", self.shared) for i, item in enumerate(raw)]

    def apart(self, key: str, inherited: Iterable[str]) -> Reader | None:
        """The sub-table; None if it is absent. It inherits the `inherited` keys that it lacks from this table. Its problems are
        recorded separately, in its `shared`, so that the caller can leave it out.
        """
        shared = Shared(self.shared.name, self.shared.lines, self.shared.settings)
        base = {name: self._rest[name] for name in inherited if name in self._rest}
        return self._sub_table(key, base, shared, otherwise={})

    def _sub_table(
        self, key: str, base: Mapping[str, Any], shared: Shared, otherwise: Mapping[str, Any] | None = None
    ) -> Reader | None:
        """The sub-table over `base`; `otherwise`, if there is another value in its place."""
        self._known.append(key)
        if key not in self._rest:
            return None
        table, path = self._rest.pop(key), f"{self.path}.{key}".strip(".")
        if not isinstance(table, Mapping):
            shared.problem(path, f"found {table!r}; a table is accepted")
            table = otherwise
        return None if table is None else Reader(merged(base, table), path, shared)

    def names(self) -> tuple[str, ...]:
        """The keys that were not taken yet."""
        return tuple(self._rest)

    def options(self) -> Options:
        """Take all remaining keys, for a plug-in to check."""
        known = tuple(self._known)
        written = dict(self._rest)
        values = {key: self.take(key, None, lambda value: value) for key in written}
        refused = tuple(key for key, value in values.items() if value is None)
        values = {key: value for key, value in values.items() if value is not None}
        return Options(values, {key: written[key] for key in values}, known, refused)

    def finish(self) -> None:
        """Record a problem for every remaining key, with the most similar known one."""
        for key in self._rest:
            hint = did_you_mean(key, self._known, f"accepted are {', '.join(self._known)}")
            self.problem(key, f"is not a setting here; {hint}")


class Options(Struct, frozen=True):
    """Options of a plug-in: `values` as the plug-in gets them, and `written` as they are in the file, for messages. `beside` are
    the other keys of the table; `refused` are options for which a problem was recorded already.
    """

    values: dict[str, Any]
    written: dict[str, Any]
    beside: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def _without_setting(raw: Any, convert: Callable[[Any], Any]) -> str:
    """The problem of a value from an app setting, described by the text in the file. `Shared` adds the value unless it is secret."""
    try:
        convert(raw)
    except (ValueError, TypeError) as error:
        return str(error)
    return _hidden(raw)


def _hidden(written: Any) -> str:
    return f"found {written!r}; the value of its app setting is not accepted here"


class Shared:
    """What all readers of one file share: its name, line numbers, app settings, and problems."""

    def __init__(self, name: str, lines: Mapping[str, int], settings: Mapping[str, str]) -> None:
        self.name = name
        self.lines = lines
        self.settings = settings
        self.problems: list[Problem] = []
        self._used: dict[str, str] = {}

    def problem(self, path: str, text: str) -> None:
        self.problems.append(Problem(self.where(path), one_line(self._masked(text)), self._line(path) or inf))

    def where(self, path: str) -> str:
        """How messages name a place in the file: file, line if known, and key path."""
        line = self._line(path)
        return sanitize_line(f"{self.name}:{line} {path}" if line else f"{self.name} {path}").strip()

    def _line(self, path: str) -> int | None:
        """The line of a key, or else of the nearest table or list around it."""
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path[: path.rindex("[")] if path.endswith("]") else path.rpartition(".")[0]
        return None

    def _masked(self, text: str) -> str:
        """`text` with the names of app settings in place of their values, and at its end what these hold, secrets aside. Values of fewer
        than four characters stay: they hide nothing, and replacing them would garble the message.
        """
        shown = []
        for name, value in self._used.items():
            for form in {value, repr(value)[1:-1], value.strip()}:
                if len(form) >= 4:
                    text = text.replace(form, f"%{name}%")
            if f"%{name}%" in text and not holds_secret(name, value):
                shown.append(f"%{name}% is '{shorten(value, 100)}'")
        return f"{text} ({', '.join(shown)})" if shown else text

    def resolved(self, value: Any) -> Any:
        """The value with the app setting NAME in place of `%NAME%` in every text. Raises ValueError, which names a missing setting,
        and for a secret in the file itself, because the file's values appear in messages, logs and pages.
        """
        if isinstance(value, str):
            if (kind := secret_in(value)) is not None:
                raise ValueError(
                    f"looks like {kind}, which does not belong into this file: put it into an app setting, and write "
                    "the setting's name here (where an option takes a connection), or %NAME% (for any other)"
                )
            return _SETTING.sub(self._setting, value)
        if isinstance(value, Mapping):
            return {key: self.resolved(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolved(item) for item in value]
        return value

    def _setting(self, match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in self.settings:
            raise ValueError(f"app setting '{name}' (written %{name}%) is not set")
        self._used[name] = self.settings[name]
        return self.settings[name]


def as_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"found {value!r}; text is accepted")
    return value


def as_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"found {value!r}; true or false is accepted")
    return value


def whole(low: int, high: int | None = None) -> Callable[[Any], int]:
    """A converter for whole numbers from `low` to `high`."""

    def convert(value: Any) -> int:
        if isinstance(value, str) and value.strip().isdigit():
            value = int(value)  # an app setting is text
        ok = isinstance(value, int) and not isinstance(value, bool) and value >= low
        if not ok or (high is not None and value > high):
            limit = f"{low} or more" if high is None else f"{low} to {high}"
            raise ValueError(f"found {value!r}; accepted are whole numbers of {limit}")
        return int(value)

    return convert


def share(value: Any) -> float:
    """A number from 0 to 1, or a text such as `5%`."""
    number = value
    if isinstance(value, str) and (match := _PERCENT.fullmatch(value.strip())):
        number = float(match.group(1)) / 100
    if not isinstance(number, int | float) or isinstance(number, bool) or not 0 <= number <= 1:
        raise ValueError(f"found {value!r}; accepted are 0 to 1 or '0%' to '100%'")
    return float(number)


def one_of(choices: Iterable[str]) -> Callable[[Any], str]:
    return partial(_one_of, tuple(choices))


def _one_of(accepted: tuple[str, ...], value: Any) -> str:
    if value not in accepted:
        raise ValueError(f"found {value!r}; accepted are {', '.join(accepted)}")
    return str(value)


def problems_as_written(
    problems: Mapping[str, str], options: Options, again: Callable[[Mapping[str, Any]], Mapping[str, str]]
) -> dict[str, str]:
    """The problems of a plug-in's options, without values of app settings.

    `again` returns the problems of the options as they are written in the file. A problem that it does not return is reported
    without any value.
    """
    problems = {key: text for key, text in problems.items() if key not in options.refused}
    if not problems or options.values == options.written:
        return problems
    as_written = again(options.written)
    return {key: as_written.get(key, _hidden(options.written.get(key))) for key in problems}


@lru_cache(maxsize=256)  # a backtest reads millions of policies, and msgspec reads the annotations each time
def _fields(params_type: Any) -> Mapping[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(params_type)}


def parse_params(
    params_type: Any, options: Mapping[str, Any], *, beside: Iterable[str] = ()
) -> tuple[Any, dict[str, str]]:
    """Convert the options of a plug-in one by one, so that one wrong option does not hide the others.

    Returns (params or None, problems by option name). `params_type` is a msgspec Struct type that may have
    a method `problems()` for cross-field checks. `beside` are further keys of the table, for hints.
    """
    problems: dict[str, str] = {}
    fields = _fields(params_type)
    for option, value in options.items():
        field = fields.get(option)
        if field is None:
            accepted = [*beside, *fields]
            hint = did_you_mean(option, accepted, f"accepted are {', '.join(accepted)}")
            problems[option] = f"is not an option here; {hint}"
            continue
        try:
            msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            problems[option] = why_refused(value, error, field.type)
    for option, field in fields.items():
        if field.required and option not in options:
            problems[option] = "is missing"
    good = {option: value for option, value in options.items() if option not in problems}
    if any(field.required and option not in good for option, field in fields.items()):
        return None, problems
    try:
        params = msgspec.convert(good, params_type)
    except msgspec.ValidationError as error:
        return None, {**problems, "": str(error)}
    check = getattr(params, "problems", None)
    given = dict(check()) if check is not None else {}
    if not problems:
        return params, given
    # A problem of an option that is absent or wrong may only follow from the options that were left out.
    return None, {**{option: text for option, text in given.items() if option in good}, **problems}
