"""The dashboard in a real browser, served with the product's own views over a simulated past."""

import re

import pytest
from msgspec import structs

from scaling.log_entry import LogEntry, LogKind
from scaling.model import Controls, Reason, ScaleAction
from scaling.notice import Acknowledged, Drain
from scaling.ports import PoisonMessage
from tests.support.scaling.browser import (
    CONTRASTS,
    KEY,
    NOW,
    PHONE,
    FakeApi,
    SimulatedTarget,
    eventually,
    service_level_policy,
    shadowed_policy,
    steady,
    threshold_policy,
    waves,
)

pytestmark = [pytest.mark.browser, pytest.mark.wire, pytest.mark.asyncio(loop_scope="module")]

MARKUP = "<img src=x onerror=\"document.title='injected'\">"


def card(page, target="plan-orders"):
    return page.get_by_role("article", name=target)


async def numbers(page):
    big = card(page).locator(".big .numbers")
    return [await big.locator(f".{name}").inner_text() for name in ("current", "desired", "bounds")]


async def press_until_focused(page, name, *, limit=40):
    """Tabs until the control with this accessible name has the focus, as somebody without a mouse does."""
    for _ in range(limit):
        await page.keyboard.press("Tab")
        focused = await page.evaluate(
            "document.activeElement.getAttribute('aria-label')"
            " || document.activeElement.labels?.[0]?.textContent || document.activeElement.textContent"
        )
        if focused.startswith(name):
            return
    raise AssertionError(f"no control named {name} was reached with {limit} tabs")


async def test_a_card_shows_numbers_reason_and_explanation(show, api):
    target, now = api.targets["plan-orders"], NOW
    current = target.state.expected
    way = (current, current - 1, now)
    pending = ScaleAction("plan-orders@1", "plan-orders", *way, now + 720.0, Reason.SCALE_IN)
    drain = Drain("plan-orders@1", *way, now + 120.0, now + 720.0, current)
    target.state = structs.replace(target.state, pending=pending, drain=drain)
    target.controls = Controls(acknowledged=Acknowledged("plan-orders@1", ("a",)))
    page = await show()
    view = target.view(NOW)

    chip = card(page).locator(".chip", has_text="workers:")
    assert await chip.inner_text() == f"workers: 1 of {current} acknowledged"
    assert (await chip.get_attribute("title")).endswith(", then withdrawn")
    reason = view.reason.replace("_", " ")

    assert await numbers(page) == [str(view.current), str(view.desired), "of 1..8"]
    assert await card(page).locator(".line").inner_text() == view.line
    assert (await card(page).locator(".badge").inner_text()).endswith(reason)
    for flip in view.flips:
        assert await card(page).get_by_text(flip, exact=True).count() == 1


async def test_threshold_lines_step_with_the_instance_count(show, api):
    """Out is above 400 below four instances and above 1,200 from four on; the line must do the same."""
    page = await show()
    await page.get_by_role("radio", name="6 h").check()
    counts = {entry.current for entry in api.targets["plan-orders"].entries if entry.current is not None}
    assert min(counts) < 4 <= max(counts)

    async def levels():
        path = await card(page).locator("path.level-out").get_attribute("d")
        return len(set(re.findall(r"V([\d.]+)", path)))

    assert await eventually(levels) == 2
    assert await card(page).locator("path.level-in").count() == 1
    assert await card(page).get_by_text(re.compile(r"scale out: average > ")).count() == 1


async def test_a_metric_in_seconds_is_shown_as_a_duration(browser):
    plain = threshold_policy("plan-orders")
    metrics = {"backlog": structs.replace(plain.spec.metrics["backlog"], unit="s")}
    rule = structs.replace(plain.spec.rules[0], options={"metric": "backlog", "scale_out_above": 5400})
    policy = threshold_policy("plan-orders", metrics=metrics, rules=(rule,))
    api = FakeApi([SimulatedTarget(policy, steady(0.0))])
    api.targets["plan-orders"].waiting = 600.0
    api.simulate(1800)
    page = await (await browser.new_context()).new_page()
    await page.goto(await api.start())
    await card(page).wait_for()

    shown = await card(page).locator("table.metrics td[data-label=latest]").inner_text()
    assert re.fullmatch(r"\d+ (s|min|h)( \d+ (s|min))?", shown)
    assert await card(page).get_by_text("scale out: average > 1 h 30 min").count() == 1
    assert await card(page).get_by_role("img", name=re.compile(r"^backlog: latest [\d. smin]+;")).count() == 1
    ticks = await card(page).locator("text.axis-text").all_text_contents()
    assert any(re.fullmatch(r"[\d.]+h", tick) for tick in ticks)


