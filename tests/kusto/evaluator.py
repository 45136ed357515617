"""What a parsed query makes of rows: lists of dicts, with the types of Kusto as those of Python.

string: str (never None: what is missing is ''); long: int; real: float; bool; datetime; timespan: timedelta; None for
what is missing of these; dynamic: Dynamic.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import floor
from typing import Any

from tests.kusto.parser import KqlError, parse

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Dynamic:
    """A value out of JSON: Kusto wants it cast before anything is done with it."""

    value: Any


class Workspace:
    """Tables (a name, its columns and rows), and functions by name; `now` is that of the query."""

    def __init__(self, tables, functions=None, *, now):
        self.tables = tables
        self.functions = {name: parse(text) for name, text in (functions or {}).items()}
        self.now = now
        self.made = {}

    def run(self, text):
        return Run(self).query(parse(text))


class Run:
    def __init__(self, workspace):
        self.workspace = workspace
        self.names = {}

    def query(self, parsed):
        lets, result = parsed
        for name, meaning in lets:
            tabular = meaning[0] == "pipeline"
            self.names[name] = (
                ("rows", self.pipeline(meaning)) if tabular else ("scalar", self.value(meaning, {}))
            )
        return self.pipeline(result)

    def pipeline(self, parsed):
        source, *steps = parsed[1]
        rows = self.source(source)
        for operator, *arguments in steps:
            rows = getattr(self, f"step_{operator.replace('-', '_')}")(rows, *arguments)
        return rows

    def source(self, source):
        kind, *rest = source
        if kind == "print":
            return [{name: self.value(expression, {}) for name, expression in rest[0]}]
        if kind == "union":
            return self.union(*rest)
        (name,) = rest
        if name in self.names:
            what, rows = self.names[name]
            if what != "rows":
                raise KqlError(f"{name!r} is no table")
            return rows
        if name in self.workspace.functions:
            made = self.workspace.made  # rows are never changed, so a function is run once
            if name not in made:
                made[name] = Run(self.workspace).query(self.workspace.functions[name])
            return made[name]
        if name in self.workspace.tables:
            return [dict(row) for row in self.workspace.tables[name]]
        raise KqlError(f"no table or function {name!r}")

    def union(self, fuzzy, parts):
        found = []
        for part in parts:
            try:
                found += self.pipeline(part)
            except KqlError:
                if not fuzzy or self.known(part):
                    raise
        columns = list(dict.fromkeys(name for row in found for name in row))
        return [{name: row.get(name) for name in columns} for row in found]

    def known(self, part):
        name = part[1][0][-1]
        return name in self.names or name in self.workspace.functions or name in self.workspace.tables

    # -- operators

    def step_where(self, rows, condition):
        return [row for row in rows if self.truth(condition, row)]

    def truth(self, condition, row):
        found = self.value(condition, row)
        if found is not None and not isinstance(found, bool):
            raise KqlError(f"where: {found!r} is no bool")
        return found is True

    def step_extend(self, rows, values):
        return [row | self.assigned(values, row) for row in rows]

    def step_project(self, rows, values):
        return [self.assigned(values, row) for row in rows]

    def assigned(self, values, row):
        return {self.name_of(name, each): self.value(each, row) for name, each in values}

    @staticmethod
    def name_of(name, expression):
        if name is not None:
            return name
        if expression[0] == "column":
            return expression[1]
        if expression[0] == "call" and expression[2] and expression[2][0][0] == "column":
            return f"{expression[1]}_{expression[2][0][1]}"
        raise KqlError(f"needs a name: {expression!r}")

    def step_distinct(self, rows, values):
        found = (self.assigned(values, row) for row in rows)
        return list({tuple(each.items()): each for each in found}.values())

    def step_take(self, rows, count):
        return rows[: self.value(count, {})]

    def step_order(self, rows, by):
        for expression, direction in reversed(by):
            key = [(self.value(expression, row), row) for row in rows]
            if any(isinstance(value, Dynamic) for value, _ in key):
                raise KqlError("order by a dynamic value")
            key.sort(
                key=lambda pair: (
                    (pair[0] is not None, pair[0] or 0) if not isinstance(pair[0], str) else (True, pair[0])
                ),
                reverse=direction == "desc",
            )
            rows = [row for _, row in key]
        return rows

    def step_mv_expand(self, rows, name, expression):
        name = self.name_of(name, expression)
        found = []
        for row in rows:
            listed = self.value(expression, row)
            if not isinstance(listed, Dynamic):
                raise KqlError(f"mv-expand: {listed!r} is not dynamic")
            inner = listed.value
            if isinstance(inner, dict):
                inner = [{key: value} for key, value in inner.items()]
            found += [row | {name: Dynamic(each)} for each in (inner or [None])]
        return found

    def step_join(self, rows, flavor, other, column):
        if flavor not in {"leftouter", "inner"}:
            raise KqlError(f"join kind {flavor!r}")
        there = self.pipeline(other)
        columns = list(there[0]) if there else []
        found = []
        for row in rows:
            matches = [each for each in there if each[column] == row[column]]
            if not matches and flavor == "leftouter":
                matches = [dict.fromkeys(columns)]
            for match in matches:
                renamed = {f"{name}1" if name in row else name: value for name, value in match.items()}
                found.append(row | renamed)
        return found

    def step_summarize(self, rows, values, by):
        groups = {}
        for row in rows:
            key = self.assigned(by, row)
            if any(isinstance(value, Dynamic) for value in key.values()):
                raise KqlError(f"summarize by a dynamic value: {key!r}")
            groups.setdefault(tuple(key.values()), (key, []))[1].append(row)
        if not by and not groups:
            groups[()] = ({}, [])
        return [key | self.aggregated(values, inside) for key, inside in groups.values()]

    def aggregated(self, values, rows):
        found = {}
        for name, expression in values:
            if expression[0] != "call" or expression[1] not in AGGREGATES:
                raise KqlError(f"not an aggregate: {expression!r}")
            kind, arguments = expression[1], expression[2]
            if kind == "arg_max":
                found |= self.arg_max(name, arguments, rows)
                continue
            columns = [[self.value(argument, row) for row in rows] for argument in arguments]
            if any(isinstance(value, Dynamic) for column in columns for value in column):
                raise KqlError(f"{kind} of a dynamic value")
            found[name or self.name_of(name, expression)] = AGGREGATES[kind](len(rows), *columns)
        return found

    def arg_max(self, name, arguments, rows):
        by, *others = arguments
        known = [row for row in rows if self.value(by, row) is not None]
        best = max(known, key=lambda row: self.value(by, row), default=None)
        named = [
            (name or self.name_of(None, by), by),
            *((self.name_of(None, other), other) for other in others),
        ]
        return {key: None if best is None else self.value(each, best) for key, each in named}

    # -- expressions

    def value(self, expression, row):
        kind, *rest = expression
        if kind in {"value", "text"}:
            return rest[0]
        if kind == "span":
            return timedelta(seconds=rest[0])
        if kind == "dynamic":
            return Dynamic(rest[0])
        if kind == "column":
            return self.column(rest[0], row)
        if kind == "member":
            return member(self.value(rest[0], row), self.value(rest[1], row))
        if kind == "call":
            return self.call(*rest, row)
        if kind in {"and", "or"}:
            return self.logic(kind, *(self.value(each, row) for each in rest))
        if kind in {"in", "!in"}:
            found = self.value(rest[0], row)
            no_dynamic(kind, found)
            return (found in [self.value(each, row) for each in rest[1]]) is (kind == "in")
        return binary(kind, *(self.value(each, row) for each in rest))

    def column(self, name, row):
        if name in row:
            return row[name]
        what, found = self.names.get(name, ("", None))
        if what != "scalar":
            raise KqlError(f"no column {name!r} among {', '.join(row)}")
        return found

    @staticmethod
    def logic(kind, left, right):
        for each in (left, right):
            if each is not None and not isinstance(each, bool):
                raise KqlError(f"{kind}: {each!r} is no bool")
        if kind == "and":
            return False if False in (left, right) else None if None in (left, right) else True
        return True if True in (left, right) else None if None in (left, right) else False

    def call(self, name, arguments, row):
        if name == "ago":
            return self.workspace.now - self.value(arguments[0], row)
        if name in {"iff", "iif"}:
            return self.value(arguments[1] if self.value(arguments[0], row) is True else arguments[2], row)
        if name not in FUNCTIONS:
            raise KqlError(f"unknown function {name!r}")
        return FUNCTIONS[name](*(self.value(argument, row) for argument in arguments))


def no_dynamic(what, *values):
    for value in values:
        if isinstance(value, Dynamic):
            raise KqlError(f"{what}: a dynamic value needs a cast: {value.value!r}")


def member(found, key):
    if not isinstance(found, Dynamic):
        raise KqlError(f"{found!r} has no members")
    inside = found.value
    if isinstance(inside, dict):
        return Dynamic(inside.get(key))
    return (
        Dynamic(inside[key])
        if isinstance(inside, list) and isinstance(key, int) and key < len(inside)
        else Dynamic(None)
    )


NUMBERS = (int, float)


def binary(sign, left, right):
    no_dynamic(sign, left, right)
    if left is None or right is None:
        return None
    if sign in TEXTS:
        if not isinstance(left, str) or not isinstance(right, str):
            raise KqlError(f"{sign}: texts only, found {left!r} and {right!r}")
        return TEXTS[sign](left, right)
    alike = type(left) is type(right) or (isinstance(left, NUMBERS) and isinstance(right, NUMBERS))
    if sign in COMPARISONS:
        if not alike:
            raise KqlError(f"{left!r} {sign} {right!r}: of different types")
        return COMPARISONS[sign](left, right)
    if isinstance(left, str) or isinstance(right, str):
        raise KqlError(f"{left!r} {sign} {right!r}: no numbers")
    return arithmetic(sign, left, right)


def arithmetic(sign, left, right):
    if sign == "/" and isinstance(left, timedelta) and isinstance(right, timedelta):
        return left / right
    if sign == "/":
        if not right:
            return None
        return left // right if isinstance(left, int) and isinstance(right, int) else left / right
    return {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "%": lambda: left % right,
    }[sign]()


def has(text, word):
    """A whole term: letters and digits."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", text, re.IGNORECASE) is not None


