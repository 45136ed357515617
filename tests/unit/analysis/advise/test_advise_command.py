"""`tidemark advise` as its user meets it: a file in; a table, TOML that loads, and a page out."""

import random
import re
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from scaling.config.policy import HPA_OUT, Policy
from scaling.config.policy_file import load_config
from scaling.log_entry import LogEntry, LogKind
from scaling.service import registry
from tests.support.analysis import CONFIG, MONDAY
from tidemark.__main__ import command_line
from tidemark.analysis.advise import local, page
from tidemark.analysis.advise.answered import answer, counts, flat, percent_text
from tidemark.analysis.advise.question import Options, prepare
from tidemark.analysis.advise.snippet import as_text, recommended
from tidemark.analysis.backtest.candidates.grid import Targets
from tidemark.analysis.backtest.reading import read_log
from tidemark.analysis.backtest.replay.history import Reading
from tidemark.analysis.errors import InputError
from tidemark.analysis.simulation.answer import WEIGHT, Row, play
from tidemark.analysis.simulation.driving import Shipped
from tidemark.analysis.simulation.field import TODAY, Target, field, service_level, target_per_unit
from tidemark.analysis.simulation.waits import Series
from tidemark.analysis.simulation.world import Model, Run

ROOT = Path(__file__).resolve().parents[4]
SETTINGS = {
    "PLAN_ID": "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/g/providers/Microsoft.Web/serverfarms/p"
}


def loaded(text):
    return load_config(text, name="tidemark.toml", settings=SETTINGS, plug_ins=registry).policies["plan"].spec


def target(**changes):
    given = {
        "service_rate": 10.0,
        "concurrency": 16.0,
        "start_up": 90.0,
        "wait": 60.0,
        "late": 0.01,
        "interval": 60.0,
    }
    return Target(name="plan", minimum=1, maximum=9, reads={"backlog": "backlog"}, **{**given, **changes})


def test_the_recommended_table_loads_in_place_of_the_one_there_is():
    config = f'{CONFIG}\n[targets.plan.out]\ncooldown = "5m"\n\n[targets.plan.plateau]\nmetric = "backlog"\n'
    table = Targets(config, name="tidemark.toml", settings={}, plug_ins=registry).table("plan")
    asked = target(given={"start_up": "45s"})
    text = as_text("plan", recommended(asked, service_level(asked, 30.0, 0.003, 60.0), table))
    spec = loaded(f"version = 1\n\n{text}")

    (rule,) = spec.rules
    assert rule.options == {"backlog": "backlog", "wait": "30s", "late": 0.003, "start_up": "45s"}
    assert (spec.minimum, spec.maximum, spec.dry_run) == (2, 12, True)
    assert (spec.out.cooldown, spec.plateau) == (0.0, None)  # they would only delay the rule
    assert spec.metrics["backlog"].options["queue"] == "orders"


def test_without_a_table_there_is_one_to_fill_in_which_loads_too():
    rule = service_level(target(), 60.0, 0.01, 60.0)
    spec = loaded("version = 1\n\n" + as_text("plan", recommended(target(), rule, None)))

    assert spec.dry_run
    assert spec.maximum == 9
    rule = target_per_unit(target(), 12.0, 60.0)
    spec = loaded("version = 1\n\n" + as_text("plan", recommended(target(), rule, None)))
    assert (spec.rules[0].options, spec.out) == ({"metric": "backlog", "target": 12.0}, HPA_OUT)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidemark.toml").write_text(CONFIG)
    rng = random.Random(3)
    rows = [
        f"{MONDAY + 60 * n:.0f},{rng.randrange(1000, 1500) if n % 60 > 20 else 6000}"
        for n in range(240)
        if n not in {100, 101}
    ]
    (tmp_path / "orders.csv").write_text("\n".join(["t,arrivals", *rows]) + "\n")
    return tmp_path


def invoke(*arguments):
    return CliRunner().invoke(command_line(), ["advise", *arguments], env={"COLUMNS": "120"})


