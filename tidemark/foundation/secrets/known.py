"""The secrets that this process knows by value, hidden wherever they stand in a text. Pure. Its state is what it was
given, as a locale's is; a lock keeps the threads apart that add to it.

Whoever reads a secret says so: settings at the start, an identity's tokens as they come, addresses and headers that requests
are made of. Texts that leave pass `without_known`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from threading import Lock

from tidemark.foundation.secrets.configuration import (
    Found,
    Kind,
    names_of,
    of_address,
    of_headers,
    of_settings,
    of_text,
)
from tidemark.foundation.secrets.forms import SHORTEST, forms_of
from tidemark.foundation.secrets.patterns import HIDDEN

PASSING = 50
"""Tokens that are kept, each for an hour or a day. What configuration holds is kept as long as the process runs."""

FEW = 400
"""Texts that are asked for one by one before a line is searched: each takes some 60 ns for a line of 300 characters, and a
search 15,000 ns (measured in November 2026).
"""

_OURS = (
    '{"tidemark":1,"kind":" secret password passphrase token signature connection credential authorization'
)
"""What every line has, and what errors about secrets say. A secret that is a part of it would end all queries, or be told by
what is missing; it is left to its position.
"""


SHORTEST_WRAPPED = 12
"""Characters of a secret that goes on in the next line: shorter words fit into one, and numbers at the ends of two lines of
a table may be a PIN together.
"""


class KnownSecrets:
    """Values, and texts without them."""

    def __init__(self) -> None:
        self._secrets = set[Found]()
        self._passing: list[Found] = []
        self._names = set[str]()
        self._changing = (
            Lock()
        )  # the doctor's checks, and workers' threads, read their settings at the same time
        self._forms: dict[str, tuple[str, ...]] = {}
        """Of each beginning, the forms that begin so, the longest first."""
        self._needles: tuple[str, ...] = ()
        """Every form holds one of these, as long as they are `FEW`."""

    def add(self, secrets: Iterable[Found], *, passing: bool = False) -> None:
        """Again is the same. A secret of fewer than `SHORTEST` characters is left to its position; one that is `passing` is
        forgotten when `PASSING` others came after it.
        """
        with self._changing:
            fresh = {each for each in secrets if len(each.text) >= SHORTEST} - self._secrets
            if not fresh:
                return
            self._secrets |= fresh
            gone = set[Found]()
            if passing:
                self._passing += fresh
                gone, self._passing = set(self._passing[:-PASSING]), self._passing[-PASSING:]
                self._secrets -= gone
            self._prepare(self._secrets if gone else fresh, anew=bool(gone))

    def leave(self, names: Collection[str]) -> None:
        """Names stay in every text, although a part of a secret equals one: a line without its target is in no query, and a
        decision without its metrics is another one when it is replayed.
        """
        with self._changing:
            fresh = {name.casefold() for name in names} - self._names
            self._names |= fresh
            if fresh and any(form.casefold() in fresh for forms in self._forms.values() for form in forms):
                self._prepare(self._secrets, anew=True)

    def _prepare(self, secrets: Iterable[Found], *, anew: bool) -> None:
        """A thread that hides meanwhile finds the older secrets all the time: what it reads is replaced, never changed."""
        forms, needles = ({}, ()) if anew else (dict(self._forms), self._needles)
        fresh = {form for each in secrets for form in forms_of(each.text, parts=each.kind is Kind.SECRET)}
        for form in sorted(fresh, key=len):
            beginning = form[:SHORTEST]
            known = forms.get(beginning, ())
            if form in _OURS or form in known or form.casefold() in self._names:
                continue
            forms[beginning] = tuple(sorted((*known, form), key=len, reverse=True))
            if len(needles) <= FEW and not any(each in form for each in needles):
                needles = (*needles, form)
        self._forms, self._needles = forms, needles

    def hidden(self, text: str) -> str:
        """`text` with `***` for every form of a secret in it, the longest that begins at a place."""
        text = _with_hidden(text, self._ranges(text))
        if "\n" not in text:
            return text
        # A terminal, a table, or a tool whose output is quoted, wraps a long secret: it goes on in the next line.
        ranges = [each for each in self._ranges(_WRAP.sub("", text)) if each[1] - each[0] >= SHORTEST_WRAPPED]
        if not ranges:
            return text
        wraps = [wrap.span() for wrap in _WRAP.finditer(text)]
        begins = [0, *(end for _, end in wraps)]
        ends = [*(begin for begin, _ in wraps), len(text)]
        kept = [at for begin, end in zip(begins, ends, strict=True) for at in range(begin, end)]
        return _with_hidden(text, [(kept[first], kept[end - 1] + 1) for first, end in ranges])

    def _ranges(self, text: str) -> list[tuple[int, int]]:
        forms, needles = self._forms, self._needles
        if len(needles) <= FEW and not any(map(text.__contains__, needles)):
            return []
        found, at = list[tuple[int, int]](), 0
        last = len(text) - SHORTEST
        while at <= last:
            of_here = forms.get(text[at : at + SHORTEST], ())
            form = next(
                (each for each in of_here if text.startswith(each, at) and _is_own(text, at, each)), ""
            )
            if form:
                found.append((at, at + len(form)))
            at += len(form) or 1
        return found


_WRAP = re.compile(r"[ \t\r│┃|]*\n[ \t\r\n│┃|]*")
"""A line break, with the blanks and the frame that a terminal's box puts around it."""


def _with_hidden(text: str, ranges: Iterable[tuple[int, int]]) -> str:
    shown, done = list[str](), 0
    for first, end in ranges:
        shown += [text[done:first], HIDDEN]
        done = end
    return "".join([*shown, text[done:]])


def _is_own(text: str, at: int, form: str) -> bool:
    """Whether digits are a number of their own: else a PIN would be hidden in a line's times. A percent-coded character may
    stand before it.
    """
    if not (form.isascii() and form.isdigit()):
        return True
    before, after = text[max(0, at - 3) : at], text[at + len(form) : at + len(form) + 1]
    follows = before[-1:].isdigit() or before[-1:] == "."
    return not after.isdigit() and (not follows or before[:1] == "%")


_known = KnownSecrets()


def hide(*secrets: str) -> None:
    """Hides these values in this process from now on."""
    _known.add(Found(each, Kind.SECRET) for each in secrets)


def hide_token(token: str) -> None:
    """Hides a token that will run out."""
    _known.add([Found(token, Kind.WHOLE)], passing=True)


def hide_settings(settings: Mapping[str, str]) -> None:
    """Hides every secret that the settings hold, in this process from now on."""
    _known.leave(names_of(settings))
    _known.add(of_settings(settings))


def leave_names(names: Collection[str]) -> None:
    """Leaves what targets, metrics and rules are called in every text."""
    _known.leave(names)


def hide_text(text: str) -> None:
    """Hides the secrets of a connection string or an address."""
    _known.add(of_text(text))


def hide_address(url: str) -> None:
    """Hides an address that opens something to whoever has it, or whatever else stands where one may: a key, a header."""
    _known.add(of_address(url))


def hide_headers(headers: Mapping[str, str]) -> None:
    """Hides what the headers of a request authorise with."""
    _known.add(of_headers(headers))


def without_known(text: str) -> str:
    """`text` with `***` for every secret that this process knows."""
    return _known.hidden(text)


def forget() -> None:
    """Knows nothing, as a new process does; for tests."""
    global _known  # noqa: PLW0603 - the one state of this module
    _known = KnownSecrets()
