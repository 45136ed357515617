"""Pages of jobs in a real browser: what is cut on which screen."""

import pytest
from playwright.async_api import async_playwright

from tests.support.scaling.browser import FLAGS, chromium_path
from tidemark.analysis.report import Report

pytestmark = [pytest.mark.browser, pytest.mark.wire]

CUT = """() => [...document.querySelectorAll(".wide")].map((each) => each.scrollWidth > each.clientWidth)"""


@pytest.mark.parametrize(("width", "cut"), [(1400, False), (390, True)])
async def test_a_table_is_cut_only_where_the_window_ends_and_the_page_never_scrolls(tmp_path, width, cut):
    report = Report("wide")
    report.table([f"column {number}" for number in range(13)], [[6000] * 13], caption="By partition. " * 20)
    page_file = report.write(tmp_path)

    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=chromium_path(), args=FLAGS)
        page = await chromium.new_page(viewport={"width": width, "height": 800})
        await page.goto(page_file.as_uri())
        cuts = await page.evaluate(CUT)
        scrolls = await page.evaluate("document.documentElement.scrollWidth > innerWidth")
        await chromium.close()

    assert (cuts, scrolls) == ([cut], False)
