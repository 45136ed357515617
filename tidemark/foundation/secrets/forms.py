"""The forms in which a secret may be met. Pure."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote, quote_plus, unquote, unquote_plus

SHORTEST = 6
"""Characters of the shortest value that is hidden wherever it stands: fewer are found in ordinary words, and hiding these
would say what the secret is. Shorter ones are hidden where their position names them (`tidemark.foundation.secrets.patterns`).
"""

LONGEST = 20_000
"""Characters of a value; a certificate has 3,000. What is longer is no password, and would cost every line its time."""

_CUTS = re.compile(r"[@:/;=?#\r\n]")
"""Where parsers of addresses and connection strings cut a value that was not coded, and pass on a half of it."""


def forms_of(secret: str, *, parts: bool) -> set[str]:
    """Raw, percent-coded once and twice with either case of its digits, `+` for blanks, escaped by JSON, Python and HTML; and
    with `parts`, for what is a secret as a whole, in base64 on its own and among other bytes, and what parsers leave when
    they cut it.

    Empty for a secret that is too short or too long.
    """
    if not SHORTEST <= len(secret) <= LONGEST:
        return set()
    plain = {secret, unquote(secret), unquote_plus(secret)}
    # Braces and quotation marks are doubled inside of a value in braces or quotation marks.
    plain |= {each.replace(mark, mark * 2) for each in plain for mark in "}\"'" if mark in each}
    cut = {half for each in plain for half in _CUTS.split(each)} if parts else set()
    found = {form for text in plain | cut for form in _written(text)}
    found |= {form for text in plain if parts for form in _in_base64(text)}
    return {each for each in found if len(each) >= SHORTEST}


_HTML: tuple[dict[str | int, str | int | None], ...] = (
    {"'": "&#39;", '"': "&quot;"},
    {"'": "&#x27;", '"': "&quot;"},
    {"'": "&#39;", '"': "&#34;"},
)
_ESCAPED_BY_NET: tuple[dict[str | int, str | int | None], ...] = (
    {"&": "\\u0026", "+": "\\u002B"},
    {"&": "\\u0026", "+": "\\u002B", "=": "\\u003D"},
    {"&": "\\u0026", "=": "\\u003d"},
)
"""JSON as .NET and Go write it, whose encoders keep it safe inside of HTML."""


def _written(text: str) -> set[str]:
    coded = {quote(text, safe=safe) for safe in ("", "/", "~()*!.'", "/+=", "=", "@")} | {quote_plus(text)}
    coded |= {quote(each, safe="") for each in coded}
    lower = {re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), each) for each in coded}
    in_json = json.dumps(text)[1:-1]
    escaped = {
        in_json,
        in_json.replace("/", "\\/"),
        json.dumps(in_json)[1:-1],
        in_json.replace("\\", "\\\\").replace("'", "\\'"),  # JSON as Python shows it
        json.dumps(text, ensure_ascii=False)[1:-1],
        repr(text)[1:-1],
        repr(repr(text)[1:-1])[1:-1],
        repr(text.encode("utf-8", "replace"))[2:-1],
        text.replace("\\", "\\\\").replace("'", "\\'"),
        text.replace("\\", "\\\\").replace('"', '\\"'),
        *(in_json.translate(str.maketrans(marks)) for marks in _ESCAPED_BY_NET),
    }
    # What is quoted again, such as JSON in JSON in the text of an exception, has twice the backslashes each time.
    escaped |= {each.replace("\\", "\\" * times) for each in escaped if "\\" in each for times in (2, 4)}
    page = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {text, page, *coded, *lower, *escaped, *(page.translate(str.maketrans(marks)) for marks in _HTML)}


def _in_base64(text: str) -> set[str]:
    """What all base64 texts share that hold these bytes, at each of the three places where they may begin: `user:secret`
    of any user is one of them.
    """
    data = text.encode("utf-8", "replace")
    found = set[str]()
    for before in range(3):
        # Characters whose six bits are not all of the secret's are left to what stands around it.
        first, last = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            found.add(encode(b"\0" * before + data).decode()[first:last])
    return found