async def test_a_service_level_shows_its_budget_its_forecast_and_what_was_learned(browser):
    api = FakeApi([SimulatedTarget(service_level_policy("plan-orders"), waves(low=100.0, high=900.0))])
    api.simulate(30 * 3600)
    context = await browser.new_context(color_scheme="dark")
    page = await context.new_page()
    await page.goto(await api.start())
    view = api.targets["plan-orders"].view(NOW).service_levels[0]

    heading = card(page).get_by_role("heading", name="Service level: 2 min for all but 1 %")
    await heading.wait_for()
    meter = card(page).get_by_role("meter", name="Late messages today")
    shown = await card(page).locator(".budget > span").inner_text()
    assert re.fullmatch(r"[\d.]+ % late today of 1 % allowed", shown)
    assert await meter.get_attribute("aria-valuetext") == shown
    assert await card(page).get_by_role("listitem").filter(has_text="an instance serves").count() == 1
    assert await card(page).get_by_text(re.compile("^how long a message takes is not known;")).count() == 1
    assert await card(page).get_by_text("concurrency of an instance: 30 messages, as given").count() == 1
    plot = card(page).get_by_role("img", name=re.compile("messages.s: now"))
    assert await plot.locator("path.forecast").count() >= 1
    assert await plot.locator("path.margin").count() >= 1
    await card(page).get_by_text("What other margins would cost").click()
    assert await card(page).locator("tr.chosen").count() == 1
    assert len(view.candidates) == await card(page).locator("details tbody tr").count()
    seen, poor = await page.evaluate(CONTRASTS)
    assert seen > 40
    assert poor == []
    await context.close()
    await api.stop()


async def test_a_shadow_is_drawn_compared_in_words_and_promoted(browser):
    target = SimulatedTarget(shadowed_policy("plan-orders"), waves())
    api = FakeApi([target])
    api.simulate(30 * 3600)
    context = await browser.new_context(color_scheme="dark")
    page = await context.new_page()
    await page.goto(await api.start())
    shadow = target.view(NOW).shadow

    await card(page).get_by_role("heading", name="Shadow", exact=True).wait_for()
    assert await card(page).locator(".advice").inner_text() == shadow.advice
    assert shadow.advice.startswith(("switch: ", "stay: "))
    rows = card(page).locator(".shadow tbody tr")
    assert await rows.locator("th").all_inner_texts() == ["configured, deciding", "shadow, simulated"]
    assert await card(page).locator("path.simulated-line").get_attribute("d")
    plot = card(page).get_by_role("img", name=f"now {target.current}, simulated {shadow.current}")
    assert await plot.count() == 1
    for note in shadow.notes:
        assert await card(page).get_by_text(note, exact=True).count() == 1
    await page.get_by_role("radio", name="All").check()
    # A row of a decision: the newest may tell what became of one.
    said = [entry.line for entry in target.entries if entry.shadow is not None][-1]
    await page.locator(".row > button", has_text=said).first.click()
    assert await page.locator(".row .more").get_by_text("shadow plan-orders ").count() == 1
    assert (await page.evaluate(CONTRASTS))[1] == []

    await page.get_by_role("button", name="Shadow plan-orders").click()
    await page.get_by_label("Your name").fill("ann")
    await page.get_by_role("button", name="Apply").click()

    await card(page).get_by_text("shadow promoted by ann", exact=True).wait_for()
    assert target.controls.promoted.by == "ann"
    [ordered] = [body for method, _, _, body in api.requests if method == "POST"]
    assert ordered["rules"] == target.policy.shadow_id
    assert await card(page).get_by_text("tidemark.toml should follow").count() == 1
    target.tick(NOW)
    await card(page).get_by_role("heading", name="Shadow, promoted").wait_for()
    await context.close()
    await api.stop()


