"""Hides the secrets that this process knows by value, wherever they are in a text. Pure; its only state is the known secrets,
and a lock lets one thread at a time add to them.

All code that reads a secret registers it here: settings at the start, an identity's tokens when they arrive, and the addresses
and headers of requests. Every text that leaves the process passes `without_known`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from threading import Lock

from tidemark.foundation.secrets.configuration import (
    ConfigPart,
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
"""How many tokens are remembered, each valid for an hour or a day. Secrets of the configuration are never forgotten. Chosen."""

FEW = 400
"""Up to so many texts, `in` is tried for each before a line is searched: that takes 60 ns each for a line of 300 characters,
and a search 15,000 ns (measured in November 2026).
"""

_OURS = (
    '{"tidemark":1,"kind":" secret password passphrase token signature connection credential authorization'
)
"""Texts of every log line, and of errors about secrets. A secret that is a part of them is hidden only by its position: hiding
it everywhere would break all queries, or reveal it by what is missing.
"""


SHORTEST_WRAPPED = 12
"""Characters of the shortest secret that is recognised across a line break. Shorter words fit into one line, and the numbers
at the ends of two lines of a table could form a PIN by chance.
"""


class KnownSecrets:
    """The known secrets, and how to remove them from texts."""

    def __init__(self) -> None:
        self._secrets = set[ConfigPart]()
        self._passing: list[ConfigPart] = []
        self._names = set[str]()
        self._changing = Lock()  # threads of the doctor and of workers read their settings at the same time
        self._forms: dict[str, tuple[str, ...]] = {}
        """The first characters of a form -> the forms that begin with them, the longest first."""
        self._needles: tuple[str, ...] = ()
        """Every form contains one of these, while there are at most `FEW`."""

    def add(self, secrets: Iterable[ConfigPart], *, passing: bool = False) -> None:
        """Add secrets; adding one again changes nothing. A secret of fewer than `SHORTEST` characters is hidden only by its
        position. A `passing` one is forgotten after `PASSING` others.
        """
        with self._changing:
            fresh = {secret for secret in secrets if len(secret.text) >= SHORTEST} - self._secrets
            if not fresh:
                return
            self._secrets |= fresh
            gone = set[ConfigPart]()
            if passing:
                self._passing += fresh
                gone, self._passing = set(self._passing[:-PASSING]), self._passing[-PASSING:]
                self._secrets -= gone
            self._prepare(self._secrets if gone else fresh, anew=bool(gone))

    def leave(self, names: Collection[str]) -> None:
        """Keep these names in every text, although a part of a secret may equal one. Without its target, no query finds a line;
        without its metrics, a decision is replayed differently.
        """
        with self._changing:
            fresh = {name.casefold() for name in names} - self._names
            self._names |= fresh
            if fresh and any(form.casefold() in fresh for forms in self._forms.values() for form in forms):
                self._prepare(self._secrets, anew=True)

    def _prepare(self, secrets: Iterable[ConfigPart], *, anew: bool) -> None:
        """Replace the forms and needles, and never change them: a thread that reads them meanwhile still finds the older secrets."""
        forms, needles = ({}, ()) if anew else (dict(self._forms), self._needles)
        fresh = {
            form for secret in secrets for form in forms_of(secret.text, parts=secret.kind is Kind.SECRET)
        }
        for form in sorted(fresh, key=len):
            beginning = form[:SHORTEST]
            known = forms.get(beginning, ())
            if form in _OURS or form in known or form.casefold() in self._names:
                continue
            forms[beginning] = tuple(sorted((*known, form), key=len, reverse=True))
            if len(needles) <= FEW and not any(needle in form for needle in needles):
                needles = (*needles, form)
        self._forms, self._needles = forms, needles

    def hidden(self, text: str) -> str:
        """`text` with `***` for every form of a secret in it, the longest that begins at a place."""
        text = _with_hidden(text, self._ranges(text))
        if "\n" not in text:
            return text
        # A terminal, a table, or a tool whose output is quoted, wraps a long secret: it goes on in the next line.
        ranges = [span for span in self._ranges(_WRAP.sub("", text)) if span[1] - span[0] >= SHORTEST_WRAPPED]
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
        ranges, at = list[tuple[int, int]](), 0
        last = len(text) - SHORTEST
        while at <= last:
            of_here = forms.get(text[at : at + SHORTEST], ())
            form = next(
                (
                    candidate
                    for candidate in of_here
                    if text.startswith(candidate, at) and _is_own(text, at, candidate)
                ),
                "",
            )
            if form:
                ranges.append((at, at + len(form)))
            at += len(form) or 1
        return ranges


_WRAP = re.compile(r"[ \t\r│┃|]*\n[ \t\r\n│┃|]*")
"""A line break, with the blanks and the frame that a box in a terminal puts around it."""


def _with_hidden(text: str, ranges: Iterable[tuple[int, int]]) -> str:
    shown, done = list[str](), 0
    for first, end in ranges:
        shown += [text[done:first], HIDDEN]
        done = end
    return "".join([*shown, text[done:]])


def _is_own(text: str, at: int, form: str) -> bool:
    """Whether digits are a number of their own. A PIN within a longer number stays, or times in lines would be hidden. A
    percent-coded character may precede the digits.
    """
    if not (form.isascii() and form.isdigit()):
        return True
    before, after = text[max(0, at - 3) : at], text[at + len(form) : at + len(form) + 1]
    follows = before[-1:].isdigit() or before[-1:] == "."
    return not after.isdigit() and (not follows or before[:1] == "%")


_known = KnownSecrets()


def hide_token(token: str) -> None:
    _known.add([ConfigPart(token, Kind.WHOLE)], passing=True)


def hide_settings(settings: Mapping[str, str]) -> None:
    """Hide every secret of the settings, in this process from now on."""
    _known.leave(names_of(settings))
    _known.add(of_settings(settings))


def leave_names(names: Collection[str]) -> None:
    """Keep the names of targets, metrics and rules in every text."""
    _known.leave(names)


def hide_text(text: str) -> None:
    """Hide the secrets of a connection string or an address."""
    _known.add(of_text(text))


def hide_address(url: str) -> None:
    """Hide an address that gives access to everybody who has it, or another value in its place, such as a key or a header."""
    _known.add(of_address(url))


def hide_headers(headers: Mapping[str, str]) -> None:
    _known.add(of_headers(headers))


def without_known(text: str) -> str:
    """`text` with `***` in place of every secret that this process knows."""
    return _known.hidden(text)
