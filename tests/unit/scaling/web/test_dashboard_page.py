"""The page as one self-contained document."""

import re
from base64 import b64encode
from hashlib import sha256

from scaling.web.dashboard import page as dashboard_page


def test_the_page_loads_nothing_from_elsewhere():
    text = dashboard_page()

    assert re.findall(r"""(?:src|href)=["'](?!#|data:|/\.auth/logout")""", text) == []
    assert set(re.findall(r"https?://[^\s'\"`]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "{{" not in text
    assert "unsafe" not in text


def test_the_scripts_never_turn_text_into_markup():
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", dashboard_page()) == []
    )


def test_only_the_pages_own_script_and_style_may_run():
    text = dashboard_page()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text).group(1)
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        [body] = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", text, re.DOTALL)
        digest = b64encode(sha256(body.encode()).digest()).decode()

        assert f"{directive} 'sha256-{digest}'" in policy.split("; ")
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy


def test_the_page_stays_small():
    """A chart library of 50 KB would not fit."""
    assert len(dashboard_page().encode()) < 150_000