async def test_request_units_stand_beside_their_reason_and_not_under_it(browser):
    wide = {"scaler": "cosmos_throughput", "minimum": 400, "maximum": 100_000}
    target = SimulatedTarget(threshold_policy("flights-ru", **wide), waves(), current=40_000)
    api = FakeApi([SimulatedTarget(threshold_policy("a-plan"), waves()), target])
    api.simulate(1200)
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    page = await context.new_page()
    await page.goto(await api.start())

    row = card(page, "flights-ru").locator(".summary")
    if await row.get_attribute("aria-expanded") == "true":
        await row.click()
    bounds = await row.locator(".bounds").bounding_box()
    badge = await row.locator(".badge").bounding_box()

    assert bounds["x"] + bounds["width"] <= badge["x"]
    await context.close()
    await api.stop()


async def test_numbers_change_without_a_reload(show, api):
    page = await show()
    target = api.targets["plan-orders"]
    before = await page.locator(".row").count()
    earlier = target.view(NOW).current
    target.current, target.state = earlier + (3 if earlier < 5 else -3), type(target.state)()
    target.tick(NOW)
    now = target.view(NOW).current
    assert now != earlier

    async def shown():
        return (await numbers(page))[0] == str(now)

    await eventually(shown)
    await page.get_by_role("radio", name="All").check()
    assert await page.locator(".row").count() > before
    assert "plan-orders: " in await page.locator("#announcer").text_content()


async def test_a_pause_by_keyboard_alone_asks_for_the_key_and_shows_the_answer(show, api):
    api.key = KEY
    page = await show()

    await press_until_focused(page, "Pause plan-orders")
    await page.keyboard.press("Enter")
    await page.get_by_role("dialog", name="Pause plan-orders").wait_for()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")
    await page.keyboard.type("ann")
    await page.keyboard.press("Enter")
    await page.get_by_role("alert").get_by_text("wants a key for orders").wait_for()
    assert api.targets["plan-orders"].controls.pauses == ()
    assert await page.get_by_text(re.compile("paused both ways")).count() == 0
    await page.keyboard.type(KEY)
    await page.keyboard.press("Enter")

    await card(page).get_by_text(re.compile(r"paused both ways until .* by ann")).wait_for()
    assert not await page.get_by_role("dialog").is_visible()
    focused = await page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused == "Pause plan-orders"
    orders = [request for request in api.requests if request[0] == "POST"]
    assert orders[-1][1:] == (
        "/api/scaling/plan-orders/pause",
        {},
        {"direction": None, "for": "30m", "by": "ann"},
    )
    assert KEY not in page.url
    assert await page.evaluate("Object.values(localStorage)") == ["ann"]


async def test_a_refused_override_shows_the_servers_own_words(show, api):
    page = await show()
    await page.get_by_role("button", name="Override plan-orders").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Instances").fill("99")
    await dialog.get_by_label("Your name").fill("dan")
    await dialog.get_by_role("button", name="Override").click()

    await dialog.get_by_text("capacity: found 99; accepted are whole numbers 1 to 8").wait_for()
    await dialog.get_by_label("Instances").fill("6")
    await dialog.get_by_role("button", name="Override").click()
    await card(page).get_by_text(re.compile(r"override 6 until .* by dan")).wait_for()

    assert api.targets["plan-orders"].controls.override.capacity == 6


@pytest.mark.parametrize("order", ["Resume", "Dry-run"])
async def test_every_order_is_confirmed_in_a_dialog_and_can_be_cancelled(show, api, order):
    page = await show()
    await page.get_by_role("button", name=f"{order} plan-orders").click()
    await page.get_by_role("dialog").wait_for()
    await page.keyboard.press("Escape")

    assert not await page.get_by_role("dialog").is_visible()
    assert [request for request in api.requests if request[0] == "POST"] == []


async def test_dry_run_sends_what_was_chosen(show, api):
    page = await show()
    await page.get_by_role("button", name="Dry-run plan-orders").click()
    await page.get_by_label("Your name").fill("ann")
    await page.get_by_role("button", name="Apply").click()
    await card(page).get_by_text("dry-run", exact=True).wait_for()

    assert api.targets["plan-orders"].controls.dry_run is True


