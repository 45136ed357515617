"""Makes the pictures of the docs from today's code: `make pictures`, or `python docs/images/draw.py [NAME ...]` for some of them.

What takes numbers from a text takes them from there (`autoscaling.png` the table of benchmarks/README.md), so that both say the same.
`orders` and `flights` run the demo's scenes, which take three minutes of an idle machine; what `orders` prints is the table of
docs/local-stack.md. The portal's drawings are made by hand.
"""

from __future__ import annotations

import asyncio
import re
import runpy
import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.async_api import async_playwright
from rich.console import Console
from typer import Typer

from benchmarks.autoscaling.plot import picture
from devstack.__main__ import app as devstack
from tests.support.scaling import browser as simulated
from tidemark.__main__ import command_line

ROOT = Path(__file__).resolve().parents[2]
IMAGES = Path(__file__).parent

WORLD_CUP = ROOT / "benchmarks" / "autoscaling" / "traces" / "wc98_group_stage.csv.gz"
ADVISED = "--target plan-orders --service-rate 50 --concurrency 16 --start-up 90s --price 0.20 --currency EUR"
"""Options of the example in docs/advise.md, whose policy is that of the README with a maximum of 60."""


def _run(app: Typer, *arguments: str) -> None:
    """A command that ends as on a terminal: by SystemExit, whatever its status."""
    try:
        app(arguments)
    except SystemExit as end:
        if end.code:
            raise


def architecture() -> None:
    runpy.run_path(str(IMAGES / "draw_architecture.py"), run_name="__main__")


def service_level() -> None:
    runpy.run_module("benchmarks.autoscaling.picture", run_name="__main__")


def grid() -> None:
    runpy.run_module("benchmarks.autoscaling.report", run_name="__main__")


def autoscaling() -> None:
    table = (
        (ROOT / "benchmarks" / "README.md")
        .read_text(encoding="utf-8")
        .partition("traces at most 1 % late")[2]
        .partition("\n\n")[0]
    )
    rows = re.findall(r"^\| \**(.+?)\** \| ([\d.]+) \| ([\d.]+) % \|", table, re.MULTILINE)
    points = {name: (float(cost), float(late)) for name, cost, late in rows}
    ours = {name for name in points if name.startswith(("service_level", "target_per_unit", "threshold"))}
    picture(points, ours).savefig(IMAGES / "autoscaling.png", dpi=130, facecolor="white")


def advise() -> None:
    with tempfile.TemporaryDirectory() as folder:
        policy = (
            (ROOT / "README.md").read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
        )
        config = Path(folder) / "tidemark.toml"
        config.write_text(policy.replace("maximum = 10", "maximum = 60"), encoding="utf-8")
        (Path(folder) / ".env").write_text(
            f"ORDERS_PLAN_ID={PLAN}\nOrdersServiceBus=none\n", encoding="utf-8"
        )
        places = ["--root", folder, "--config", str(config), "--output", folder]
        _run(command_line(), "advise", str(WORLD_CUP), *ADVISED.split(), *places)
        shutil.copy(Path(folder) / "curve-0.png", IMAGES / "advise.png")


PLAN = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/g/providers/Microsoft.Web/serverfarms/p"


def orders() -> None:
    _run(devstack, "demo", "--part", "orders")
    shutil.copy(ROOT / "demo-report" / "autoscaling.png", IMAGES / "demo-orders.png")


def flights() -> None:
    _run(devstack, "demo", "--part", "flights")
    shutil.copy(ROOT / "demo-report" / "consumer.png", IMAGES / "demo-consumer.png")


def dashboard() -> None:
    asyncio.run(_dashboard())


async def _dashboard() -> None:
    """Six hours of two targets, and a consumer that is a little behind: what the tests of the page show to a browser."""
    targets = [
        simulated.SimulatedTarget(
            simulated.threshold_policy("plan-invoices", maximum=4), simulated.waves(high=300.0, phase=0.3)
        ),
        simulated.SimulatedTarget(simulated.threshold_policy("plan-orders"), simulated.waves()),
    ]
    api = simulated.FakeApi(targets, clock=time.time)
    api.simulate(6 * 3600)
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=simulated.chromium_path(), args=simulated.FLAGS
        )
        page = await chromium.new_page(viewport={"width": 1440, "height": 900})
        await _report(api, 0)
        await page.goto(await api.start())
        await page.get_by_role("radio", name="6 h").check()
        invoices = page.get_by_role("article", name="plan-invoices").locator(".summary")
        await invoices.click()  # closed, so that both forms are seen
        await page.mouse.move(0, 0)
        for tick in range(1, 9):
            await page.wait_for_timeout(2500)  # the page asks this often
            await _report(api, tick)
        box = await page.locator("#decisions").bounding_box()
        clip = {"x": 0, "y": 0, "width": 1440, "height": box["y"] if box else 1290}
        await page.screenshot(path=IMAGES / "dashboard.png", clip=clip, full_page=True)
        await chromium.close()
    await api.stop()


async def _report(api: simulated.FakeApi, tick: int) -> None:
    """What two instances say of themselves, a little other each time."""
    for number in (1, 2):
        written = 870.0 + 30.0 * ((tick + number) % 3)
        row = simulated.consumer_row(
            f"vm-{number}", (2 * number - 2, 2 * number - 1), written_per_s=written, at=time.time() - 2
        )
        await api.consumers.stats.put(row)


PICTURES = {
    architecture: ("architecture.svg",),
    service_level: ("service-level.svg",),
    grid: ("autoscaling-grid.svg",),
    autoscaling: ("autoscaling.png",),
    advise: ("advise.png",),
    dashboard: ("dashboard.png",),
    orders: ("demo-orders.png",),
    flights: ("demo-consumer.png",),
}
"""What makes which files, the quick ones first."""


if __name__ == "__main__":
    by_name = {make.__name__: make for make in PICTURES}
    for name in sys.argv[1:] or by_name:
        if name not in by_name:
            raise SystemExit(f"'{name}' is no picture; accepted: {', '.join(by_name)}")
        Console().print(f"{name}: {', '.join(PICTURES[by_name[name]])}")
        by_name[name]()
