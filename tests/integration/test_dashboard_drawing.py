"""What the dashboard draws of data that are unlike those of a quiet day: long names, tiny and huge numbers, a clock that is changed."""

import re
from pathlib import Path

import pytest

from scaling.log_entry import LogKind
from scaling.web import dashboard
from tests.support.scaling.browser import NOW, PHONE, SimulatedTarget, steady, threshold_policy, waves

pytestmark = [pytest.mark.browser, pytest.mark.wire, pytest.mark.asyncio(loop_scope="module")]

WIDE = {"viewport": {"width": 1400, "height": 900}}
LONG = "plan-" + "of-a-department-with-many-words-" * 5
COVERED = """() => [...document.querySelectorAll("#rows .row > button > :not(.said)")].filter((cell) => {
  const text = document.createRange();
  text.selectNodeContents(cell);
  return text.getBoundingClientRect().right > cell.getBoundingClientRect().right + 1;
}).map((cell) => cell.textContent)"""
CUT = """() => [...document.querySelectorAll(".canvas .axis-text")]
  .map((text) => [text.textContent, text.getBoundingClientRect().left - text.ownerSVGElement.getBoundingClientRect().left])
  .filter(([, left]) => left < -1).map(([text]) => text)"""


async def functions(browser, **options):
    """A page that has only the drawing functions, in a zone of one's own."""
    context = await browser.new_context(**options)
    page = await context.new_page()
    for name in ("format.js", "chart.js"):
        await page.add_script_tag(path=Path(dashboard.__file__).parent / name)
    return page


@pytest.mark.parametrize("options", [PHONE, WIDE], ids=["phone", "wide"])
async def test_a_long_name_widens_no_page_and_covers_no_column(show, api, options):
    api.targets[LONG] = SimulatedTarget(threshold_policy(LONG), waves())
    api.simulate(3600, only=LONG)

    page = await show(**options)
    scrolls = await page.evaluate("document.documentElement.scrollWidth - innerWidth")

    assert (scrolls, await page.evaluate(COVERED)) == (0, [])
    chips = page.get_by_role("article", name=LONG).locator(".summary .chip")
    boxes = [await chip.bounding_box() for chip in await chips.all()]
    assert [box["width"] > 60 for box in boxes if box] == [True] * len(boxes)


async def test_a_phone_shows_the_target_of_a_decision_beside_its_time(show):
    page = await show(**PHONE)
    row = page.locator("#rows .row > button").first

    time, who, badge = [
        await row.locator(each).bounding_box() for each in ("time", ".who", "span:has(> .badge)")
    ]

    assert abs(time["y"] - who["y"]) < 5
    assert badge["y"] > time["y"] + 10
    assert abs(badge["x"] - time["x"]) < 2


async def test_days_are_marked_at_midnight_also_after_the_clock_was_changed(browser):
    """Berlin, 25 October 2026: the day has 25 hours."""
    page = await functions(browser, timezone_id="Europe/Berlin")
    begin = "new Date(2026, 9, 23, 12).getTime() / 1000"

    ticks = await page.evaluate(
        f"timeTicks({begin}, {begin} + 5 * 86400, 700).map((at) => new Date(at * 1000).toString().slice(4, 21))"
    )

    assert ticks == [f"Oct {day} 2026 00:00" for day in (24, 25, 26, 27, 28)]


async def test_hours_go_on_where_an_hour_comes_twice_or_never(browser):
    page = await functions(browser, timezone_id="Europe/Berlin")

    def hours(begin, length):
        return page.evaluate(
            f"timeTicks({begin}, {begin} + {length} * 3600, 540).map((at) => new Date(at * 1000).getHours())"
        )

    autumn, spring = "Date.UTC(2026, 9, 24, 23) / 1000", "Date.UTC(2026, 2, 28, 23) / 1000"
    assert await hours(autumn, 6) == [1, 2, 2, 3, 4, 5, 6]
    assert await hours(spring, 6) == [0, 1, 3, 4, 5, 6, 7]
    assert await hours(autumn, 24) == [3, 6, 9, 12, 15, 18, 21, 0]
    assert await hours(spring, 24) == [0, 3, 6, 9, 12, 15, 18, 21, 0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0005, "0.0005"),
        (0.25, "0.25"),
        (1.5, "1.5"),
        (20_000, "20k"),
        (3e6, "3M"),
        (2.5e9, "2.5G"),
        (6e13, "60T"),
        (4e17, "4.0e+17"),
    ],
)
async def test_the_number_of_an_axis_is_short_and_not_rounded_to_another(browser, value, text):
    page = await functions(browser)

    assert await page.evaluate(f"compactText({value})") == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.004, "0.004"), (0.5, "0.5"), (2.345, "2.35"), (1234.5, "1,235")]
)
async def test_a_small_number_is_not_shown_as_none(browser, value, text):
    page = await functions(browser, locale="en-US")

    assert await page.evaluate(f"numberText({value})") == text


async def test_numbers_of_a_huge_backlog_are_whole(show, api):
    api.targets = {"plan-huge": SimulatedTarget(threshold_policy("plan-huge"), steady(1e12))}
    api.simulate(3600)

    page = await show(**PHONE)

    assert await page.evaluate(CUT) == []
    cells = await page.evaluate(
        "[...document.querySelectorAll('.metrics td')].filter((cell) => cell.scrollWidth > cell.clientWidth).length"
    )
    assert cells == 0


async def test_a_phone_names_several_times_of_an_hour(show):
    page = await show(**PHONE)

    texts = await page.locator(".canvas").first.locator(".axis-text").all_text_contents()

    assert len([text for text in texts if ":" in text]) >= 3


async def test_a_single_sample_can_be_seen(show, api):
    target = SimulatedTarget(threshold_policy("plan-new"), steady(50))
    api.targets = {"plan-new": target}
    target.tick(NOW - 8)

    page = await show(**WIDE)

    spot = await page.locator(".canvas circle.spot").first.bounding_box()
    assert spot["width"] >= 6


async def test_a_history_says_that_only_the_newest_of_many_changes_have_a_mark(show, api):
    target = api.targets["plan-orders"]
    for number in range(130):
        target.log(
            LogKind.CONTROL, NOW - 300 * number - 1, "control plan-orders: paused, by ann", "pause", by="ann"
        )

    page = await show("#history/plan-orders/1d", **WIDE)
    await page.locator("#history-plots path.data").first.wait_for()

    assert await page.locator("#history-plots .mark-text").count() == 100
    note = await page.locator("#history-plots .plot-foot").inner_text()
    assert re.search(r"of 1[3-9]\d changes the newest 100 have a mark", note)
