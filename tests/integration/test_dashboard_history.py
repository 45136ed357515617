"""The history of a target in a real browser: its address, its zoom, who did what, and rules tried on it."""

import re

import pytest
from msgspec import structs

from scaling.log_entry import LogKind
from scaling.window import WindowSpec
from tests.support.scaling.browser import CONTRASTS, NOW, PHONE, eventually, threshold_policy
from tests.unit.scaling.web.test_past import TOML

pytestmark = [pytest.mark.browser, pytest.mark.wire, pytest.mark.asyncio(loop_scope="module")]

RULES = '[[rules]]\ntype = "threshold"\nmetric = "backlog"\nscale_out_above = 200\nscale_in_below = 60\n'


async def history(show, address="1d", **options):
    page = await show(f"#history/plan-orders/{address}", **options)
    await page.locator("#history-plots path.data").first.wait_for()
    return page


async def test_an_address_opens_the_history_of_a_target_in_place_of_the_rest(show, api):
    target = api.targets["plan-orders"]
    now = NOW
    target.log(LogKind.CONTROL, now - 600, "control plan-orders: paused, by ann", "pause", by="ann")
    page = await history(show)

    assert await page.get_by_role("heading", name="History of plan-orders").is_visible()
    assert not await page.get_by_role("heading", name="Targets").is_visible()
    assert await page.get_by_role("radio", name="24 h").is_checked()
    rows = page.get_by_role("list", name="What happened, newest first").get_by_role("listitem")
    changes = [entry for entry in target.entries if entry.kind != LogKind.DECISION]
    decided = [e for e in target.entries if e.kind == LogKind.DECISION and e.desired not in {None, e.current}]
    assert await rows.count() == len(changes) + len(decided)
    assert await rows.filter(has_text="by ann").count() == 1
    moved = next(entry.effect for entry in reversed(changes) if entry.effect is not None)
    first = rows.filter(has_text=f"{moved.from_capacity} → {moved.reached}").first
    assert await first.locator(".change").inner_text() == f"{moved.from_capacity} → {moved.reached}"
    assert await page.locator("#history-plots .mark-text").count() == len(changes)

    await page.get_by_role("link", name="Back to the target").click()
    await page.get_by_role("heading", name="Targets").wait_for()
    focused = await page.evaluate("document.activeElement.className")
    assert "summary" in focused


async def test_an_address_whose_history_comes_before_the_status_is_shown_with_units_and_levels(show, api):
    answer = api._status

    async def asked():
        return any(path.endswith("/history") for _, path, _, _ in api.requests)

    async def late(request):
        await eventually(asked)
        return await answer(request)

    api._status = late
    page = await history(show)

    plots = page.locator("#history-plots")
    await plots.get_by_text("backlog, messages").wait_for()
    assert await plots.get_by_text(re.compile("scale out")).count() > 0
    assert 'metric = "backlog"' in await page.locator("#trial-policy").input_value()


async def test_a_target_that_is_looked_at_less_often_has_a_line_and_no_gaps(show, api):
    target = api.targets["plan-orders"]
    metric = target.policy.spec.metrics["backlog"]
    slow = structs.replace(metric, window=WindowSpec(span=6000, interval=600.0, min_samples=10))
    target.policy = threshold_policy("plan-orders", metrics={"backlog": slow})
    decisions = [entry for entry in target.entries if entry.kind == LogKind.DECISION]
    target.entries = decisions[::10]

    page = await history(show)

    assert (
        await page.locator("#history-plots circle.spot").count() == 0
    )  # what a sample between two gaps would be


async def test_dragging_zooms_and_the_address_and_the_way_back_follow(show, api):
    page = await history(show)
    box = await page.locator("#history-plots .plots").bounding_box()
    y = box["y"] + 60
    await page.mouse.move(box["x"] + box["width"] * 0.9, y)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * 0.95, y, steps=3)
    await page.mouse.up()

    async def address():
        return re.fullmatch(r".*#history/plan-orders/(\d+)/(\d+)", page.url)

    found = await eventually(address)
    length = int(found[2]) - int(found[1])
    assert 3600 < length < 6000

    async def asked():
        ends = [
            float(query.get("until", 0)) for _, path, query, _ in api.requests if path.endswith("/history")
        ]
        return any(abs(end - int(found[2])) < 1 for end in ends)

    await eventually(asked)
    await page.get_by_role("button", name="Zoom out").click()
    await eventually(lambda: page.evaluate(f"!location.hash.includes('{found[1]}')"))
    await page.go_back()
    await page.go_back()
    await eventually(page.get_by_role("radio", name="24 h").is_checked)


async def test_rules_are_tried_and_drawn(show, api, tmp_path, monkeypatch):
    (tmp_path / "tidemark.toml").write_text(
        TOML.replace("plan]", "plan-orders]").replace("plan.", "plan-orders.")
    )
    monkeypatch.setenv("TIDEMARK_CONFIG", str(tmp_path / "tidemark.toml"))
    target = api.targets["plan-orders"]
    target.keeps_inputs = True
    api.simulate(1800)
    page = await history(show, color_scheme="dark")
    await page.get_by_text("What other rules would have done").click()
    assert 'metric = "backlog"' in await page.get_by_role("textbox", name="Rules to try").input_value()

    await page.get_by_role("textbox", name="Rules to try").fill("[[rules]]\ntype = 'thresold'")
    await page.get_by_role("button", name="Try them").click()
    await page.get_by_role("alert").filter(has_text="thresold").wait_for()
    await page.get_by_role("textbox", name="Rules to try").fill(RULES)
    await page.get_by_role("button", name="Try them").click()

    await page.get_by_text(re.compile(r"Of 31 decisions \d+ differ")).wait_for()
    assert await page.locator("#history-plots path.simulated-line").count() == 1
    assert (await page.evaluate(CONTRASTS))[1] == []


async def test_a_phone_has_no_horizontal_scrolling_and_an_unknown_target_is_told(show, api):
    page = await history(show, **PHONE)
    assert not await page.evaluate("document.documentElement.scrollWidth > innerWidth")

    await page.evaluate("location.hash = '#history/nobody/7d'")
    await page.get_by_role("alert").filter(has_text="target: found 'nobody'").wait_for()


async def test_an_address_opens_a_target_among_many(show, api):
    page = await show("#target/plan-orders")

    assert await page.get_by_role("button", name="Pause plan-orders").is_visible()
    assert await page.get_by_role("link", name="History of plan-orders").get_attribute("href") == (
        "#history/plan-orders/1d"
    )
