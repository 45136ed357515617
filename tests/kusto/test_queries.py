"""The queries of the workbook and of the alerts, run on an hour of lines that this app has logged."""

import json
import re
import tomllib
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from scaling.collectors.number.log_query import LogQueryCollector
from scaling.collectors.number.metric_answers import newest_end
from tests.kusto.evaluator import Dynamic, Workspace
from tests.kusto.parser import KqlError
from tests.kusto.recording import MINUTES, TARGETS, consumer_lines, moment, scaling_lines
from tests.support.infra.templates import INFRA, ROOT
from tests.support.scaling.runner import MINUTE, NOW
from tidemark.foundation.log.tail import MARK

QUERIES = INFRA / "queries"
FUNCTIONS = {path.stem: path.read_text(encoding="utf-8") for path in (QUERIES / "functions").glob("*.kql")}
GUID = "11111111-2222-3333-4444-555555555555"
END = NOW + MINUTES * MINUTE
PARAMETERS = {"{Target}": "*", "{Consumer}": "*", "{TimeRange:grain}": "5m"}


def query(name, **parameters):
    text = (QUERIES / f"{name}.kql").read_text(encoding="utf-8")
    for parameter, value in (PARAMETERS | {f"{{{key}}}": value for key, value in parameters.items()}).items():
        text = text.replace(parameter, value)
    return text


@pytest.fixture(scope="module")
def recorded():
    with pytest.MonkeyPatch.context() as patch:
        rows, entries = scaling_lines(patch)
    return rows, consumer_lines(), entries


@pytest.fixture(scope="module")
def tables(recorded):
    """The autoscaler in the function app, the consumer in Container Apps."""
    rows, consumers, _ = recorded
    console = [
        {"TimeGenerated": row["TimeGenerated"], "Log": f"2027 INFO {row['Message']}\n"} for row in consumers
    ]
    noise = {
        "TimeGenerated": moment(END),
        "Message": "Host lock lease acquired",
        "SeverityLevel": 1,
        "OperationName": "",
    }
    failed = {"TimeGenerated": moment(END), "OperationName": "scaler", "Success": False}
    worked = failed | {"OperationName": "scaling_logic", "Success": True}
    return Tables(
        AppTraces=[*rows, noise],
        ContainerAppConsoleLogs=console,
        AppRequests=[failed] * 3 + [worked] * 5 + [failed | {"OperationName": "dashboard"}],
    )


class Tables(dict):
    """Tables, and what was made of them for a time and a window: the lines are read once for each."""

    def __init__(self, **tables):
        super().__init__(tables)
        self.workspaces = {}

    def seen(self, minutes, at):
        if (minutes, at) not in self.workspaces:
            since = at - minutes * MINUTE
            within = {
                table: [row for row in rows if since <= row["TimeGenerated"].timestamp() <= at]
                for table, rows in self.items()
            }
            self.workspaces[minutes, at] = Workspace(within, FUNCTIONS, now=moment(at))
        return self.workspaces[minutes, at]


def ask(tables, name, *, minutes=MINUTES, at=END, **parameters):
    """What a query gives over the last minutes; alerts see no more than their window."""
    return tables.seen(minutes, at).run(query(name, **parameters))


def subjects(rows):
    return {row["Subject"] for row in rows}


# -- the fields


def test_every_line_of_the_log_has_fields_and_they_are_found(tables, recorded):
    rows, consumers, _ = recorded

    found = tables.seen(MINUTES, END).run("TidemarkLog()")

    ours = [row for row in rows if MARK in row["Message"]]
    assert len(found) == len(ours) - 1 + len(consumers)  # one of them is forged, and has words behind
    assert Counter(row["kind"] for row in found)["decision"] == MINUTES * len(TARGETS) - 20
    assert {row["at"].tzinfo for row in found} == {UTC}
    assert [row["kind"] for row in found if row["target"] == "orders"][
        -1
    ] == "verify"  # and not what it quotes
    assert all(row["kind"] != "poison" or row["Fields"].value["count"] == 1 for row in found)


