"""The search of the documentation's site, where its pages are opened as files: browsers refuse workers there."""

import pytest

from devstack.documentation.site import SHIM

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

PAGE = """<!doctype html><body><script>{shim}</script><script>
const worker = new Worker("worker.js"), asked = {{ words: ["cooldown"] }};
worker.onmessage = (event) => (document.title = `${{event.data.found}}, ${{asked.words.length}}`);
worker.postMessage(asked);
</script></body>"""
WORKER = """
addEventListener("message", ({ data }) => {
  data.words.push("mine");
  postMessage({ found: data.words.join(" ") });
});
"""


async def test_a_worker_answers_in_a_page_that_is_a_file_and_cannot_change_what_it_was_sent(
    browser, tmp_path
):
    (tmp_path / "page.html").write_text(PAGE.format(shim=SHIM.read_text(encoding="utf-8")), encoding="utf-8")
    (tmp_path / "worker.js").write_text(WORKER, encoding="utf-8")
    page = await browser.new_page()
    try:
        await page.goto((tmp_path / "page.html").as_uri())
        await page.wait_for_function("document.title")
        title = await page.title()
    finally:
        await page.close()

    assert title == "cooldown mine, 1"
