"""`tidemark history pull`: what it says, and when it says no."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemark.commands.history.command import app, summary
from tidemark.commands.history.journal import place_of
from tidemark.commands.history.model import Minute, PullPlan, Source
from tidemark.commands.history.pull import Result

BUS = (
    "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg"
    "/providers/Microsoft.ServiceBus/namespaces/bus"
)
PLAN = Source("/plan", "CpuPercentage", "average", "Instance eq '*'")
ARRIVALS = Source(BUS, "IncomingMessages", "total", "EntityName eq 'orders'")
MINUTES = {29_000_000: Minute(5.0, 2), 29_000_001: Minute(None, 2), 29_000_002: Minute(0.0)}


def run(folder, **options):
    given = {
        "target": "orders",
        "resource-id": BUS,
        "entity": "orders",
        "out": folder / "h.csv",
        "root": folder,
        **options,
    }
    words = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    result = CliRunner().invoke(app, ["pull", *words], env={"COLUMNS": "300"})
    assert isinstance(result.exception, SystemExit)
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize(
    ("options", "status", "told"),
    [
        (
            {"resource-id": None},
            1,
            "error: --target: found 'orders', and there is no tidemark.toml here with a target",
        ),
        (
            {"out": "h.txt"},
            1,
            "error: --out: found 'h.txt'; accepted are files that end in .csv, .csv.gz, .parquet",
        ),
        ({"days": 94}, 2, "Invalid value for '--days'"),
        ({"days": 0}, 2, "Invalid value for '--days'"),
    ],
)
def test_what_cannot_be_done_is_said_with_what_can(tmp_path, options, status, told):
    ended, words = run(tmp_path, **options)

    assert (ended, told in words) == (status, True), words
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_with_problems_is_not_passed_over(tmp_path):
    (tmp_path / "tidemark.toml").write_text("[targets.orders]\nscaler = 'nobody'\n")

    ended, words = run(tmp_path)

    assert (ended, "'nobody' is not a known scaler" in words) == (1, True), words


def test_the_summary_counts_gaps_as_gaps():
    wanted = PullPlan("plan", "bus/orders", ARRIVALS, PLAN)

    assert list(summary(Result(MINUTES, 2, 0, 3.0), wanted, Path("h.csv"))) == [
        "h.csv: bus/orders from 2025-02-19 21:20:00Z to 2025-02-19 21:23:00Z, 3 minutes (2 new)",
        "2 have a number of arrivals; the other 1 are gaps, not zeros",
        "2 have a number of instances",
        "the newest 10 minutes are left out: Azure Monitor may still add to them",
    ]


@pytest.mark.parametrize(("offset", "side"), [(3_600.0, "ahead of"), (-3_600.0, "behind")])
def test_the_summary_says_what_was_odd(offset, side):
    wanted = PullPlan("plan", "bus/orders", ARRIVALS, None)

    told = list(summary(Result(MINUTES, 2, 1, offset), wanted, Path("h.csv")))

    assert (
        "instances are not counted: no App Service plan is named (--plan-id), or --no-instances is given"
        in told
    )
    assert "left out of the answers although asked for again, and so gaps: 1 minute" in told
    assert f"this machine's clock is 1 h {side} Azure's, which was used" in told


@pytest.mark.parametrize(("read", "told"), [(False, "nothing was read yet"), (True, "what was read is in")])
def test_a_pull_that_is_stopped_says_what_it_leaves(tmp_path, monkeypatch, read, told):
    async def stopped(_wanted, _days, out, _settings):
        if read:
            place_of(out).touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("tidemark.commands.history.command._pull", stopped)
    ended, words = run(tmp_path)

    assert (ended, f"error: stopped; {told}" in words) == (1, True), words
