"""What a request counts for, and how much of each budget a process takes."""

import pytest

from scaling.calls.budgets import PUBLISHED, Budget, budgets_of, call_of
from tidemark.foundation.errors import SettingsError

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg"
PLAN = f"https://management.azure.com{GROUP}/providers/Microsoft.Web/serverfarms/plan?api-version=2024-04-01"
COSMOS = f"{GROUP}/providers/Microsoft.DocumentDB/databaseAccounts/Acc/sqlDatabases/d"
PLACE = f"management.azure.com/{SUBSCRIPTION}"


@pytest.mark.parametrize(
    ("method", "url", "charges"),
    [
        ("GET", PLAN, [("management_reads", PLACE)]),
        ("PUT", PLAN, [("management_writes", PLACE)]),
        ("post", PLAN, [("management_writes", PLACE)]),
        (
            "GET",
            f"https://management.azure.com{GROUP}/providers/Microsoft.Web/serverfarms/plan/providers/microsoft.insights/metrics?x=1",
            [("management_reads", PLACE), ("metric_reads", PLACE)],
        ),
        (
            "GET",
            f"https://management.azure.com{COSMOS}/throughputSettings/default?api-version=1",
            [("management_reads", PLACE), ("cosmos_reads", "acc")],
        ),
        (
            "POST",
            f"https://westeurope.metrics.monitor.azure.com/subscriptions/{SUBSCRIPTION}/metrics:getBatch?a=b",
            [("metric_batches", f"westeurope.metrics.monitor.azure.com/{SUBSCRIPTION}")],
        ),
        (
            "POST",
            "https://api.loganalytics.io/v1/workspaces/w/query",
            [("log_queries", "api.loganalytics.io")],
        ),
        ("POST", f"https://api.loganalytics.io/v1{GROUP}/query", [("log_queries", "api.loganalytics.io")]),
        (
            "GET",
            "https://me:secret@Prometheus.example:9090/api/v1/query?query=up",
            [("other", "prometheus.example:9090")],
        ),
    ],
)
def test_a_request_counts_for_what_its_method_and_path_say(method, url, charges):
    assert list(call_of(method, url).charges) == charges


def test_whoever_sends_a_request_may_say_what_it_counts_for():
    call = call_of("GET", "https://orders.servicebus.windows.net/queue", "service_bus")

    assert call.charges == (("service_bus", "orders.servicebus.windows.net"),)
    assert call.scopes == ("orders.servicebus.windows.net?/queue", "orders.servicebus.windows.net")


@pytest.mark.parametrize(
    ("method", "path", "scopes"),
    [
        (
            "GET",
            "/resourceGroups/g/providers/Microsoft.Web/serverfarms/p",
            (
                "/resourcegroups/g/providers/microsoft.web/serverfarms/p",
                "/microsoft.web/serverfarms (single)",
            ),
        ),
        (
            "GET",
            "/providers/Microsoft.Web/serverfarms",
            ("/providers/microsoft.web/serverfarms", "/microsoft.web/serverfarms (lists)"),
        ),
        (
            "GET",
            "/resourceGroups/g/providers/Microsoft.Web/serverfarms/p/providers/microsoft.insights/metrics",
            (
                "/resourcegroups/g/providers/microsoft.web/serverfarms/p/providers/microsoft.insights/metrics",
                "/microsoft.insights/metrics (lists)",
            ),
        ),
        ("GET", "/resourceGroups/g", ("/resourcegroups/g", "/microsoft.resources (single)")),
    ],
)
def test_a_request_to_resource_manager_has_scopes_from_its_resource_to_everything(method, path, scopes):
    call = call_of(method, f"https://management.azure.com/subscriptions/{SUBSCRIPTION}{path}")

    assert call.scopes[:2] == (
        f"management.azure.com/subscriptions/{SUBSCRIPTION}{scopes[0]}",
        f"{PLACE}{scopes[1]}",
    )
    assert call.scopes[2] == call.scopes[1].partition(" ")[0]
    assert call.scopes[4:] == (PLACE, "management.azure.com")


def test_reads_and_writes_of_a_subscription_are_scopes_of_their_own():
    other = call_of("GET", PLAN.replace("1111", "2222"))

    assert call_of("GET", PLAN).scopes[4] == PLACE != other.scopes[4]
    assert call_of("PATCH", PLAN).scopes[4] == f"{PLACE} (writes)"


def test_a_process_takes_its_share_of_the_budgets_and_never_nothing():
    assert budgets_of({}) == PUBLISHED
    assert budgets_of({"FUNCTIONS_WORKER_PROCESS_COUNT": "4"})["management_reads"] == Budget(25, 5.0)
    shared = budgets_of({"FUNCTIONS_WORKER_PROCESS_COUNT": "4", "TIDEMARK_CALL_SHARE": "0.01"})
    assert (shared["management_reads"].calls, shared["cosmos_updates"].calls) == (1, 1)


def test_a_budget_can_be_set_and_is_shared_then_as_well():
    found = budgets_of(
        {"TIDEMARK_CALL_BUDGETS": "service_bus = 200/10s, log_queries=8/2.5", "TIDEMARK_CALL_SHARE": "0.5"}
    )

    assert (found["service_bus"], found["log_queries"]) == (Budget(100, 10.0), Budget(4, 2.5))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"TIDEMARK_CALL_SHARE": "2"}, "TIDEMARK_CALL_SHARE is '2'; accepted"),
        ({"TIDEMARK_CALL_SHARE": "nan"}, "TIDEMARK_CALL_SHARE is 'nan'"),
        ({"TIDEMARK_CALL_SHARE": "half"}, "TIDEMARK_CALL_SHARE is 'half'"),
        ({"TIDEMARK_CALL_BUDGETS": "reads=5/5"}, "found 'reads=5/5'; accepted is API=CALLS/SECONDS"),
        ({"TIDEMARK_CALL_BUDGETS": "service_bus=0/5"}, "found 'service_bus=0/5'"),
        ({"TIDEMARK_CALL_BUDGETS": "service_bus=5/0"}, "found 'service_bus=5/0'"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_accepted(settings, words):
    with pytest.raises(SettingsError, match=words):
        budgets_of(settings)
