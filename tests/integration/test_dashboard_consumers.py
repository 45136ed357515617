"""The dashboard's consumers in a real browser, served with the product's own views over rows in memory."""

import re

import pytest

from consumer.telemetry.rate_orders import RateOrder
from tests.support.scaling.browser import CONTRASTS, KEY, NOW, PHONE, consumer_row, eventually
from tidemark.foundation.consumer_stats import PartitionStats

pytestmark = [pytest.mark.browser, pytest.mark.wire, pytest.mark.asyncio(loop_scope="module")]

MARKUP = "<img src=x onerror=\"document.title='injected'\">"


async def report(api, instance="vm-1", partitions=range(4), **changes):
    await api.consumers.stats.put(consumer_row(instance, partitions, **changes))


def card(page, name="flights"):
    return page.get_by_role("article", name=f"Consumer {name}", exact=True)


async def cells(page, label):
    """Texts of the body of a table, row by row; bars are empty."""
    rows = await page.get_by_role("region", name=label).locator("tbody tr").all()
    return [await row.locator("th, td").all_inner_texts() for row in rows]


async def test_without_a_consumer_the_page_says_what_would_bring_one(show, api):
    page = await show()

    await page.get_by_text("No consumer has reported within the last day").wait_for()
    assert await page.locator("#consumer-count").inner_text() == ""
    assert await page.locator("#consumers-failure").is_hidden()


async def test_one_consumer_is_open_and_shows_its_rates_charges_and_partitions(show, api):
    await report(api, partitions=range(2), oldest_age_s=75.0)
    page = await show()
    await card(page).locator(".big .current").wait_for()

    assert await card(page).locator(".big .numbers").inner_text() == "861\nof 1,000 records/s"
    measures = await card(page).locator(".measures > div").all_inner_texts()
    assert [text.split("\n") for text in measures] == [
        ["lag", "1,940"],
        ["RU per record", "5.71"],
        ["RU/s", "4,913"],
        ["429 share", "4.2 %"],
        ["dead letters made", "3"],
        ["backlog", "300"],
        ["oldest begun", "75 s"],
    ]
    assert await card(page).locator(".summary .chips .chip").all_inner_texts() == [
        "4.2 % throttled",
        "oldest begun 75 s ago",
        "3 dead letters made",
    ]
    assert await cells(page, "Partitions of flights") == [
        ["0", "", "950", "51,000", "51,200", "52,000", "150", "vm-1"],
        ["1", "", "990", "51,000", "51,200", "52,040", "150", "vm-1"],
    ]


async def test_bars_show_what_is_received_and_what_waits_in_proportion(show, api):
    await report(api, partitions=(0, 25))
    page = await show()
    bars = card(page).get_by_role("region", name="Partitions").locator("tbody .track")
    await bars.first.wait_for()

    async def widths(index):
        return [
            float(await rect.get_attribute("width")) for rect in await bars.nth(index).locator("rect").all()
        ]

    short, long = await widths(0), await widths(1)
    assert short[1] / short[0] == pytest.approx(800 / 200)
    assert sum(long) == pytest.approx(98)
    assert sum(short) / sum(long) == pytest.approx(1000 / 2000)


async def test_a_partition_of_which_nothing_is_settled_yet_says_so_and_shows_all_it_took(show, api):
    begun = PartitionStats("0", last_enqueued=399, received=199, low_water=None, lag=400, in_flight=200)
    await report(api, partitions=(), lag=(begun,))
    page = await show()
    rects = card(page).get_by_role("region", name="Partitions").locator("tbody .track rect")
    await rects.first.wait_for()

    held, behind = [float(await rect.get_attribute("width")) for rect in await rects.all()]
    assert held == pytest.approx(behind)
    assert (await cells(page, "Partitions of flights"))[0][2:4] == ["400", "none yet"]