TEXTS = {
    "has": has,
    "contains": lambda text, part: part.lower() in text.lower(),
    "startswith": lambda text, part: text.lower().startswith(part.lower()),
    "endswith": lambda text, part: text.lower().endswith(part.lower()),
    "=~": lambda text, other: text.lower() == other.lower(),
}
COMPARISONS = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def inner(found):
    return found.value if isinstance(found, Dynamic) else found


def to_number(kind):
    def cast(found):
        found = inner(found)
        try:
            return None if found is None or found == "" else kind(found)
        except (TypeError, ValueError):
            return None

    return cast


def to_string(found):
    found = inner(found)
    if found is None:
        return ""
    if isinstance(found, bool):
        return "true" if found else "false"
    return found if isinstance(found, str) else json.dumps(found, separators=(",", ":"))


def to_bool(found):
    found = inner(found)
    return {"true": True, "false": False}.get(found.lower()) if isinstance(found, str) else found


def parse_json(text):
    try:
        return Dynamic(json.loads(text))
    except ValueError:
        return Dynamic(text or None)


def extract(pattern, group, text):
    found = re.search(pattern, text)
    return found.group(group) if found else ""


def bin_(found, size):
    if found is None:
        return None
    if isinstance(found, datetime):
        return EPOCH + floor((found - EPOCH) / size) * size
    return floor(found / size) * size