def test_the_command_answers_for_a_plain_csv(folder):
    found = invoke(
        "orders.csv",
        "--target",
        "plan",
        "--service-rate",
        "10",
        "--price",
        "0.2",
        "--currency",
        "EUR",
        "--processes",
        "1",
        "--wait",
        "2m",
        "--allow",
        "unknown=0.1%",
    )

    assert found.exit_code == 3, found.output
    assert (
        "check failed: unknown 2 of 240, allowed 0.001 of all; report: advise-output/advice.html"
        in found.output
    )
    assert "today's policy" in found.output
    assert "0.83 % of the time is missing (2 min in 1 gap)" in found.output
    assert "less than a day" in found.output
    assert "EUR" in found.output
    text = found.output.partition("[targets.plan]")
    assert loaded("version = 1\n" + "".join(text[1:]).partition("page:")[0]).rules[0].type == "service_level"
    page = (folder / "advise-output" / "advice.html").read_text()
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"""(src|href)=["']?https?:|@import|url\(["']?https?:""", page)  # needs no network
    assert (folder / "advise-output" / "advice.parquet").exists()


@pytest.mark.usefixtures("without_pictures")
def test_a_target_that_is_not_configured_is_compared_without_today_and_how_to_name_one_is_told(folder):
    (folder / "orders.csv").write_text("t,arrivals\n0,60\n60,60\n")
    found = invoke("orders.csv", "--service-rate", "10", "--processes", "1")

    assert found.exit_code == 0, found.output
    assert "'orders' is no target of tidemark.toml" in found.output
    assert "give --target: plan" in found.output
    assert "[targets.orders]" in found.output


def test_a_folder_in_place_of_the_configuration_is_said_in_words(folder):
    found = invoke("orders.csv", "--config", str(folder), "--service-rate", "10")

    assert found.exit_code == 1
    assert found.stderr == f"error: {folder}: Is a directory\n"


class Logged(Shipped):
    """A policy at work, and the scaling log of its decisions."""

    def see(self, seen):
        total, now = super().see(seen), self.begin + seen.t + 0.05
        known = {
            "at": now,
            "kind": LogKind.DECISION,
            "key": str(now),
            "line": "",
            "reason": str(self.made.reason),
        }
        self.entries.append(
            LogEntry(
                "plan", **known, current=seen.total, desired=total, metrics={"backlog": round(seen.active)}
            )
        )
        return total


