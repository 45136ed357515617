"""What the templates show in the portal: functions of the workspace, the workbook, alert rules. Their queries run in
tests/kusto/test_queries.py; here is that they are deployed as they stand in their files, and as the platform takes them."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest

from tests.bicep_language import Deployment, expand
from tests.data import make_grafana
from tests.support.infra.templates import INFRA, ROOT, SUBSCRIPTION, deployed, only, parameters

WORLD = "everything"
QUERIES = {
    path.relative_to(INFRA / "queries").as_posix(): path.read_text(encoding="utf-8")
    for path in (INFRA / "queries").rglob("*.kql")
}
PAGE = (ROOT / "docs/azure-portal.md").read_text(encoding="utf-8")
DURATIONS = {"PT5M": 5, "PT10M": 10, "PT15M": 15, "PT6H": 360, "P2D": 2880}


def with_variables(variables: dict[str, str], **given: Any) -> Deployment:
    return expand(INFRA / "main.bicep", parameters(variables, **given), subscription=SUBSCRIPTION)


def in_folder(folder: str) -> dict[str, str]:
    return {
        name.split("/")[1].removesuffix(".kql"): text
        for name, text in QUERIES.items()
        if name.startswith(folder)
    }


def rules(world: str = WORLD) -> dict[str, Any]:
    found = deployed(world).of_type("Microsoft.Insights/scheduledQueryRules")
    return {each.name.removeprefix("tidemark-"): each.properties for each in found}


def items() -> list[dict[str, Any]]:
    workbook = only(WORLD, "Microsoft.Insights/workbooks").properties
    found: list[dict[str, Any]] = json.loads(workbook["serializedData"])["items"]
    return found


def test_every_function_of_the_workspace_is_deployed_under_its_name() -> None:
    saved = deployed(WORLD).of_type("Microsoft.OperationalInsights/workspaces/savedSearches")

    assert {each.name.rpartition("/")[2]: each.properties["query"] for each in saved} == in_folder(
        "functions"
    )
    assert all(each.properties["functionAlias"] == each.name.rpartition("/")[2] for each in saved)
    assert {each.body["etag"] for each in saved} == {"*"}  # a second deployment replaces them


def test_functions_are_there_before_what_calls_them() -> None:
    saved = {
        each.id for each in deployed(WORLD).of_type("Microsoft.OperationalInsights/workspaces/savedSearches")
    }
    callers = [
        *deployed(WORLD).of_type("Microsoft.Insights/scheduledQueryRules"),
        only(WORLD, "Microsoft.Insights/workbooks"),
    ]

    assert callers
    assert all(saved <= each.after for each in callers)


def test_every_alert_query_is_a_rule_and_tells_what_is_wrong_by_the_name_subject() -> None:
    found = rules()

    for name, text in in_folder("alerts").items():
        (criterion,) = found[name]["criteria"]["allOf"]
        assert criterion["query"] == text, name
        assert re.search(r"\bSubject = ", text), name
        assert [each["name"] for each in criterion["dimensions"]] == ["Subject"]
        assert (criterion["timeAggregation"], criterion["operator"], criterion["threshold"]) == (
            "Count",
            "GreaterThan",
            0,
        )
    assert set(found) == set(in_folder("alerts"))


def test_rules_look_far_enough_back_and_as_often_as_the_platform_takes() -> None:
    for name, rule in rules().items():
        frequency, window, reach = (
            DURATIONS[rule[key]] for key in ("evaluationFrequency", "windowSize", "overrideQueryTimeRange")
        )
        assert frequency <= window <= reach <= 2 * 24 * 60, name  # two days are the most
        ago = re.findall(r"ago\((\d+)m\)", in_folder("alerts")[name])
        assert all(int(minutes) < reach for minutes in ago), name
        assert 0 <= rule["severity"] <= 4


def test_every_rule_tells_the_action_group_which_has_the_addresses_given() -> None:
    group = only(WORLD, "Microsoft.Insights/actionGroups")

    assert {tuple(rule["actions"]["actionGroups"]) for rule in rules().values()} == {(group.id,)}
    assert len(group.properties["groupShortName"]) <= 12
    assert group.properties["emailReceivers"] == []
    given = with_variables({"TIDEMARK_ALERT_EMAILS": "ann@example.org, ben@example.org,"})
    (told,) = given.of_type("Microsoft.Insights/actionGroups")
    assert [each["emailAddress"] for each in told.properties["emailReceivers"]] == [
        "ann@example.org",
        "ben@example.org",
    ]


def test_an_address_that_is_given_twice_is_one_receiver() -> None:
    """The platform refuses two of one name."""
    given = with_variables({"TIDEMARK_ALERT_EMAILS": "Ann@example.org,,ann@example.org , ben@example.org"})
    (group,) = given.of_type("Microsoft.Insights/actionGroups")

    names = [each["name"] for each in group.properties["emailReceivers"]]
    assert names == ["ann@example.org", "ben@example.org"]


OPERATORS = {
    "count",
    "distinct",
    "evaluate",
    "extend",
    "join",
    "limit",
    "order",
    "project",
    "range",
    "sample",
    "search",
}
OPERATORS |= {"serialize", "sort", "summarize", "take", "top", "union", "where"}


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_nothing_is_named_as_an_operator_of_the_query_language(name: str) -> None:
    """Whether the language takes it for a name there is known to its compiler only, which is not here."""
    named = re.findall(r"(?:\blet|[,(]|\bextend|\bproject)\s+(\w+)\s*=[^=~]", QUERIES[name])

    assert named == [each for each in named if each not in OPERATORS]


def test_the_limit_of_the_lag_is_a_parameter() -> None:
    given = with_variables({}, alertLag=250)
    (lag,) = [
        each
        for each in given.of_type("Microsoft.Insights/scheduledQueryRules")
        if each.name == "tidemark-lag"
    ]

    assert "let most_behind = 250;" in lag.properties["criteria"]["allOf"][0]["query"]


@pytest.mark.parametrize(("world", "told"), [("as it comes", False), (WORLD, True)])
def test_a_consumer_that_says_nothing_is_an_alarm_only_where_it_always_says_something(
    world: str, *, told: bool
) -> None:
    assert rules(world)["consumer-stopped"]["enabled"] is told


def test_alert_rules_can_be_left_out() -> None:
    given = with_variables({"TIDEMARK_ALERTS": "false"})

    assert given.of_type("Microsoft.Insights/scheduledQueryRules") == []
    assert given.of_type("Microsoft.Insights/workbooks")


# -- the workbook


def test_the_workbook_shows_every_query_once_and_asks_the_workspace() -> None:
    workspace = only(WORLD, "Microsoft.OperationalInsights/workspaces")
    workbook = only(WORLD, "Microsoft.Insights/workbooks")
    charts = [item["content"] for item in items() if item["type"] == 3]
    (choices,) = [item["content"]["parameters"] for item in items() if item["type"] == 9]
    asked = [each["query"] for each in (*charts, *choices) if "query" in each]

    assert workbook.properties["sourceId"] == workspace.id
    assert str(uuid.UUID(workbook.name)) == workbook.name
    assert sorted(asked) == sorted(in_folder("workbook").values())
    assert {each["resourceType"] for each in charts} == {"microsoft.operationalinsights/workspaces"}


def test_every_parameter_that_a_query_uses_is_one_of_the_workbook() -> None:
    (choices,) = [item["content"]["parameters"] for item in items() if item["type"] == 9]
    known = {each["name"] for each in choices}
    used = {
        name for text in in_folder("workbook").values() for name in re.findall(r"\{(\w+)(?::grain)?\}", text)
    }

    assert known == used | {"TimeRange"}
    assert all(
        each["timeContextFromParameter"] == "TimeRange"
        for each in (i["content"] for i in items() if i["type"] == 3)
    )


# -- Grafana


def test_grafana_shows_the_charts_of_the_workbook_by_the_same_queries() -> None:
    assert make_grafana.FILE.read_text(encoding="utf-8") == make_grafana.text(), (
        "python -m tests.data.make_grafana"
    )
    panels = json.loads(make_grafana.text())["panels"]
    charts = [item["content"] for item in items() if item["type"] == 3]
    back = {"${Target}": "{Target}", "${Consumer}": "{Consumer}", "$__interval": "{TimeRange:grain}"}

    assert [each["title"] for each in panels] == [each["title"] for each in charts]
    for shown, chart in zip(panels, charts, strict=True):
        query = shown["targets"][0]["azureLogAnalytics"]["query"]
        assert re.sub("|".join(map(re.escape, back)), lambda found: back[found[0]], query) == chart["query"]
    cells = {(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels}
    assert len(cells) == len(panels)


def test_the_dashboard_of_grafana_asks_the_workspace_of_this_deployment_and_knows_every_variable() -> None:
    world = "a dashboard of Grafana"
    content = only(world, "Microsoft.Dashboard/dashboards/dashboardDefinitions")
    dashboard = json.loads(content.properties["serializedData"])
    variables = {each["name"]: each for each in dashboard["templating"]["list"]}
    saved = {
        each.id for each in deployed(world).of_type("Microsoft.OperationalInsights/workspaces/savedSearches")
    }

    assert (
        variables["workspace"]["current"]["value"]
        == only(world, "Microsoft.OperationalInsights/workspaces").id
    )
    assert set(re.findall(r"\$\{(\w+)\}", content.properties["serializedData"])) == set(variables)
    assert saved <= content.after
    assert re.fullmatch(
        r"[a-zA-Z][a-z0-9A-Z-]{0,28}[a-z0-9A-Z]", only(world, "Microsoft.Dashboard/dashboards").name
    )
    assert make_grafana.WORKSPACE not in content.properties["serializedData"]
    assert not deployed(WORLD).of_type("Microsoft.Dashboard/dashboards")


def test_alerts_and_charts_stand_in_the_guide() -> None:
    titles = [item["content"]["title"] for item in items() if item["type"] == 3]
    rows = re.findall(r"^\| `tidemark-([\w-]+)` \|", PAGE, re.MULTILINE)

    assert sorted(rows) == sorted(rules())
    for title in titles:
        assert title in PAGE, title
