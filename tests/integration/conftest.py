"""Fixtures of several files: a Service Bus for clients that block, the dashboard in a browser."""

import re
from copy import copy
from functools import cache

import pytest_asyncio
from playwright.async_api import async_playwright

from tests.support.scaling.browser import (
    FLAGS,
    FakeApi,
    SimulatedTarget,
    chromium_path,
    threshold_policy,
    waves,
)
from tests.support.servers import service_bus

threaded = service_bus.threaded


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    """One browser for all tests; each test gets a context of its own, which shares nothing with the others."""
    path = chromium_path()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        await browser.close()


@cache
def after_three_hours():
    target = SimulatedTarget(threshold_policy("plan-orders"), waves())
    FakeApi([target]).simulate(3 * 3600)
    return target


@pytest_asyncio.fixture(loop_scope="module")
async def api():
    target = copy(after_three_hours())
    target.entries = [*target.entries]
    api = FakeApi([target])
    yield api
    await api.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def show(browser, api):
    """Opens the page; whatever it writes to the console as an error fails the test."""
    errors, contexts = [], []

    async def show(query="", **options):
        url = await api.start()
        context = await browser.new_context(**options)
        contexts.append(context)
        page = await context.new_page()
        page.set_default_timeout(8000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda m: errors.append(m.text) if is_fault(m) else None)
        await page.goto(url + query)
        await page.get_by_text(re.compile(r"updated \d+ s ago")).wait_for()
        return page

    yield show
    for context in contexts:
        await context.close()
    assert errors == []


def is_fault(message):
    """Chromium itself reports every refused or failed request; those are the tests' own doing."""
    return message.type == "error" and not message.text.startswith("Failed to load resource")
