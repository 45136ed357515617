"""Query text to tokens."""

import re
from typing import Any, NamedTuple

from devstack.cosmos.protocol.errors import bad_request

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:0[xX][0-9a-fA-F]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?))
    | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<parameter>@\w+)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<symbol><>|!=|<=|>=|\|\||\?\?|[-+*/%=<>()\[\]{},.:?])
    )""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class Token(NamedTuple):
    """`kind` is number, string, parameter, name, symbol or end; `value` the number, text or upper-case name."""

    kind: str
    value: Any
    text: str


END = Token("end", "", "the end")


def tokens(text: str) -> list[Token]:
    """Raises CosmosError (400) at the first character that starts no token."""
    parts: list[Token] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise bad_request(f"Syntax error in the query near {text[position : position + 20]!r}")
        kind, part = match.lastgroup, match[match.lastgroup]
        parts.append(Token(kind, _value(kind, part), part))
        position = match.end()
    parts.append(END)
    return parts


def _value(kind: str, part: str) -> Any:
    if kind == "number":
        if part[:2] in ("0x", "0X"):
            return int(part, 16)
        return int(part) if part.isdecimal() else float(part)
    if kind == "string":
        return re.sub(
            r"\\(u[0-9a-fA-F]{4}|.)",
            lambda match: (
                chr(int(match[1][1:], 16)) if len(match[1]) == 5 else _ESCAPES.get(match[1], match[1])
            ),
            part[1:-1],
        )
    return part.upper() if kind == "name" else part
