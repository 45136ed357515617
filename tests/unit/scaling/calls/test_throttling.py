"""Whom an answer of Resource Manager quiets: never more than its code, its headers and its path say."""

import pytest
from multidict import CIMultiDict

from scaling.calls.budgets import call_of
from scaling.calls.call_budgets import CallBudgets
from scaling.calls.limiter import CallLimiter
from tests.support.virtual_time import Clock

HOST = "https://management.azure.com"
SUBSCRIPTION = f"{HOST}/subscriptions/1111"
GROUP = f"{SUBSCRIPTION}/resourceGroups/g/providers"
WEB, COMPUTE = f"{GROUP}/Microsoft.Web/serverfarms", f"{GROUP}/Microsoft.Compute/virtualMachineScaleSets"
PLAN, OTHER_PLAN = f"{WEB}/a", f"{WEB}/b"
SET, OTHER_SET = f"{COMPUTE}/a", f"{COMPUTE}/b"

CALLS = {
    "plan": ("GET", PLAN),
    "other plan": ("GET", OTHER_PLAN),
    "plans": ("GET", f"{SUBSCRIPTION}/providers/Microsoft.Web/serverfarms"),
    "plan change": ("PATCH", PLAN),
    "other plan change": ("PATCH", OTHER_PLAN),
    "sites": ("GET", f"{PLAN}/sites"),
    "set": ("GET", SET),
    "other set": ("GET", OTHER_SET),
    "sets": ("GET", COMPUTE),
    "set change": ("PATCH", SET),
    "cosmos": (
        "GET",
        f"{GROUP}/Microsoft.DocumentDB/databaseAccounts/a/sqlDatabases/d/throughputSettings/default",
    ),
    "other account": (
        "GET",
        f"{GROUP}/Microsoft.DocumentDB/databaseAccounts/b/sqlDatabases/d/throughputSettings/default",
    ),
    "metrics": ("GET", f"{PLAN}/providers/microsoft.insights/metrics"),
    "elsewhere": ("GET", PLAN.replace("1111", "2222")),
    "batch": ("POST", "https://westeurope.metrics.monitor.azure.com/subscriptions/1111/metrics:getBatch"),
    "logs": ("POST", "https://api.loganalytics.io/v1/workspaces/w/query"),
    "other logs": ("POST", "https://api.loganalytics.io/v1/workspaces/v/query"),
    "query": ("GET", "https://prometheus.example/api/v1/query?query=slow"),
    "other query": ("GET", "https://prometheus.example/api/v1/query?query=fast"),
    "other path": ("GET", "https://prometheus.example/orders"),
    "queue": ("GET", "https://n.servicebus.windows.net/q", "service_bus"),
    "queues": ("GET", "https://n.servicebus.windows.net/$Resources/queues", "service_bus"),
    "other queue": ("GET", "https://n.servicebus.windows.net/r", "service_bus"),
}
HERE = {name for name, each in CALLS.items() if each[1].startswith(SUBSCRIPTION)}
READS = HERE - {"plan change", "other plan change", "set change"}
MANAGEMENT = HERE | {"elsewhere"}

HIGH_COST = """{"error": {"code": "OperationNotAllowed", "message": "The server rejected the request because too many requests
have been received for this subscription.", "details": [{"code": "TooManyRequests", "target": "HighCostGet30Min",
"message": "{\\"operationGroup\\":\\"HighCostGet30Min\\"}"}]}}"""
NO_READS = {"x-ms-ratelimit-remaining-subscription-reads": "0"}
GROUP_EMPTY = {
    "x-ms-ratelimit-remaining-resource": "Microsoft.Compute/HighCostGet3Min;46, Microsoft.Compute/HighCostGet30Min;0",
    "x-ms-ratelimit-remaining-subscription-reads": "0",
}


def code(name: str, message: str = "Too many requests.") -> str:
    return f'{{"error": {{"code": "{name}", "message": "{message}"}}}}'


class World:
    def __init__(self) -> None:
        self.budgets, self.clock = CallBudgets({}), Clock(1000.0)
        self.limiter = CallLimiter(self.budgets, clock=self.clock)

    def answered(self, name: str, status: int, text: str, headers=()) -> None:
        told = CIMultiDict(headers)
        told.setdefault("retry-after", "600")
        self.limiter.note_answer(call_of(*CALLS[name]), status, told, text)

    def quiet(self) -> set[str]:
        return {
            name
            for name, each in CALLS.items()
            if self.budgets.ask(call_of(*each), self.clock.now) is not None
        }


