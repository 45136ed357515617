"""The text of a query as nested tuples: ("operator", arguments). Raises KqlError for what it does not know."""

import re

TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*)
    |(?P<verbatim>@'(?:[^']|'')*'|@"(?:[^"]|"")*")
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<span>\d+(?:\.\d+)?(?:ms|d|h|m|s)\b)
    |(?P<real>\d+\.\d+)
    |(?P<long>\d+)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<sign>==|!=|<=|>=|=~|\.\.|[-+*/%<>=()\[\],;|.!])""",
    re.VERBOSE,
)
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
KEYWORDS = {
    "kind",
    "first",
    "last",
    "by",
    "on",
    "asc",
    "desc",
    "and",
    "or",
    "in",
    "between",
    "has",
    "contains",
    "let",
}
"""Names that Kusto takes for columns only in brackets, where they are given."""
COMPARING = ("==", "!=", "<=", ">=", "<", ">", "=~", "has", "contains", "startswith", "endswith")
TABULAR = {"union", "print"}


class KqlError(Exception):
    """A query that Kusto would refuse, or that uses what the evaluator does not know."""


def tokens(text):
    found, position = [], 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise KqlError(f"cannot be read: {text[position : position + 40]!r}")
        if match.lastgroup != "skip":
            found.append((match.lastgroup, match.group()))
        position = match.end()
    return [*found, ("end", "")]


def parse(text):
    """(names and what they stand for, the pipeline)."""
    return Parser(tokens(text)).query()


class Parser:
    def __init__(self, found):
        self.found, self.at = found, 0

    def peek(self, *texts):
        kind, text = self.found[self.at]
        return kind in {"name", "sign"} and text in texts

    def take(self, *texts):
        if self.peek(*texts):
            self.at += 1
            return self.found[self.at - 1][1]
        return None

    def need(self, text):
        if not self.take(text):
            raise KqlError(f"expected {text!r}, found {self.found[self.at][1]!r}")

    def name(self):
        if self.take("["):
            kind, text = self.found[self.at]
            if kind != "text":
                raise KqlError(f"expected a name in quotes, found {text!r}")
            self.at += 1
            self.need("]")
            return text[1:-1]
        kind, text = self.found[self.at]
        if kind != "name":
            raise KqlError(f"expected a name, found {text!r}")
        self.at += 1
        return text

    def new_name(self):
        if self.found[self.at][1] in KEYWORDS:
            raise KqlError(f"the name {self.found[self.at][1]!r} has to be in brackets here")
        return self.name()

    def query(self):
        lets = []
        while self.take("let"):
            name = self.new_name()
            self.need("=")
            lets.append((name, self.pipeline() if self.is_tabular() else self.expression()))
            self.need(";")
        result = self.pipeline()
        if self.found[self.at][0] != "end":
            raise KqlError(f"unexpected: {self.found[self.at][1]!r}")
        return lets, result

    def is_tabular(self):
        """Whether tables begin here: by their names, as of what a workspace has, or by what follows."""
        text = self.found[self.at][1]
        return (
            self.found[self.at + 1][1] == "|"
            or text in TABULAR
            or text.startswith(("Tidemark", "App", "Container"))
        )

    # -- pipelines

    def pipeline(self):
        steps = [self.source()]
        while self.take("|"):
            operator = self.name()
            if operator in {"project", "mv"} and self.take("-"):
                operator += f"-{self.name()}"
            method = getattr(self, f"step_{operator.replace('-', '_')}", None)
            if method is None:
                raise KqlError(f"unknown operator {operator!r}")
            steps.append((operator, *method()))
        return ("pipeline", steps)

    def source(self):
        if self.take("union"):
            fuzzy = bool(self.take("isfuzzy"))
            if fuzzy:
                self.need("=")
                self.need("true")
            return ("union", fuzzy, self.listed(self.part))
        if self.take("print"):
            return ("print", self.listed(self.assigned))
        name = self.name()
        called = bool(self.take("("))
        if called:
            self.need(")")
        return ("function" if called else "table", name)

    def part(self):
        if self.take("("):
            inner = self.pipeline()
            self.need(")")
            return inner
        return ("pipeline", [self.source()])

    def listed(self, item):
        found = [item()]
        while self.take(","):
            found.append(item())
        return found

    def assigned(self):
        """(name or None, expression)."""
        before = self.at
        if self.found[self.at][0] == "name" or self.peek("["):
            try:
                name = self.new_name()
            except KqlError:
                name = None
            if name is not None and self.take("="):
                return name, self.expression()
            if name is None and self.found[self.at + 1][1] == "=":
                raise KqlError(f"the name {self.found[self.at][1]!r} has to be in brackets here")
        self.at = before
        return None, self.expression()

    def step_where(self):
        return (self.expression(),)

    def step_extend(self):
        return (self.listed(self.assigned),)

    step_project = step_extend
    step_distinct = step_extend

    def step_summarize(self):
        values = [] if self.peek("by") else self.listed(self.assigned)
        return values, self.listed(self.assigned) if self.take("by") else []

    def step_order(self):
        self.need("by")
        return (self.listed(self.ordered),)

    def ordered(self):
        return self.new_name_or_column(), self.take("asc", "desc") or "desc"

    def new_name_or_column(self):
        return self.expression()

    def step_take(self):
        return (self.expression(),)

    def step_mv_expand(self):
        return self.assigned()

    def step_join(self):
        self.need("kind")
        self.need("=")
        flavor = self.name()
        other = self.part()
        self.need("on")
        return flavor, other, self.name()

    # -- expressions, by precedence

    def expression(self):
        found = self.conjunction()
        while self.take("or"):
            found = ("or", found, self.conjunction())
        return found

    def conjunction(self):
        found = self.comparison()
        while self.take("and"):
            found = ("and", found, self.comparison())
        return found

    def comparison(self):
        left = self.sum()
        if sign := self.take(*COMPARING):
            return (sign, left, self.sum())
        negated = bool(self.take("!"))
        if self.take("in"):
            self.need("(")
            choices = self.listed(self.expression)
            self.need(")")
            return ("!in" if negated else "in", left, choices)
        if negated:
            raise KqlError("unexpected '!'")
        return left

    def sum(self):
        found = self.product()
        while sign := self.take("+", "-"):
            found = (sign, found, self.product())
        return found

    def product(self):
        found = self.member()
        while sign := self.take("*", "/", "%"):
            found = (sign, found, self.member())
        return found

    def member(self):
        found = self.atom()
        while sign := self.take(".", "["):
            if sign == "." and self.peek("by"):
                raise KqlError("the name 'by' has to be in brackets here")
            if sign == ".":
                found = ("member", found, ("text", self.name()))
            else:
                found = ("member", found, self.expression())
                self.need("]")
        return found

    def atom(self):
        if self.take("("):
            inner = self.expression()
            self.need(")")
            return inner
        if self.take("-"):
            return ("-", ("value", 0), self.member())
        kind, text = self.found[self.at]
        if kind in {"text", "verbatim", "span", "real", "long"}:
            self.at += 1
            return LITERALS[kind](text)
        name = self.name()
        if name in {"true", "false"}:
            return ("value", name == "true")
        if self.take("("):
            if name == "dynamic":
                return self.dynamic()
            arguments = [] if self.peek(")") else self.listed(self.expression)
            self.need(")")
            return ("call", name, arguments)
        return ("column", name)

    def dynamic(self):
        self.need("[")
        self.need("]")
        self.need(")")
        return ("dynamic", [])


def _plain(text):
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _span(text):
    number, unit = re.fullmatch(r"([\d.]+)(\D+)", text).groups()
    return ("span", float(number) * SECONDS[unit])


LITERALS = {
    "text": lambda text: ("text", _plain(text)),
    "verbatim": lambda text: ("text", text[2:-1]),
    "span": _span,
    "real": lambda text: ("value", float(text)),
    "long": lambda text: ("value", int(text)),
}