async def test_text_from_the_server_never_becomes_markup(show, api):
    target = SimulatedTarget(threshold_policy(MARKUP), steady(100))
    api.targets[MARKUP] = target
    api.simulate(1200, only=target.policy.target)
    target.log(LogKind.VERIFY, NOW, f"verify {MARKUP}", MARKUP, by=MARKUP)
    api.poison = [PoisonMessage(MARKUP, MARKUP, NOW, MARKUP)]
    api.poison_count = 1
    api.problems = [MARKUP]
    page = await show()
    await page.get_by_role("button", name=f"verify {MARKUP}").click()

    assert await page.locator("img").count() == 0
    assert await page.title() == "Tidemark"
    assert await page.locator(".poison pre").inner_text() == MARKUP
    assert await card(page, MARKUP).locator(".name").inner_text() == MARKUP


@pytest.mark.parametrize("opened", [False, True])
async def test_a_phone_has_no_horizontal_scrolling(show, api, opened):
    long_name = "plan-with-a-very-long-name-without-any-place-to-break-in-westeurope-production"
    api.targets[long_name] = SimulatedTarget(threshold_policy(long_name), lambda _: None)
    api.simulate(1200, only=long_name)
    api.poison, api.poison_count = [PoisonMessage("q", "m", None, "x" * 500)], 1
    page = await show(**PHONE)
    if opened:
        await page.locator(".row > button").first.click()
        await page.get_by_role("button", name="Table of the charts of plan-orders").click()
        await page.get_by_role("button", name="Pause plan-orders").click()

    width, inner = await page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert (width, inner) == (360, 360)


async def test_the_state_of_a_closed_target_can_be_read_on_a_phone(show, api):
    page = await show(**PHONE)
    await page.locator(".summary").first.click()

    badge = page.locator('.summary[aria-expanded="false"] .badge').first
    assert await badge.evaluate("(each) => each.scrollWidth <= each.clientWidth && each.clientWidth > 40")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_contrasts_with_its_ground(show, api, scheme):
    now = NOW
    troubled = SimulatedTarget(threshold_policy("plan-troubled", dry_run=True), lambda _: None)
    troubled.corrupt = ("window:backlog",)
    api.targets["plan-troubled"] = troubled
    troubled.tick(now - 60)
    outcomes = ("plateau", "refused", "paused", "fallback", "scale_in", "applied", "overridden")
    api.extra = [
        LogEntry("plan-orders", now - 9, LogKind.VERIFY, f"v-{outcome}", "line", outcome)
        for outcome in outcomes
    ]
    api.problems = ["tidemark.toml: something to repair"]
    page = await show(color_scheme=scheme)
    await page.locator(".row > button").nth(1).click()

    seen, poor = await page.evaluate(CONTRASTS)

    assert seen > 80
    assert poor == []
    ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", ground))) < 60) == (scheme == "dark")


async def test_every_control_has_a_name_and_ids_are_unique(show, api):
    page = await show()
    await page.get_by_role("button", name="Override plan-orders").click()
    nameless = await page.evaluate("""() =>
      [...document.querySelectorAll("button, input, select, a[href], [role=slider], [tabindex='0'], dialog, section")]
        .filter((e) => {
          const labelled = e.getAttribute("aria-labelledby");
          const text = e.getAttribute("aria-label") || (labelled && document.getElementById(labelled)?.textContent)
            || [...(e.labels ?? [])].map((l) => l.textContent).join("")
            || (["BUTTON", "A"].includes(e.tagName) ? e.textContent : "");
          return !text.trim() && !e.hidden;
        })
        .map((e) => e.outerHTML.slice(0, 100))""")
    ids = await page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")

    assert nameless == []
    assert len(ids) == len(set(ids))
    assert await page.evaluate("document.documentElement.lang") == "en"


