"""Transcripts of pages: fences of `console` with commands and what they print, compared with what was printed by form.

A line `$ command` begins a command, which goes on behind a backslash; the lines after it are its output. A line `...` stands for any lines,
`...` in a line for any text, and a number for any number. Blanks and the lines of tables count as one, however many they are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(r"^ *```(\w*)([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
NUMBER = r"\d+(?:[.,:]\d+)*"
COMMANDS = frozenset({"sh", "bash"})
"""The languages of fences that have commands alone."""

ELSEWHERE = re.compile(r"make (?:setup|demo|test)|git clone |cd tidemark$")
"""What pages with transcripts have a reader type that is run by something else: RUN_BY in tests/unit/test_transcripts.py."""

ANY_LINES = "..."
SLOW = "5 s so far; asking "
"""How the line begins that a command adds where the machine has much else to do."""


@dataclass(frozen=True)
class Step:
    """A command with the output that the page shows, or a file that it wants written."""

    command: str = ""
    shown: tuple[str, ...] = ()
    file: str = ""
    text: str = ""


def steps(page: str) -> Iterator[Step]:
    """In the order of the page."""
    for language, words, body in FENCE.findall(page):
        if title := re.search(r'title="([^"]+)"', words):
            yield Step(file=title[1], text=body)
        elif language == "console":
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, _, output = re.sub(r"\\\n", "", part).partition("\n")
                yield Step(command, tuple(output.splitlines()))


def _plain(line: str) -> str:
    return re.sub(r"([━─═])\1+", r"\1", " ".join(line.split()))


def _pattern(line: str) -> str:
    if line.strip() == ANY_LINES:
        return r"(?:[^\n]*\n)*?"
    texts = (NUMBER.join(map(re.escape, re.split(NUMBER, text))) for text in _plain(line).split(ANY_LINES))
    return r"[^\n]*".join(texts) + r"\n"


def differs(shown: tuple[str, ...], printed: str) -> str:
    """The first line of the page that nothing printed has the form of; "" where all is as shown."""
    printed_lines = (_plain(each) for each in printed.splitlines())
    lines = [line for line in printed_lines if line and not line.startswith(SLOW)]
    text = "".join(f"{line}\n" for line in lines)
    wanted = [line for line in shown if line.strip()]
    if re.fullmatch("".join(map(_pattern, wanted)), text):
        return ""
    for count, line in enumerate(wanted, 1):
        if not re.match("".join(map(_pattern, wanted[:count])), text):
            return f"{line!r} is shown, and this was printed:\n{printed}"
    return f"more was printed than is shown:\n{printed}"


def lines_of_shell(block: str) -> list[str]:
    """Its commands as they are typed, each in one line."""
    lines = re.sub(r"\\\n", " ", block).splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def shell_commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a shell text, those in `$(...)` and behind pipes too; `<name>` is something that the reader fills in."""
    text = re.sub(r"<[^<>\n|&;]*>", "X", re.sub(r"\\\n", " ", text))
    while inner := re.search(r"\$\(([^()]*)\)", text):
        yield from shell_commands(inner[1])
        text = f"{text[: inner.start()]}X{text[inner.end() :]}"
    line = ""
    for each in text.splitlines():
        line = f"{line}\n{each}" if line else each
        words = shlex.shlex(line, posix=True, punctuation_chars="|&;")
        words.whitespace_split = True
        try:
            found = list(words)
        except ValueError:  # a quotation goes on in the next line
            continue
        line = ""
        for part in re.split(r"\0[|&;]+\0", "\0".join(["", *found, ""]).replace("\0\0", "\0")):
            command = [word for word in re.sub(r"\0\d?(?:>>?|<)\0[^\0]+", "", part).split("\0") if word]
            while command and re.match(r"(?:export$|\w+=)", command[0]):
                del command[0]
            if command:
                yield command