async def test_thirty_two_partitions_stand_in_order_of_their_numbers(show, api):
    await report(api, "vm-1", range(0, 32, 2))
    await report(api, "vm-2", range(1, 32, 2))
    page = await show()
    await card(page).locator(".big .current").wait_for()

    rows = await cells(page, "Partitions of flights")
    assert [row[0] for row in rows] == [str(number) for number in range(32)]
    assert [row[-1] for row in rows[:2]] == ["vm-1", "vm-2"]


async def test_instances_alive_paused_stopped_and_stale_are_told_apart(show, api):
    await report(api, "vm-1", [0], paused=True)
    await report(api, "vm-2", [1], rate_limit=0.0)
    await report(api, "vm-3", [], stopping=True, at=NOW - 5)
    await report(api, "vm-4", [2], at=NOW - 90)
    page = await show()
    await card(page).locator(".big .current").wait_for()

    rows = await cells(page, "Instances of flights")
    assert [(row[0], row[1], row[4]) for row in rows] == [
        ("vm-1", "paused", "1,000"),
        ("vm-2", "alive", "none"),
        ("vm-3", "stopped", "\u2013"),
        ("vm-4", "stale", "\u2013"),
    ]
    chips = await card(page).locator(".summary .chips .chip").all_inner_texts()
    assert chips[:3] == ["1 stale", "1 partition without a live instance", "1 paused"]
    assert await card(page).locator(".badge").inner_text() == "2 alive"
    assert (await cells(page, "Partitions of flights"))[2][-1] == "vm-4 (gone)"
    assert await card(page).locator(".big .bounds").inner_text() == "records/s"  # not all have a limit


async def test_of_several_consumers_each_opens_by_itself(show, api):
    await report(api, consumer="flights")
    await report(api, consumer="orders", at=NOW - 300)
    page = await show()
    await card(page, "orders").wait_for()

    assert await page.locator("#consumer-cards .detail:visible").count() == 0
    assert await card(page, "orders").locator(".badge").inner_text() == "none alive"
    await card(page, "orders").get_by_role("button", name="orders").click()
    assert await card(page, "orders").locator(".measures dd").first.inner_text() == "4,040"
    assert await card(page, "orders").locator(".big .current").inner_text() == "?"
    assert await page.locator("#consumer-cards .detail:visible").count() == 1


async def test_numbers_and_plots_follow_without_a_reload(show, api):
    await report(api, written_per_s=500.0)
    page = await show()
    await card(page).get_by_role("img", name="Records written per second: latest 500, limit 1,000").wait_for()
    await report(api, written_per_s=640.0, at=NOW, rate_limit=800.0)

    await card(page).get_by_role("img", name="Records written per second: latest 640, limit 800").wait_for()
    plot = card(page).locator(".plot").first
    assert await plot.locator("path.data").get_attribute("d") is not None
    assert len(re.findall("V", await plot.locator("svg.canvas .limit-line").get_attribute("d"))) == 1


async def test_what_changed_before_a_start_is_a_chip_while_its_instance_lives(show, api):
    notice = "the routes have changed"
    await report(api, notice=notice)
    await report(api, consumer="orders", notice=notice, at=NOW - 300)
    page = await show()
    await card(page).get_by_text("changed before this start").wait_for()

    assert await page.get_by_title(notice).count() == 1


async def test_a_limit_that_hubs_share_says_so_and_request_units_are_ordered_by_their_unit(show, api):
    await report(api, rate_hubs_count=3)
    page = await show()
    await card(page).locator(".big").get_by_text("of 1,000 records/s of 3 hubs together").wait_for()
    await page.get_by_role("button", name="Rate of flights").click()
    dialog = page.get_by_role("dialog", name="Rate of flights")
    await dialog.get_by_label("Limit of").select_option("request_units")
    await dialog.get_by_label("Rate").select_option("fleet_rate")
    await dialog.get_by_label("Per second").fill("4000")
    await dialog.get_by_label("Your name").fill("ann")
    await dialog.get_by_role("button", name="Set rate").click()

    await card(page).get_by_text("ordered: 4,000 RU/s together by ann").wait_for()
    assert "flights" not in api.consumers.rates.orders