def missing(found):
    found = inner(found)
    return found is None


def coalesce(*values):
    """The first that is not missing; of texts the first that is not empty."""
    return next((value for value in values if inner(value) is not None and inner(value) != ""), values[-1])


def array_concat(*arrays):
    if not all(isinstance(inner(array), list) for array in arrays):
        return Dynamic(None)
    return Dynamic([item for array in arrays for item in array.value])


FUNCTIONS = {
    "array_concat": array_concat,
    "bag_keys": lambda found: Dynamic(list(inner(found)) if isinstance(inner(found), dict) else None),
    "bin": bin_,
    "coalesce": coalesce,
    "extract": extract,
    "isempty": lambda found: to_string(found) == "",
    "isnotempty": lambda found: to_string(found) != "",
    "isnotnull": lambda found: not missing(found),
    "isnull": missing,
    "pack_array": lambda *values: Dynamic([inner(value) for value in values]),
    "parse_json": parse_json,
    "round": lambda found, digits: None if found is None else round(found, digits),
    "strcat": lambda *values: "".join(map(to_string, values)),
    "tobool": to_bool,
    "todouble": to_number(float),
    "toint": to_number(int),
    "tolong": to_number(int),
    "tostring": to_string,
    "unixtime_milliseconds_todatetime": lambda found: (
        None if found is None else EPOCH + timedelta(milliseconds=found)
    ),
}


def known(values):
    return [value for value in values if value is not None]


AGGREGATES = {
    "arg_max": None,
    "avg": lambda _, values: sum(known(values)) / len(known(values)) if known(values) else None,
    "count": lambda count: count,
    "countif": lambda _, values: sum(value is True for value in values),
    "max": lambda _, values: max(known(values), default=None),
    "min": lambda _, values: min(known(values), default=None),
    "sum": lambda _, values: sum(known(values)),
    "take_any": lambda _, values: next(iter(known(values)), None),
}