def test_the_log_of_a_policy_at_work_tells_the_load_it_had_and_what_it_cost(tmp_path):
    spec = Targets(CONFIG, name="tidemark.toml", settings={}, plug_ins=registry).baseline("plan")
    spec = msgspec.structs.replace(spec, dry_run=False)
    load = np.random.default_rng(2).poisson(60.0 + 50.0 * np.sin(np.arange(6 * 3600) / 3000.0)).astype(float)
    policy = Logged(Policy(spec), {"backlog": "backlog"}, begin=MONDAY)
    policy.entries = []
    truth = Run(load, policy, Model(minimum=2, maximum=12), 6).replay().outcome()
    (tmp_path / "log.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, policy.entries)))

    (readings,) = read_log(tmp_path / "log.jsonl", "backlog").values()
    question = prepare("plan", readings, Options(service_rate=10.0), spec)
    found = play(
        question.target, question.recorded, question.recorded.load("plan"), next(field(question.target))
    )

    assert found.policy == TODAY
    assert found.instance_hours == pytest.approx(truth.instance_hours, rel=0.1)
    assert sum(question.recorded.bins) == pytest.approx(load[:-60].sum(), rel=0.01)


def test_of_several_targets_one_is_asked_for():
    readings = {name: [Reading(MONDAY, 1.0)] for name in ("one", "two")}

    with pytest.raises(InputError, match="2 targets: give --target"):
        local.chosen(readings, None, None)
    assert local.chosen(readings, "two", None)[0] == "two"


@pytest.mark.parametrize(("late", "is_left_out"), [(0.001, True), (0.5, False)])
def test_what_is_evaluated_oftener_is_left_out_of_a_long_history_unless_no_other_keeps_the_objective(
    late, is_left_out, monkeypatch
):
    rows = [Reading(MONDAY + 60.0 * n, arrivals=60.0) for n in range(9)]
    question = prepare("plan", rows, Options(service_rate=10.0), None)
    series = Series([0.0, 60.0], [1.0, 2.0], [3.0, 4.0], [1, 2])

    def replayed(_question, entry):
        share = late / 10 if entry.oftener else late
        return Row(
            entry.name,
            9.0,
            share,
            9.0,
            5.0,
            1.0,
            0.0,
            1.0,
            entry.objective,
            series,
            entry.ours,
            entry.oftener,
        )

    monkeypatch.setattr(local, "LONG", 8)
    monkeypatch.setattr(local, "_play", replayed)
    monkeypatch.setattr(local, "causes", lambda *_: "why")
    advice = local.advised(question, Options(), None, processes=1)

    assert any(row.oftener for row in advice.rows) is not is_left_out
    assert (local.LEFT_OUT in advice.question.notes) is is_left_out
    monkeypatch.setattr(local, "LONG", 9)
    assert any(row.oftener for row in local.advised(question, Options(), None, processes=1).rows)


@pytest.mark.parametrize(("late", "winner"), [(0.5, False), (0.001, True)])
@pytest.mark.usefixtures("without_pictures")
def test_saturation_comes_first_and_where_all_miss_there_is_no_winner(late, winner, capsys):
    """Two policies, both late with this share, of a load whose peak needs more than the maximum."""
    rows = [Reading(MONDAY + 60.0 * n, arrivals=31_200.0 if n == 5 else 60.0) for n in range(9)]
    question = prepare("plan", rows, Options(service_rate=10.0, maximum=10), None)
    series = Series([0.0, 60.0], [1.0, 2.0], [3.0, 4.0], [1, 2])
    played = [
        Row(entry.name, 123_456.7, late, 10.0, 5.0, 1.0, 0.0, 1.0, entry.objective, series, entry.ours)
        for entry in field(question.target)
        if not entry.oftener
    ]
    found = answer(question, Options(), played, None)
    local.show(found)  # 80 columns
    assert "…" not in capsys.readouterr().out
    local.show(found)
    first, *lines = capsys.readouterr().out.splitlines()
    html = page.report_of([found]).html()

    assert first.startswith(
        "what comes at the peak keeps 52 instances busy, and the maximum is 10: with 10 all the time"
    )
    assert html.index("keeps 52 instances busy") < html.index('<dl class="facts">')
    assert any("*" in line for line in lines) is winner
    assert ("[targets.plan]" in "\n".join(lines), "tidemark lint" in html) == (winner, winner)
    assert ("none is recommended" in html, "late least: instance-hours" in html) == (not winner, not winner)
    assert flat(found)[0]["recommended"] is (winner and found.choice.taken == played[0].policy)
    assert counts([found])["late"] is None


@pytest.mark.parametrize(("takes", "said"), [(1, False), (80, True)])
@pytest.mark.usefixtures("without_pictures")
def test_what_scale_ins_stop_while_it_is_processed_is_told_where_it_is_much(takes, said, capsys):
    """Half an hour of load and half an hour without, six times."""
    counts = [600.0 if n // 30 % 2 == 0 else 6.0 for n in range(360)]
    rows = [Reading(MONDAY + 60.0 * n, arrivals=count) for n, count in enumerate(counts)]
    options = Options(service_rate=4.0 / takes, concurrency=4.0, maximum=500, late=0.2)
    question = prepare("plan", rows, options, None)
    asked, recorded = question.target, question.recorded
    played = [play(asked, recorded, recorded.load("plan"), entry) for entry in islice(field(asked), 5)]
    found = answer(question, Options(), played, None)
    local.show(found)
    shown, html = capsys.readouterr().out, page.report_of([found]).html()

    sentence = (
        f"without drain notices its scale-ins stop about {percent_text(found.shown.stopped)} of the messages"
    )
    assert found.choice.taken is not None
    assert (found.shown.stopped > 0.005, sentence in shown, sentence[1:] in html) == (said, said, said)


@pytest.mark.parametrize("file", ["docs/advise.md", "docs/service-level.md"])
def test_the_docs_weigh_late_messages_as_the_page_does(file):
    text = " ".join((ROOT / file).read_text(encoding="utf-8").split())

    assert WEIGHT in text
