"""Bicep's text as tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

PLAIN = re.compile(
    r"(?P<space>[ \t\r]+|//[^\n]*|/\*[\s\S]*?\*/)|(?P<newline>\n)|(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>\.\.\.|\.\?|\[\?|=>|\?\?|&&|\|\||==|!=|=~|!~|<=|>=|[-+*/%!<>=?:.,@()\[\]{}|])"
)
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", "\\": "\\", "$": "$"}


class BicepSyntaxError(Exception):
    """Text that is no Bicep, or Bicep that this reader does not know; names line and what was found."""


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is name, number, sign, newline, end, or text: then `parts` are texts and token lists by turns."""

    kind: str
    value: str
    line: int
    parts: tuple[str | list[Token], ...] = ()


def tokens_of(text: str) -> list[Token]:
    tokens, end = _until(text, 0, closing="")
    assert end == len(text)
    return tokens


def _until(text: str, position: int, *, closing: str) -> tuple[list[Token], int]:
    """Tokens up to the end of the text, or to the brace that closes an interpolation."""
    tokens: list[Token] = []
    depth = 0
    while position < len(text):
        line = text.count("\n", 0, position) + 1
        if text.startswith("'''", position):
            end = text.find("'''", position + 3)
            if end < 0:
                raise BicepSyntaxError(f"line {line}: a ''' has no end")
            value = text[position + 3 : end].removeprefix("\n")
            tokens.append(Token("text", "", line, (value,)))
            position = end + 3
            continue
        if text[position] == "'":
            parts, position = _text(text, position + 1, line)
            tokens.append(Token("text", "", line, parts))
            continue
        match = PLAIN.match(text, position)
        if match is None:
            raise BicepSyntaxError(f"line {line}: {text[position]!r} begins nothing that is known")
        kind, value = str(match.lastgroup), match.group()
        if closing and value == "}" and depth == 0:
            return [*tokens, Token("end", "", line)], position
        depth += {"{": 1, "}": -1}.get(value, 0)
        position = match.end()
        if kind != "space":
            tokens.append(Token(kind, value, line))
    return [*tokens, Token("end", "", text.count("\n") + 1)], position


def _text(text: str, position: int, line: int) -> tuple[tuple[str | list[Token], ...], int]:
    parts: list[str | list[Token]] = []
    plain = ""
    while position < len(text) and text[position] != "\n":
        character = text[position]
        if character == "'":
            return (*parts, plain), position + 1
        if character == "\\":
            plain += ESCAPES[text[position + 1]]
            position += 2
        elif text.startswith("${", position):
            inner, position = _until(text, position + 2, closing="}")
            parts += [plain, inner]
            plain, position = "", position + 1
        else:
            plain += character
            position += 1
    raise BicepSyntaxError(f"line {line}: a text has no end")
