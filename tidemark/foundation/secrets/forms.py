"""The forms in which a secret may appear in a text. Pure."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote, quote_plus, unquote, unquote_plus

SHORTEST = 6
"""Characters of the shortest value that is hidden everywhere. Shorter ones occur in ordinary words, and hiding those would
reveal the secret. They are hidden where a name beside them says what they are (`tidemark.foundation.secrets.patterns`).
"""

LONGEST = 20_000
"""Characters of the longest value that is hidden; a certificate has 3,000. A longer text is no password, and searching for it would slow down every line. Chosen."""

_CUTS = re.compile(r"[@:/;=?#\r\n]")
"""Where parsers of addresses and connection strings cut a value that was not encoded, and pass on one half."""


def forms_of(secret: str, *, parts: bool) -> set[str]:
    """The secret as it is, percent-encoded once and twice with digits in either case, with `+` for blanks, and escaped by JSON,
    Python and HTML. With `parts`, also in base64, alone and among other bytes, and the halves that parsers cut it into.

    Empty for a secret that is too short or too long.
    """
    if not SHORTEST <= len(secret) <= LONGEST:
        return set()
    plain = {secret, unquote(secret), unquote_plus(secret)}
    # Braces and quotation marks are doubled inside of a value in braces or quotation marks.
    plain |= {form.replace(mark, mark * 2) for form in plain for mark in "}\"'" if mark in form}
    cut = {half for form in plain for half in _CUTS.split(form)} if parts else set()
    forms = {form for text in plain | cut for form in _written(text)}
    forms |= {form for text in plain if parts for form in _in_base64(text)}
    return {form for form in forms if len(form) >= SHORTEST}


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
"""Escapes in the JSON of .NET and Go, whose encoders make it safe within HTML."""


def _written(text: str) -> set[str]:
    coded = {quote(text, safe=safe) for safe in ("", "/", "~()*!.'", "/+=", "=", "@")} | {quote_plus(text)}
    coded |= {quote(form, safe="") for form in coded}
    lower = {re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), form) for form in coded}
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
    # Each further quoting, such as JSON in JSON in the text of an exception, doubles the backslashes.
    escaped |= {form.replace("\\", "\\" * times) for form in escaped if "\\" in form for times in (2, 4)}
    page = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {text, page, *coded, *lower, *escaped, *(page.translate(str.maketrans(marks)) for marks in _HTML)}


def _in_base64(text: str) -> set[str]:
    """The characters that all base64 texts with these bytes share, for each of the three offsets at which the bytes may begin.
    So `user:secret` is found for any user.
    """
    data = text.encode("utf-8", "replace")
    forms = set[str]()
    for before in range(3):
        # A character whose six bits are partly of the text around the secret is left out.
        first, last = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            forms.add(encode(b"\0" * before + data).decode()[first:last])
    return forms