def test_the_fields_that_are_told_are_those_of_the_page(recorded):
    rows, consumers, _ = recorded
    page = (ROOT / "docs/log-fields.md").read_text(encoding="utf-8")
    table = page.split("## Fields")[1]
    listed = set(
        re.findall(
            r"`(\w+)`", " ".join(line.split(" | ")[0] for line in table.splitlines() if line.startswith("|"))
        )
    )
    told = {}
    for row in (*rows, *consumers):
        if row["Message"].endswith("}"):
            tail = json.loads(row["Message"][row["Message"].rindex(MARK) :])
            told.setdefault(tail["kind"], set()).update(tail)

    assert set(told) == {"report", "decision", "effect", "verify", "poison", "check", "consumer"}
    for kind, names in told.items():
        assert names - {"tidemark", "kind"} <= listed, kind
    kinds = {
        line.split("`")[1]: line for line in page.split("## Fields")[0].splitlines() if line.startswith("| `")
    }
    for kind in set(told) - {"consumer"}:
        assert told[kind] - {"tidemark", "kind"} <= set(re.findall(r"`(\w+)`", kinds[kind])), kind


def test_the_decisions_of_the_queries_are_those_of_the_decision_log(tables, recorded):
    _, _, entries = recorded

    found = tables.seen(MINUTES, END).run("TidemarkDecisions()")

    logged = {e.recommendation.decision_id: e for e in entries if e.recommendation is not None}
    assert len(found) == len(logged)
    for row in found:
        made = logged[row["decision_id"]].recommendation
        assert (row["reason"], row["current"], row["desired"], row["proposed"]) == (
            *(made.reason, made.current, made.desired, made.proposed),
        )


# -- the alerts


def test_refused_and_failing_effects_raise_an_alert_and_others_do_not(tables):
    assert subjects(ask(tables, "alerts/effects")) == {"locked", "stuck"}
    assert subjects(ask(tables, "alerts/effects", at=NOW + 3 * MINUTE)) == set()


def test_an_effect_that_failed_a_short_time_ago_is_no_alert_yet(tables):
    first = min(
        row["at"].timestamp()
        for row in tables.seen(MINUTES, END).run("TidemarkEffects() | where target == 'stuck'")
    )

    assert "stuck" not in subjects(ask(tables, "alerts/effects", at=first + 3 * MINUTE))
    assert "stuck" in subjects(ask(tables, "alerts/effects", at=first + 6 * MINUTE))


def test_a_metric_that_cannot_be_read_raises_an_alert(tables):
    assert subjects(ask(tables, "alerts/collectors", minutes=10)) == {"blind: backlog"}
    assert ask(tables, "alerts/collectors", minutes=10, at=NOW + 25 * MINUTE) == []


def test_a_capacity_that_cannot_be_read_raises_it_too():
    tail = '{"tidemark":1,"kind":"report","target":"x","at":1.0,"metrics":{},"capacity_error":"403"}'
    rows = [{"TimeGenerated": moment(END), "Message": f"collector x; {tail}"}] * 3

    assert subjects(ask(Tables(AppTraces=rows), "alerts/collectors")) == {"x: capacity"}


def test_a_target_without_decisions_raises_an_alert(tables):
    assert subjects(ask(tables, "alerts/silence", minutes=360)) == {"lost"}
    assert ask(tables, "alerts/silence", minutes=360, at=NOW + 45 * MINUTE) == []
    assert subjects(ask(tables, "alerts/silence", minutes=360, at=NOW + 49 * MINUTE)) == {"lost"}


def test_no_decisions_at_all_raise_an_alert_from_the_first_day_and_without_end(tables):
    assert subjects(ask(Tables(AppTraces=[]), "alerts/silence")) == {"all targets"}
    assert "all targets" in subjects(ask(tables, "alerts/silence", at=END + 9 * MINUTE, minutes=360))


def test_poison_dead_letters_lag_and_a_consumer_that_is_gone_raise_alerts(tables):
    assert ask(tables, "alerts/poison", minutes=5)[0]["Messages"] == 1
    assert ask(tables, "alerts/poison", minutes=5, at=NOW + 45 * MINUTE) == []
    assert [(row["Subject"], row["Letters"]) for row in ask(tables, "alerts/dead-letters")] == [
        ("flights", 6)
    ]
    assert ask(tables, "alerts/dead-letters", minutes=10) == []
    assert subjects(ask(tables, "alerts/consumer-stopped", minutes=360)) == {"old"}