async def test_a_rate_is_ordered_with_a_key_and_shown_as_ordered(show, api):
    api.key = KEY
    await report(api)
    page = await show()
    await page.get_by_role("button", name="Rate of flights").click()
    dialog = page.get_by_role("dialog", name="Rate of flights")
    await dialog.get_by_label("Per second").fill("250.5")
    await dialog.get_by_label("Your name").fill("ann")
    await dialog.get_by_role("button", name="Set rate").click()
    await dialog.get_by_role("alert").get_by_text("wants a key for orders").wait_for()
    assert api.consumers.rates.orders == {}
    await dialog.get_by_label("Key for orders").fill(KEY)
    await dialog.get_by_role("button", name="Set rate").click()

    await card(page).get_by_text("ordered: 251 records/s each by ann").wait_for()
    order = api.consumers.rates.orders["flights"]
    assert (order.rate, order.fleet_rate, order.by) == (250.5, None, "ann")


async def test_an_order_is_lifted(show, api):
    api.consumers.rates.orders["flights"] = RateOrder(fleet_rate=4000.0, by="dan")
    await report(api)
    page = await show()
    await card(page).get_by_text("ordered: 4,000 records/s together by dan").wait_for()
    await page.get_by_role("button", name="Rate of flights").click()
    dialog = page.get_by_role("dialog", name="Rate of flights")
    await dialog.get_by_label("Rate").select_option("")
    await dialog.get_by_label("Your name").fill("ann")
    await dialog.get_by_role("button", name="Set rate").click()

    async def lifted():
        return await card(page).get_by_text("ordered:").count() == 0

    await eventually(lifted)
    order = api.consumers.rates.orders["flights"]
    assert (order.rate, order.fleet_rate) == (None, None)


async def test_consumers_that_cannot_be_read_do_not_hide_the_targets(show, api):
    await report(api)
    page = await show()
    await card(page).locator(".big .current").wait_for()
    api.consumers_failing = 503
    await page.get_by_text("The consumers cannot be read: the table did not answer.").wait_for()

    assert await page.locator("#banner").is_hidden()
    assert await page.evaluate("document.querySelector('#consumers').classList.contains('unread')")
    api.consumers_failing = None

    async def cleared():
        return await page.locator("#consumers-failure").is_hidden()

    await eventually(cleared)


async def test_names_from_the_server_never_become_markup(show, api):
    await report(api, MARKUP, consumer=MARKUP, hub=MARKUP)
    page = await show()
    await card(page, MARKUP).locator(".big").wait_for()

    assert await page.locator("img").count() == 0
    assert await page.title() == "Tidemark"


@pytest.mark.parametrize("opened", [False, True])
async def test_a_phone_has_no_horizontal_scrolling(show, api, opened):
    name = "instance-with-a-very-long-name-without-any-place-to-break-0123456789"
    await report(api, name, range(32))
    page = await show(**PHONE)
    await card(page).locator(".big").wait_for()
    if opened:
        await page.get_by_role("button", name="Rate of flights").click()

    width, inner = await page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert (width, inner) == (360, 360)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_contrasts_with_its_ground(show, api, scheme):
    api.consumers.rates.orders["flights"] = RateOrder(rate=5.0, by="dan")
    await report(api, "vm-1", [0], paused=True)
    await report(api, "vm-2", [1], at=NOW - 90)
    await report(api, "vm-3", [], stopping=True)
    await report(api, "vm-4", [2])
    page = await show(color_scheme=scheme)
    await card(page).locator(".big").wait_for()

    seen, poor = await page.evaluate(CONTRASTS)

    assert seen > 120
    assert poor == []
