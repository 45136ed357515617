"""The page's requests, in Node.js: when it asks for a key, and when to sign in again."""

import json
import subprocess
from pathlib import Path

import pytest

from devstack.processes.node import ensure_node

SOURCE = Path(__file__).parents[2] / "scaling/web/dashboard/api.js"
SCRIPT = """
globalThis.location = { href: "https://app.example/api/dashboard", search: "" };
globalThis.sessionStorage = { getItem: () => null };
let answered;
globalThis.fetch = async (url, options) => { answered = options.redirect; return ANSWER; };
SOURCE
try {
  await readApi("scaling/status");
  console.log(JSON.stringify({ served: true, redirect: answered }));
} catch (error) {
  const { status, wantsKey, wantsSignIn, message } = error;
  console.log(JSON.stringify({ status, wantsKey, wantsSignIn, message }));
}
"""

pytestmark = pytest.mark.wire


def read(answer):
    """What became of a request that is answered so: a Response as JavaScript."""
    script = SCRIPT.replace("SOURCE", SOURCE.read_text(encoding="utf-8")).replace("ANSWER", answer)
    command = [str(ensure_node()), "--input-type=module", "--eval", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_an_answer_is_served_and_redirects_are_not_followed():
    assert read('new Response("{}")') == {"served": True, "redirect": "manual"}


@pytest.mark.parametrize(
    ("answer", "key", "sign_in"),
    [
        # The host, of a missing or wrong key.
        ('new Response("", { status: 401 })', True, False),
        # The app, where people sign in.
        ('new Response(\'{"error": "sign in first"}\', { status: 401 })', False, True),
        # The platform, to a page and to a program.
        ('{ type: "opaqueredirect", ok: false, status: 0, headers: new Headers() }', False, True),
        (
            'new Response("", { status: 401, headers: { "WWW-Authenticate": "Bearer realm=x" } })',
            False,
            True,
        ),
        # A role that is missing is no matter of keys or sessions.
        ('new Response(\'{"error": "lacks the role"}\', { status: 403 })', False, False),
    ],
)
def test_a_refusal_asks_for_what_would_help(answer, key, sign_in):
    found = read(answer)

    assert (found["wantsKey"], found["wantsSignIn"]) == (key, sign_in)