def test_a_lag_counts_when_it_stays_above_its_limit_for_the_window(tables):
    assert subjects(ask(tables, "alerts/lag", minutes=15)) == {
        "flights"
    }  # 1,000 and 500 a minute, of two instances
    assert ask(tables, "alerts/lag", minutes=15, at=NOW + 8 * MINUTE) == []


def test_functions_that_fail_again_and_again_raise_an_alert(tables):
    assert subjects(ask(tables, "alerts/functions")) == {"scaler"}


# -- the workbook


def test_every_query_of_the_workbook_has_an_answer(tables):
    names = sorted(path.stem for path in (QUERIES / "workbook").glob("*.kql"))

    assert {name: bool(ask(tables, f"workbook/{name}")) for name in names} == dict.fromkeys(names, True)


def test_capacity_and_metrics_are_shown_over_time_with_the_threshold(tables):
    capacity = ask(tables, "workbook/capacity", Target="orders")
    values = ask(tables, "workbook/metrics", Target="orders")

    assert (capacity[0]["current"], capacity[-1]["current"], capacity[-1]["maximum"]) == (2, 4, 4)
    assert [row["at"] for row in capacity] == sorted(row["at"] for row in capacity)
    out = [row for row in values if row["series"] == "orders: average backlog >"]
    assert {row["threshold"] for row in out} == {500.0}
    assert out[-1]["value"] == 900.0


def test_metrics_in_seconds_are_shown_as_durations_and_nowhere_else(tables):
    durations, values = (ask(tables, f"workbook/{name}", Target="mail") for name in ("durations", "values"))

    assert {(row["series"], row["minutes"]) for row in durations} == {("mail: age", 5.0)}
    assert {row["series"] for row in values} == {"mail: backlog", "mail: incoming", "mail: outgoing"}


def test_a_window_that_fills_is_shown_as_collecting_and_not_as_a_problem(tables):
    reasons = {row["reason"] for row in ask(tables, "workbook/reasons", Target="orders")}

    assert "collecting" in reasons
    assert "incomplete_window" not in reasons


def test_actions_are_shown_with_the_decision_that_ordered_them(tables):
    actions = ask(tables, "workbook/actions", Target="orders")

    assert {row["outcome"] for row in actions} == {"applied"}
    assert all("scaling orders out" in row["why"] for row in actions)
    assert {row["reason"] for row in actions} == {"scale_out"}
    assert actions[0]["reached"] == 4


def test_refusals_are_shown_in_the_platforms_words(tables):
    rows = ask(tables, "workbook/refusals")

    assert {(row["target"], row["outcome"]) for row in rows} == {("locked", "refused"), ("stuck", "failed")}
    assert any("ScopeLocked" in row["detail"] for row in rows)


def test_late_messages_lag_request_units_and_refused_writes_are_shown(tables):
    late, lag, units = (ask(tables, f"workbook/{name}") for name in ("late", "lag", "request-units"))

    assert {row["series"] for row in late} == {"mail: service_level"}
    assert {row["allowed"] for row in late} == {1.0}
    flights = [row["lag"] for row in lag if row["consumer"] == "flights"]
    assert flights == sorted(flights)
    share = [row["throttled_share"] for row in units if row["written"]]
    assert all(0.09 < each < 0.11 for each in share)
    assert any(1_000 < row["ru_per_s"] < 1_300 for row in units)  # two instances of 600 RU/s


# -- the evaluator refuses what Kusto refuses


