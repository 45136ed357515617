"""Writes infra/grafana/tidemark.json: the workbook's charts as a dashboard of Grafana, of the same queries.

    python -m tests.data.make_grafana

Titles, queries and their order are those of infra/app/workbook.bicep, deployed by simulation. What differs is how Grafana says it: its own
variables, time range and interval. tests/unit/test_infra_portal.py fails where the file is older than the workbook.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.infra.templates import INFRA, only

FILE = INFRA / "grafana" / "tidemark.json"
PLUGIN = "grafana-azure-monitor-datasource"
SOURCE = {"type": PLUGIN, "uid": "${source}"}
WORKSPACE = "__workspace__"
"""What infra/app/grafana.bicep replaces by the id of the workspace. Elsewhere Grafana takes the first one that is listed."""

KINDS = {"timechart": "timeseries", "unstackedbar": "timeseries", "table": "table"}
BARS = {"drawStyle": "bars", "fillOpacity": 60, "lineWidth": 0}
LINES = {"drawStyle": "line", "fillOpacity": 0, "lineWidth": 1, "showPoints": "auto"}
WIDTH, HEIGHT, COLUMNS = 12, 8, 24  # of Grafana's grid


def translated(query: str) -> str:
    """The query with Grafana's variables. Its macro `$__interval` is a time span of Kusto, such as `60000ms`."""
    for name in ("Target", "Consumer"):
        query = query.replace(f"{{{name}}}", f"${{{name}}}")
    return query.replace("{TimeRange:grain}", "$__interval")


def asked(query: str, shape: str) -> dict[str, Any]:
    return {
        "refId": "A",
        "datasource": SOURCE,
        "queryType": "Azure Log Analytics",
        "azureLogAnalytics": {
            "query": translated(query),
            "resources": ["${workspace}"],
            "resultFormat": shape,
            "dashboardTime": True,
            "timeColumn": "TimeGenerated",
        },
    }


def panel(number: int, chart: dict[str, Any]) -> dict[str, Any]:
    over_time = chart["visualization"] != "table"
    style = BARS if chart["visualization"] == "unstackedbar" else LINES
    return {
        "id": number + 1,
        "title": chart["title"],
        "type": KINDS[chart["visualization"]],
        "datasource": SOURCE,
        "gridPos": {
            "x": number * WIDTH % COLUMNS,
            "y": number * WIDTH // COLUMNS * HEIGHT,
            "w": WIDTH,
            "h": HEIGHT,
        },
        "fieldConfig": {"defaults": {"custom": style} if over_time else {}, "overrides": []},
        "targets": [asked(chart["query"], "time_series" if over_time else "table")],
    }


def variable(name: str, query: dict[str, Any], value: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"refId": name, **query},
        "current": {"text": value, "value": value},
        "refresh": 1,  # when the dashboard is opened
        "includeAll": False,
        "multi": False,
    }


def dashboard() -> dict[str, Any]:
    items = json.loads(only("everything", "Microsoft.Insights/workbooks").properties["serializedData"])[
        "items"
    ]
    charts = [item["content"] for item in items if item["type"] == 3]
    (choices,) = [item["content"]["parameters"] for item in items if item["type"] == 9]
    lists = [
        variable(each["name"], asked(each["query"], "table"), "*") for each in choices if "query" in each
    ]
    return {
        "title": "Tidemark",
        "uid": "tidemark",
        "tags": ["tidemark"],
        "schemaVersion": 39,
        "time": {"from": "now-4h", "to": "now"},
        "refresh": "1m",
        "templating": {
            "list": [
                {
                    "name": "source",
                    "label": "Data source",
                    "type": "datasource",
                    "query": PLUGIN,
                    "refresh": 1,
                },
                variable("subscription", {"queryType": "Azure Subscriptions"}, ""),
                variable(
                    "workspace",
                    {"queryType": "Azure Workspaces", "subscription": "${subscription}"},
                    WORKSPACE,
                ),
                *lists,
            ]
        },
        "panels": [panel(number, chart) for number, chart in enumerate(charts)],
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