@pytest.mark.parametrize(
    ("name", "status", "text", "headers", "quiet"),
    [
        ("set", 429, HIGH_COST, {}, {"set", "other set"}),
        ("set", 429, "", GROUP_EMPTY, {"set", "other set"}),
        (
            "set",
            429,
            code("SomethingNew"),
            {"x-ms-ratelimit-remaining-subscription-reads": "13000"},
            {"set", "other set"},
        ),
        ("sets", 429, "", {}, {"sets"}),
        ("plan", 503, "", {}, {"plan"}),
        ("plan", 503, code("ServerBusy"), {}, {"plan", "other plan"}),
        ("plan", 429, code("SubscriptionRequestsThrottled"), {}, READS),
        (
            "plan",
            429,
            code("X", "Number of read requests for subscription '1' exceeded the limit"),
            {},
            READS,
        ),
        ("plan", 429, "", NO_READS, READS),
        ("plan", 429, "", {"x-ms-ratelimit-remaining-tenant-reads": "0"}, READS | {"elsewhere"}),
        ("plan change", 429, "", NO_READS, {"plan change"}),
        ("plan", 429, code("TenantRequestsThrottled"), {}, READS | {"elsewhere"}),
        ("plan change", 429, code("SubscriptionRequestsThrottled"), {}, HERE - READS),
        (
            "plan change",
            429,
            code(
                "SubscriptionRequestsThrottled",
                "Number of requests for subscription '1' and operation 'PATCH/X' exceeded",
            ),
            {},
            {"plan change", "other plan change"},
        ),
        ("plan", 429, code("ResourceRequestsThrottled"), {}, {"plan", "other plan", "plans"}),
        ("plans", 429, code("ResourceCollectionRequestsThrottled"), {}, {"plans"}),
        ("plan change", 429, "", {}, {"plan change"}),
        (
            "plan change",
            429,
            code("Conflict", "Cannot acquire exclusive lock to update this server farm"),
            {},
            set(),
        ),
        ("plan change", 429, "Conflict 59205: another operation is in progress", {}, set()),
        (
            "plan change",
            429,
            code("X", "You have exceeded the maximum amount of scale changes within the past hour"),
            {},
            set(),
        ),
        ("plan", 409, "", {}, set()),
        ("metrics", 429, "", {}, {"metrics"}),
        ("batch", 429, "", {}, {"batch"}),
        ("logs", 429, "", {}, {"logs"}),
        ("query", 429, "<html>slow down</html>", {}, {"query"}),
        ("queue", 503, "The server is busy. Error code: 50004: the entity is throttled", {}, {"queue"}),
        ("queues", 503, "ServerBusy", {}, {"queues", "queue", "other queue"}),
        ("queue", 503, "The request was terminated. 50009", {}, {"queues", "queue", "other queue"}),
        ("queue", 503, "ServerBusy: the partition moves", {}, {"queue"}),
        ("queue", 429, "", {}, {"queues", "queue", "other queue"}),
        ("cosmos", 429, code("TooManyRequests"), {}, {"cosmos"}),
        ("cosmos", 429, "", {}, {"cosmos"}),
        (
            "set",
            429,
            "",
            [
                ("X-MS-RateLimit-Remaining-Resource", "Microsoft.Compute/HighCostGet3Min;46"),
                ("x-ms-ratelimit-remaining-resource", "Microsoft.Compute/HighCostGet30Min;0"),
                *NO_READS.items(),
            ],
            {"set", "other set"},
        ),
    ],
)
def test_a_throttling_answer_quiets_the_smallest_scope_that_it_names(name, status, text, headers, quiet):
    world = World()

    world.answered(name, status, text, headers)

    assert world.quiet() == quiet


def test_what_does_not_name_its_scope_is_widened_by_a_second_answer_from_elsewhere_but_never_beyond_a_provider():
    world = World()
    world.answered("plan", 429, "")
    assert world.quiet() == {"plan", "other plan"}

    world.answered("plan", 429, "")
    assert world.quiet() == {"plan", "other plan"}
    world.answered("plans", 429, "")
    assert world.quiet() == {"plan", "other plan", "plans"}
    world.answered("set", 429, "")
    world.answered("cosmos", 429, "")
    assert world.quiet() == {"plan", "other plan", "plans", "set", "other set", "cosmos"}

    world.answered("sites", 429, "")
    assert "metrics" not in world.quiet()
    assert "plan change" not in world.quiet()
    world.clock.now += 600.0
    assert world.quiet() == set()


@pytest.mark.parametrize(
    ("first", "second"),
    [("logs", "other logs"), ("query", "other query"), ("cosmos", "other account")],
)
def test_a_second_answer_from_elsewhere_quiets_what_both_have_in_common(first, second):
    world = World()

    world.answered(first, 429, "")
    assert world.quiet() == {first}
    world.answered(second, 429, "")
    assert world.quiet() == {first, second}


def test_the_longer_one_of_header_and_text_counts_and_a_date_is_a_time_to_wait_for():
    world = World()
    world.answered("plan", 429, code("ResourceRequestsThrottled", "Please retry after '900' seconds."))
    world.answered(
        "set",
        429,
        "",
        {"Retry-After": "Thu, 26 Nov 2026 14:20:00 GMT", "Date": "Thu, 26 Nov 2026 14:00:00 GMT"},
    )

    for seconds, quiet in (
        (899.0, {"plan", "other plan", "plans", "set", "other set"}),
        (1199.0, {"set", "other set"}),
    ):
        world.clock.now = 1000.0 + seconds
        assert world.quiet() == quiet