@pytest.mark.parametrize(
    ("text", "story"),
    [
        ("TidemarkLog() | where nothing == 'x'", "no column 'nothing'"),
        ("TidemarkLog() | where Fields.kind == 'x'", "needs a cast"),
        ("TidemarkLog() | summarize count() by each = Fields.kind", "by a dynamic value"),
        ("TidemarkLog() | where at > 5", "different types"),
        ("TidemarkLog() | evaluate bag_unpack(Fields)", "unknown operator"),
        ("TidemarkLog() | extend kind = 1", "in brackets"),
        ("TidemarkLog() | extend who = tostring(Fields.by)", "in brackets"),
        ("TidemarkLog() | extend x = sqrt(1)", "unknown function"),
        ("TidemarkOther()", "no table or function"),
    ],
)
def test_a_query_that_kusto_refuses_is_refused(tables, text, story):
    with pytest.raises(KqlError, match=re.escape(story)):
        Workspace(tables, FUNCTIONS, now=datetime.now(UTC)).run(text)


def test_a_table_that_is_not_there_is_left_out_of_a_union_only_where_it_says_so(tables):
    traces = {"AppTraces": tables["AppTraces"]}

    assert Workspace(traces, FUNCTIONS, now=moment(END)).run("TidemarkLog() | take 1")
    with pytest.raises(KqlError, match="ContainerAppConsoleLogs"):
        Workspace(traces, {}, now=moment(END)).run("union AppTraces, ContainerAppConsoleLogs")


def test_missing_values_are_as_in_kusto():
    rows = [
        {"TimeGenerated": moment(NOW + n), "x": Dynamic(value)} for n, value in enumerate([None, "a", 1, [2]])
    ]
    workspace = Workspace({"AppTraces": rows}, now=moment(NOW) + timedelta(1))

    found = workspace.run(
        "AppTraces | project text = tostring(x), number = tolong(x), some = isnotnull(x), more = tolong(x) + 1"
    )

    assert [(row["text"], row["number"], row["some"], row["more"]) for row in found] == [
        ("", None, False, None),
        ("a", None, True, None),
        ("1", 1, True, 2),
        ("[2]", None, True, None),
    ]


def test_the_queries_of_the_guides_have_answers(tables):
    pages = [
        (ROOT / "docs" / name).read_text(encoding="utf-8")
        for name in ("azure-portal.md", "deploying/checking.md")
    ]
    texts = [text for page in pages for text in re.findall(r"```kusto\n(.*?)```", page, re.DOTALL)]
    ours = [text for text in texts if "Tidemark" in text]

    workspace = tables.seen(MINUTES, END)
    assert len(ours) >= 6
    for text in ours:
        assert workspace.run(text.replace("plan-orders", "locked")), text


def test_the_log_queries_of_the_policies_count_one_minute_and_give_a_mean():
    """The two metrics to paste: one row of one column each, at any second of a minute; without requests there is no mean."""
    policies = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    (pasted,) = (
        text for text in re.findall(r"```toml\n(.*?)```", policies, re.DOTALL) if "requests\n" in text
    )
    metrics = tomllib.loads(pasted)["targets"]["plan-orders"]["metrics"]
    minutes = {moment(NOW - 60.0 * ago): ago for ago in range(1, 14)}
    rows = [
        {"timestamp": at, "name": name, "success": success, "duration": 2_000.0 * count, "itemCount": count}
        for at, count in minutes.items()
        for name, success in (("process_order", True), ("process_order", False), ("other", True))
    ]
    rows = [{"TimeGenerated": row["timestamp"], **row} for row in rows]

    def asked(name, now, rows):
        seen = Workspace({"requests": rows}, now=moment(now)).run(metrics[name]["query"])
        return [list(row.values()) for row in seen]

    assert [asked("completed", NOW + second, rows) for second in (0.0, 50.0)] == [[[6]], [[6]]]
    weights = sum(count * count for count in minutes.values())
    assert asked("processing", NOW, rows) == [[2.0 * weights / sum(minutes.values())]]
    assert asked("processing", NOW, rows[1:3]) == []
    params = {
        **metrics["completed"],
        "resource_id": f"/subscriptions/{GUID}/resourceGroups/r/providers/a.b/c/d",
    }
    params.pop("collector")
    made = LogQueryCollector.Params(**params)
    assert (made.problems(), LogQueryCollector.timing(made)) == ({}, (60.0, 300.0))
    assert newest_end(NOW + 50.0, 300.0, 60) == NOW - 300.0
