"""The dashboard: one self-contained page, put together from its sources when first asked for.

`index.html` has two placeholders, for the style sheet and for the scripts; the script files share one module
scope, in the order of `SCRIPTS`, so that no build step and no second request is needed. The page carries its
own Content-Security-Policy: only the style and the script whose SHA-256 is listed may run, requests may go
to the page's own origin only, and nothing is loaded from anywhere else.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path

SCRIPTS = (
    "format.js",
    "elements.js",
    "api.js",
    "history.js",
    "chart.js",
    "plots.js",
    "spark.js",
    "service_level.js",
    "shadow.js",
    "orders.js",
    "card.js",
    "targets.js",
    "decisions.js",
    "past.js",
    "consumer_plots.js",
    "consumer_card.js",
    "consumers.js",
    "main.js",
)
"""Source files of the script in the order they are joined: each uses only names of those before it when it
is loaded, and any name when it runs."""

_SOURCES = Path(__file__).parent


@cache
def page() -> str:
    """The whole page. Reads the sources once per process."""
    style = _source("dashboard.css")
    script = '"use strict";\n' + "\n".join(_source(name) for name in SCRIPTS)
    return (
        _source("index.html")
        .replace("{{policy}}", _policy(style, script))
        .replace("{{style}}", style)
        .replace("{{script}}", script)
    )


def refusal_page(text: str, logout: str = "") -> str:
    """A page that says why the other one is not opened; with `logout`, the way to come back as somebody else."""
    style = _source("dashboard.css")
    way_out = f'<a href="{logout}">Sign out</a>, to sign in as somebody else.' if logout else ""
    return (
        _source("refused.html")
        .replace("{{policy}}", _policy(style, ""))
        .replace("{{style}}", style)
        .replace("{{way_out}}", way_out)
        .replace("{{text}}", escape(text))
    )


def _source(name: str) -> str:
    return (_SOURCES / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