async def test_the_charts_can_be_read_by_keyboard_and_as_a_table(show, api):
    page = await show()
    slider = page.get_by_role("slider", name="Moment in the charts of plan-orders")
    await press_until_focused(page, "Moment in the charts")
    newest = await slider.get_attribute("aria-valuetext")
    for _ in range(12):
        await page.keyboard.press("ArrowLeft")
    earlier = await slider.get_attribute("aria-valuetext")

    assert re.search(r"backlog [\d,?]+, scale out > [\d,]+, scale in < 60, current \d, desired \d", newest)
    assert earlier != newest
    assert await card(page).locator(".readout").is_visible()
    await page.keyboard.press("Escape")
    assert not await card(page).locator(".readout").is_visible()
    toggle = page.get_by_role("button", name="Table of the charts of plan-orders")
    await toggle.click()
    table = page.get_by_role("region", name="Values of plan-orders")
    assert await toggle.get_attribute("aria-expanded") == "true"
    assert await table.locator("tbody tr").count() > 30


async def test_a_server_that_is_gone_is_told_and_nothing_passes_for_fresh(show, api):
    page = await show()
    assert not await page.locator("#banner").is_visible()
    await api.stop()
    await page.get_by_text(re.compile(r"The server cannot be reached: .*not the present")).wait_for()

    assert await page.evaluate("document.body.classList.contains('stale')")
    assert float(await card(page).locator(".line").evaluate("e => getComputedStyle(e).opacity")) < 1


async def test_a_failing_server_is_told_and_recovery_clears_the_banner(show, api):
    page = await show()
    api.failing = 503
    await page.get_by_text(
        re.compile("The server answered HTTP 503: the state store did not answer")
    ).wait_for()
    api.failing = None

    async def clear():
        return not await page.locator("#banner").is_visible()

    await eventually(clear)


@pytest.mark.parametrize("width", [320, 390, 1280])
async def test_the_metrics_of_a_target_are_whole_at_every_width(show, api, width):
    """A name as long as people give them, and a failure: nothing is cut, and it stays a table for a screen reader."""
    made = threshold_policy("plan-orders")
    metrics = {**made.spec.metrics, "consumer_throttled_share": made.spec.metrics["backlog"]}
    api.targets["plan-orders"].policy = threshold_policy("plan-orders", metrics=metrics)
    page = await show()
    await page.set_viewport_size({"width": width, "height": 900})
    region = page.get_by_role("region", name="Metrics of plan-orders")

    wide = "element => [element.scrollWidth - element.clientWidth, document.documentElement.scrollWidth - innerWidth]"
    assert await region.evaluate(wide) == [0, 0]
    assert await region.get_by_role("rowheader").all_inner_texts() == ["backlog", "consumer_throttled_share"]
    row = region.get_by_role("row", name="backlog")
    assert await row.get_by_role("cell").count() == 5


async def test_reads_pass_on_the_pages_function_key(show, api):
    api.read_key = "function-key"
    page = await show("?code=function-key")

    assert await card(page).count() == 1
    assert not await page.locator("#banner").is_visible()
    # In a header, since addresses are written into logs.
    assert all("code" not in request[2] for request in api.requests)


async def test_the_key_for_orders_is_kept_apart_from_the_one_that_opened_the_page(show, api):
    api.read_key, api.key = "function-key", KEY
    page = await show("?code=function-key")
    await page.get_by_role("button", name="Resume plan-orders").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Your name").fill("ann")
    await dialog.get_by_role("button", name="Resume").click()
    await dialog.get_by_label("Key for orders").fill(KEY)
    await dialog.get_by_role("button", name="Resume").click()
    await dialog.wait_for(state="hidden")
    count = len(api.requests)

    async def read_again():
        return len(api.requests) > count + 2

    await eventually(read_again)
    assert not await page.locator("#banner").is_visible()


async def test_an_order_that_the_app_refuses_shows_its_words_and_asks_for_no_key(show, api):
    api.forbidden = "'eve' may look, but gives no orders"
    page = await show()
    await page.get_by_role("button", name="Resume plan-orders").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Your name").fill("eve")
    await dialog.get_by_role("button", name="Resume").click()

    await dialog.get_by_text("'eve' may look, but gives no orders").wait_for()
    assert not await dialog.get_by_label("Key for orders").is_visible()


async def test_a_reader_sees_who_is_signed_in_and_what_orders_would_need(show, api):
    api.signed_in, api.may_order = "anna@example.org", False
    page = await show()
    pause = card(page).get_by_role("button", name="Pause plan-orders")

    assert (await page.locator("#who").inner_text()).split("\n") == [
        "reading as anna@example.org",
        "Sign out",
    ]
    assert await page.get_by_role("link", name="Sign out").get_attribute("href") == "/.auth/logout"
    assert await pause.is_disabled()
    assert await pause.get_attribute("title") == "Orders need the role Tidemark.Operator"


async def test_an_operator_may_order_and_whoever_has_a_key_is_nobody_in_particular(show, api):
    api.signed_in, api.may_order = "anna@example.org", True
    page = await show()
    pause = card(page).get_by_role("button", name="Pause plan-orders")

    assert await page.locator("#who-name").inner_text() == "anna@example.org"
    assert await pause.is_enabled()

    api.signed_in, api.may_order = None, None
    await eventually(page.locator("#who").is_hidden)
    assert await pause.is_enabled()


async def test_reads_without_a_key_ask_for_one(show, api):
    page = await show()
    api.read_key = KEY
    await page.get_by_text(re.compile(r"The server wants a key \(HTTP 401\)")).wait_for()
    await page.get_by_role("button", name="Enter key").click()
    await page.get_by_role("dialog", name="Key").locator("input[name=key]").fill(KEY)
    await page.get_by_role("button", name="Use key").click()

    async def clear():
        return not await page.locator("#banner").is_visible()

    await eventually(clear)
    assert all(KEY not in str(request[2]) for request in api.requests)


async def test_poison_messages_are_shown(show, api):
    api.poison = [PoisonMessage("metrics-poison", "message-1", NOW - 60, '{"v": 9')]
    api.poison_count = 3
    page = await show()

    assert await page.locator("#poison-count").inner_text() == "3"
    assert await page.locator(".poison li").inner_text() != ""
    assert await page.locator(".poison pre").inner_text() == '{"v": 9'
    assert await page.get_by_text("2 more are not shown.").count() == 1


async def test_older_entries_load_without_duplicates_or_holes(show, api):
    target = SimulatedTarget(threshold_policy("plan-busy"), steady(50))
    api.targets["plan-busy"] = target
    api.simulate(5 * 3600, only="plan-busy")
    for name in ("plan-x", "plan-y"):  # with more than three targets only the first, plan-busy, is open
        api.targets[name] = SimulatedTarget(threshold_policy(name), steady(1))
    page = await show()
    await page.get_by_role("radio", name="All").check()
    # One target's whole past is loaded for its charts; the list of all must not show it without the other's.
    await page.get_by_role("radio", name="24 h").check()
    older = page.get_by_role("button", name="Load older")
    everything = sorted(
        (e for t in api.targets.values() for e in t.entries), key=lambda e: (e.at, e.key), reverse=True
    )
    assert len(everything) > 400
    shown = 0
    while shown < 400:
        before = shown
        await older.click()

        async def grown(before=before):
            count = await page.locator(".row").count()
            return count if count > before else 0

        shown = await eventually(grown)
        times = await page.locator(".row time").evaluate_all("all => all.map((e) => Date.parse(e.dateTime))")
        lines = await page.locator(".row .said").all_inner_texts()

        assert times == sorted(times, reverse=True)
        assert sorted(lines) == sorted(entry.line for entry in everything[:shown])


async def test_an_entry_opens_with_its_evidence_and_what_would_have_changed_it(show, api):
    page = await show()
    row = page.locator(".row", has_text="scaling plan-orders out").first
    await row.get_by_role("button").click()
    out = next(e for e in reversed(api.targets["plan-orders"].entries) if e.reason == "scale_out")

    text = await row.locator(".more").inner_text()

    assert f"average backlog {out.recommendation.evidence[0].value:.0f} > " in text
    above = (
        400 if out.current < 4 else 1200
    )  # the policy's levels: the newest change depends on the time of day
    assert f"hold (within target) if 60 <= average backlog <= {above}" in text
    assert out.recommendation.decision_id in text


async def test_a_thousand_targets_stay_searchable_and_draw_only_what_is_open(show, api):
    now = NOW
    for number in range(1000):
        target = SimulatedTarget(threshold_policy(f"plan-{number:04}"), steady(50))
        target.tick(now - 30)
        api.targets[target.policy.target] = target
    page = await show()

    assert await page.locator(".card").count() == 50
    assert await page.locator(".spark").count() == 50
    assert await page.locator("svg.canvas").count() == 0
    options = await page.get_by_label("Show targets by state").locator("option").all_inner_texts()
    assert options[0] == "All states (1001)"
    await page.get_by_label("Search targets").fill("0777")
    assert await page.locator(".card .name").all_inner_texts() == ["plan-0777"]
    await page.get_by_role("button", name="plan-0777").click()
    await page.locator("svg.canvas").first.wait_for()


async def test_a_phone_lists_many_targets_a_line_each_and_first_those_that_need_attention(show, api):
    now = NOW
    for number in range(25):
        target = SimulatedTarget(threshold_policy(f"plan-{number:04}"), steady(50))
        for tick in range(12):
            target.tick(now - 30 - 60 * (11 - tick))
        if number == 17:
            target.state = structs.replace(target.state, capacity_error="the plan was not found")
        api.targets[target.policy.target] = target
    page = await show(**PHONE)

    rows = page.locator(".summary")
    heights = await rows.evaluate_all("rows => rows.map((row) => row.getBoundingClientRect().height)")
    assert max(heights) <= 44
    first, second = await rows.nth(0).inner_text(), await rows.nth(1).inner_text()
    assert re.fullmatch(r"plan-0017\s+1\s+→\s+1\s+capacity unknown\s+\d+ s", first)
    assert re.fullmatch(r"plan-\w+\s+\d\s+→\s+\d\s+\S+\s*[\w ]+\s+\d+ s", second)
    assert await page.evaluate("document.documentElement.scrollWidth") == 360


async def test_what_is_open_or_has_the_focus_stays_when_others_get_into_trouble_and_out_of_it(show, api):
    for number in range(60):
        target = SimulatedTarget(threshold_policy(f"plan-{number:04}"), steady(50))
        for tick in range(12):
            target.tick(NOW - 30 - 60 * (11 - tick))
        api.targets[target.policy.target] = target
    page = await show()
    shown = page.locator(".card .name")
    names = await shown.all_inner_texts()
    opened, focused, troubled = names[49], names[5], [names[30], "plan-0055"]
    states = {name: api.targets[name].state for name in troubled}
    await card(page, opened).locator(".summary").click()
    await card(page, focused).locator(".summary").focus()

    for name in troubled:
        api.targets[name].state = structs.replace(states[name], capacity_error="the plan was not found")
    assert sorted(await eventually(lambda: _first(shown, 2, troubled))) == sorted(troubled)
    assert await card(page, opened).locator("svg.canvas").count() > 0
    api.targets[names[30]].state = states[names[30]]
    assert await eventually(lambda: _first(shown, 2, ["plan-0055", names[0]]))
    assert await page.evaluate("document.activeElement.closest('.card')?.ariaLabel") == focused


async def _first(shown, count, wanted):
    """The first names, if they are the wanted ones."""
    found = (await shown.all_inner_texts())[:count]
    return found if sorted(found) == sorted(wanted) else None


async def test_before_the_first_report_the_page_says_what_to_expect(show, api):
    api.targets = {"plan-new": SimulatedTarget(threshold_policy("plan-new"), steady(1))}
    page = await show()

    assert await page.locator(".age").get_attribute("aria-label") == "not decided yet"
    await card(page, "plan-new").get_by_text("No reports yet: the collector runs every 1 min.").wait_for()
    await page.get_by_text("No decisions yet:").wait_for()
    await page.get_by_text("None: every message on the queues was understood").wait_for()


async def test_a_hidden_tab_stops_asking(show, api):
    page = await show()
    await page.evaluate("""() => {
      Object.defineProperty(document, "hidden", { get: () => window.away, configurable: true });
      window.away = true;
      document.dispatchEvent(new Event("visibilitychange"));
    }""")
    await page.get_by_text("paused", exact=True).wait_for()
    count = len(api.requests)
    await page.wait_for_timeout(2500)  # longer than the shortest time between two polls
    assert len(api.requests) <= count + 2  # a poll under way may still end
    await page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")

    async def asked():
        return len(api.requests) > count + 2

    await eventually(asked)
