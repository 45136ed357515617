"""What of an answer is a number: Azure Monitor's, Prometheus's and a log's, in all the forms that are none."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.collectors.number import log_query, prometheus
from scaling.collectors.number.azure_monitor import DELAY, AzureMonitorCollector
from scaling.collectors.number.http_json import HttpJsonCollector
from scaling.collectors.number.log_query import LogQueryCollector
from scaling.collectors.number.metric_answers import (
    GRAINS,
    LOOK_BACK,
    Series,
    newest_end,
    newest_of,
    region_of,
    values_of,
)
from scaling.collectors.number.metrics_reader import MetricsReader
from scaling.collectors.number.prometheus import PrometheusCollector
from scaling.config.policy_file import load_config
from scaling.decision.seen import view_of
from scaling.decision.transitions import windows_after_report
from scaling.model import Capacity, MetricSample, MetricsReport, TargetState
from scaling.ports import CollectError
from scaling.resource_id import ResourceId
from scaling.service import registry
from scaling.window import EMPTY, WindowSpec, observe, summarize

GROUP = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg"
BUS = f"{GROUP}/providers/Microsoft.ServiceBus/namespaces/bus"
END = 1_700_000_040
SERIES = Series(
    BUS, "IncomingMessages", "total", 60, (("EntityName", "orders (eu)"),), "Microsoft.ServiceBus/namespaces"
)


def point(minute: int, **values):
    return {"timeStamp": f"2023-11-14T22:{minute:02}:00Z", **values}  # END is 22:14:00


def answer(*points, **more):
    return {"value": [{"errorCode": "Success", "timeseries": [{"data": list(points)}], **more}]}


def newest(found, grains=LOOK_BACK):
    return newest_of(values_of(found, SERIES, END), SERIES, END, grains)


def test_the_newest_whole_grain_that_has_a_value_counts_and_no_other():
    assert newest_end(END + 236.9, 180.0, 60) == END
    assert newest_end(END + 239.9, 180.0, 60) == END + 60  # a timer that fired a little early
    assert newest_end(END + 240.0, 180.0, 60) == END + 60
    assert newest_end(END, 0.0, 3600) == 1_699_999_200
    assert newest_end(END + 1.0, 0.0, 2) == END  # of a log query
    for grain in GRAINS:  # none counts before its delay is over, but for those three seconds
        end = 1_728_000_000 + grain
        assert newest_end(end + 176.0, 180.0, grain) == end - grain
        assert newest_end(end + 177.0, 180.0, grain) == end
    assert newest(answer(point(12, total=7), point(13, total=5.5), point(14, total=9))) == (END, 5.5)
    assert newest(answer(point(13, total=0))) == (END, 0.0)
    assert newest(answer(point(11, total=4), point(12, total=3), point(13))) == (END - 60, 3.0)


@pytest.mark.parametrize(
    "found",
    [
        answer(),
        answer(point(13)),
        answer(point(13, average=3)),
        answer(timeseries=[]),
        answer(timeseries=[{}]),
    ],
)
def test_no_value_is_none(found):
    assert newest(found) is None


def test_a_value_before_the_grains_that_are_looked_at_is_late():
    late = answer(point(10, total=3), point(11, total=4), point(12), point(13))

    with pytest.raises(
        ValueError,
        match=r"no value for the PT1M that ended at 2023-11-14T22:14:00.000Z; the newest is 2 before",
    ) as caught:
        newest(late, grains=2)
    more = int(re.search(r"give `grains = (\d+)`", str(caught.value)).group(1))
    assert newest(late, grains=more) == (END - 120, 4.0)


@pytest.mark.parametrize("behind", [1, 2, 7, 59])
def test_what_a_late_value_is_advised_to_be_given_makes_no_stale_metric(behind):
    late = {END - 60 * behind: 4.0}
    with pytest.raises(ValueError, match=r"the newest is \d+ before that") as caught:
        newest_of(late, SERIES, END, behind)
    grains, minutes = map(
        int, re.search(r"`grains = (\d+)`, and `max_age = \"(\d+)m\"`", str(caught.value)).groups()
    )
    at, value = newest_of(late, SERIES, END, grains)
    spec = WindowSpec(span=60.0, interval=60.0, delay=DELAY, max_age=60.0 * minutes)
    read = observe(EMPTY, MetricSample("m", at, value), spec, now=END + DELAY + 59.0)

    assert summarize(read, spec, now=END + DELAY + 59.0).problem is None


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, "does not hold the one metric"),
        ([], "does not hold the one metric"),
        ({"value": []}, "does not hold the one metric"),
        ({"value": [1]}, "does not hold the one metric"),
        (answer(errorCode="InternalError", errorMessage="try later"), "InternalError: try later"),
        (answer(timeseries=[{"data": []}, {"data": []}]), "2 time series; accepted is one"),
        (answer(point(13, total="many")), "found the value 'many'"),
        (answer(point(13, total=True)), "found the value 'True'"),
        (answer(point(13, total=math.nan)), "found the value 'nan'"),
        (answer({"timeStamp": "noon", "total": 1}), "noon"),
        (answer({"total": 1}), "None"),
    ],
)
def test_answers_that_are_none_say_what_they_are(found, words):
    with pytest.raises(ValueError, match=words):
        values_of(found, SERIES, END)


junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    "value",
                    "timeseries",
                    "data",
                    "timeStamp",
                    "status",
                    "result",
                    "resultType",
                    "tables",
                    "rows",
                    "error",
                ]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@given(junk)
def test_whatever_is_answered_there_is_a_finite_number_nothing_or_an_error_that_says_why(found):
    for read in (
        lambda: newest(found),
        lambda: prometheus.value_of(found),
        lambda: log_query.value_of(found),
    ):
        try:
            value = read()
        except ValueError:
            continue
        value = value[1] if isinstance(value, tuple) else value
        assert value is None or math.isfinite(value)


def test_a_read_asks_for_five_grains_and_encodes_what_it_is_about():
    alone, together = SERIES.alone(END), SERIES.together(END)

    assert alone.startswith(f"{BUS}/providers/Microsoft.Insights/metrics?api-version=2024-02-01&")
    assert "timespan=2023-11-14T22%3A09%3A00.000Z%2F2023-11-14T22%3A14%3A00.000Z" in alone
    assert "%24filter=EntityName%20eq%20%27orders%20%2528eu%2529%27" in alone
    assert together.startswith("/subscriptions/11111111-2222-3333-4444-555555555555/metrics:getBatch?")
    assert "filter=EntityName" in together
    assert "starttime=2023-11-14T22%3A09%3A00.000Z&endtime=" in together


def test_a_resource_has_a_type_and_an_answer_a_region():
    queues = f"{GROUP}/providers/Microsoft.Storage/storageAccounts/store/queueServices/default"

    assert ResourceId.parse(queues).type == "Microsoft.Storage/storageAccounts/queueServices"
    assert region_of({"resourceregion": "westeurope"}) == "westeurope"
    assert region_of({"resourceregion": "evil.example/x"}) == ""
    assert region_of([]) == ""
    for text in ("", BUS[1:], f"{GROUP}/providers/Microsoft.ServiceBus", f"{BUS}?x=1", f"{BUS}/../x"):
        with pytest.raises(ValueError, match="accepted is the full resource id"):
            ResourceId.parse(text)


@pytest.mark.parametrize(
    ("management", "metrics", "logs"),
    [
        ({}, "https://{region}.metrics.monitor.azure.com", "https://api.loganalytics.io"),
        (
            {"AZURE_RESOURCE_MANAGER_ENDPOINT": "https://management.chinacloudapi.cn/"},
            "https://{region}.metrics.monitor.azure.cn",
            "https://api.loganalytics.azure.cn",
        ),
        (
            {"AZURE_RESOURCE_MANAGER_ENDPOINT": "https://management.usgovcloudapi.net"},
            "https://{region}.metrics.monitor.azure.us",
            "https://api.loganalytics.us",
        ),
    ],
)
def test_metrics_and_logs_are_those_of_the_cloud_that_resource_manager_is_in(management, metrics, logs):
    reader = MetricsReader(management)
    collector = LogQueryCollector(LogQueryCollector.Params(query="x", workspace=WORKSPACE), management)

    assert (reader._metrics, collector._address) == (metrics, logs)
    assert reader._metrics_scope == f"{metrics.replace('{region}.', '')}/.default"
    assert collector._scope == f"{logs}/.default"


def vector(*values):
    return {
        "status": "success",
        "data": {"resultType": "vector", "result": [{"value": [0, each]} for each in values]},
    }


@pytest.mark.parametrize(
    ("document", "value"),
    [
        (vector("1.5"), 1.5),
        (vector("0"), 0.0),
        (vector("1.5e+03"), 1500.0),
        (vector(".5"), 0.5),
        (vector(), None),
        ({"status": "success", "data": {"resultType": "scalar", "result": [0, "7"]}}, 7.0),
    ],
)
def test_prometheus_answers_with_one_value_or_none(document, value):
    assert prometheus.value_of(document) == value


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (vector("1", "2"), "gives 2 series, .*accepted is one"),
        (vector("NaN"), "the value is NaN"),
        (vector("+Inf"), r"the value is \+Inf"),
        (vector("1_000"), "the value is 1_000"),
        (vector("\uff15"), "the value is \uff15"),
        (vector("1e400"), "the value is 1e400"),
        (vector(None), "accepted is"),
        ({"status": "success", "data": {"resultType": "matrix", "result": []}}, "gives a matrix"),
        ({"status": "error", "error": "x"}, "not one of Prometheus that succeeded"),
        ({**vector("1"), "warnings": ["store a did not answer"]}, "comes with warnings: .*did not answer"),
    ],
)
def test_what_prometheus_answers_else_is_an_error(document, words):
    with pytest.raises(ValueError, match=words):
        prometheus.value_of(document)


def table(*rows, **more):
    return {"tables": [{"name": "PrimaryResult", "rows": list(rows)}], **more}


@pytest.mark.parametrize(
    ("document", "value"),
    [(table([3]), 3.0), (table(["1.25"]), 1.25), (table([None]), None), (table(), None)],
)
def test_a_log_answers_with_one_value_or_none(document, value):
    assert log_query.value_of(document) == value


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (table([1], [2]), "2 rows of 1 columns"),
        (table([1, 2]), "1 rows of 2 columns"),
        (table(["NaN"]), "the value is NaN"),
        (table([True]), "the value is True"),
        (table(["east"]), "the value is east"),
        (
            table([1], error={"code": "PartialError", "message": "a shard is away"}),
            "not whole: a shard is away",
        ),
        ({"tables": []}, "holds no table"),
    ],
)
def test_what_a_log_answers_else_is_an_error(document, words):
    with pytest.raises(ValueError, match=words):
        log_query.value_of(document)


def monitor(**options):
    given = {"resource_id": BUS, "metric": "CpuXns", "aggregation": "average", **options}
    return AzureMonitorCollector.Params(**given).problems()


WORKSPACE = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


@pytest.mark.parametrize(
    ("problems", "option", "words"),
    [
        (monitor(resource_id="bus"), "resource_id", "full resource id"),
        (monitor(grain="2m"), "grain", "accepted are 1m, 5m"),
        (monitor(delay="soon"), "delay", "accepted are durations"),
        (monitor(delay="2d"), "delay", "at most 1d"),
        (monitor(grains=5, empty=0.0), "grains", "beside `empty`"),
        (monitor(dimensions={"EntityName": "*"}), "dimensions", "one value of it"),
        (monitor(dimensions={"a b": "c"}), "dimensions", "the name of a dimension"),
        (LogQueryCollector.Params(query="x").problems(), "workspace", "give either"),
        (LogQueryCollector.Params(query="x", workspace="w").problems(), "workspace", "a GUID"),
        (LogQueryCollector.Params(query="x", resource_id="/x").problems(), "resource_id", "full resource id"),
        (
            LogQueryCollector.Params(query="x", workspace=WORKSPACE, timespan="1s").problems(),
            "timespan",
            "1m to 30d",
        ),
        (HttpJsonCollector.Params(url="ftp://x", path="a").problems(), "url", "not asked over TLS"),
        (HttpJsonCollector.Params(url="https://a b", path="a").problems(), "url", "is no address"),
        (PrometheusCollector.Params(url="https://[::1", query="up").problems(), "url", ""),
        (HttpJsonCollector.Params(url="https://x", path="a[").problems(), "path", "no JMESPath expression"),
        (
            HttpJsonCollector.Params(url="https://x", path="a", headers={"Host": "X"}).problems(),
            "headers",
            "made here",
        ),
        (
            HttpJsonCollector.Params(url="https://x", path="a", headers={"a b": "X"}).problems(),
            "headers",
            "letters",
        ),
        (
            PrometheusCollector.Params(url="https://x?y=1", query="up").problems(),
            "url",
            "accepted is the address that /api/v1/query is below",
        ),
        (
            PrometheusCollector.Params(
                url="https://x", query="up", azure=True, headers={"Authorization": "X"}
            ).problems(),
            "headers",
            "beside azure = true",
        ),
    ],
)
def test_options_that_cannot_be_are_told(problems, option, words):
    assert list(problems) == [option]
    assert words in problems[option]


def test_a_value_in_place_of_a_settings_name_is_not_shown():
    problems = HttpJsonCollector.Params(
        url="https://x", path="a", headers={"X-Key": "Bearer abc=="}
    ).problems()

    assert "is no name of an app setting" in problems["headers"]
    assert "abc" not in problems["headers"]


async def test_a_token_is_sent_to_azure_only():
    params = PrometheusCollector.Params(url="https://prometheus.example", query="up", azure=True)

    with pytest.raises(
        CollectError, match=r"no host of \*\.prometheus\.monitor\.azure\.com; a token is sent to no other"
    ):
        await PrometheusCollector(params, {}).collect(now=0.0)
    made = PrometheusCollector(
        PrometheusCollector.Params(
            url="https://ws-x.eastus.prometheus.monitor.azure.com", query="up", azure=True
        ),
        {},
    )
    assert made._scope == "https://prometheus.monitor.azure.com/.default"


def test_an_entity_shows_no_address_beyond_its_host_and_tells_options_apart():
    one = HttpJsonCollector.Params(url="https://x.example/a?sig=s3cret", path="a")
    other = HttpJsonCollector.Params(url="https://x.example/b?sig=s3cret", path="a")

    assert "s3cret" not in HttpJsonCollector.entity(one)
    assert HttpJsonCollector.entity(one) != HttpJsonCollector.entity(other)


async def test_a_reader_closes_before_and_after_use():
    reader = MetricsReader({})

    await reader.close()
    await reader.close()


POLICY = """
[targets.plan]
scaler = "advice"
maximum = 5
[targets.plan.metrics.backlog]
collector = "storage_queue"
connection = "C"
queue = "work"
[targets.plan.metrics.came]
collector = "azure_monitor"
resource_id = "BUS"
metric = "IncomingMessages"
aggregation = "total"
empty = 0
[targets.plan.metrics.done]
collector = "azure_monitor"
resource_id = "BUS"
metric = "CompleteMessage"
aggregation = "total"
empty = 0
[[targets.plan.rules]]
type = "service_level"
backlog = "backlog"
incoming = "came"
outgoing = "done"
concurrency = 4
""".replace("BUS", BUS)


def test_minutes_of_azure_monitor_read_every_15_seconds_are_late_exact_counts_of_a_whole_window():
    settings = {"COLLECT_SCHEDULE": "*/15 * * * * *"}
    policy = load_config(POLICY, name="t.toml", settings=settings, plug_ins=registry).policies["plan"]
    windows, start = {}, END + 240.0
    for tick in range(60):
        now = start + 15.0 * tick
        end = newest_end(now, 180.0, 60)
        samples = (
            MetricSample("backlog", now, 7.0),
            MetricSample("came", end, float(end % 1000)),
            MetricSample("done", end, 2.0),
        )
        report = MetricsReport("plan", now, samples)
        windows = windows_after_report(policy, windows, report, now=now)
    view = view_of(policy, windows, TargetState(), Capacity(2, now), 2, now=now)
    (rule,) = policy.rules
    seen = rule.observed(view)

    assert (policy.interval, seen.incoming, seen.outgoing) == (15.0, None, None)
    ends = [end for end, *_ in seen.late_counts]
    assert ends == sorted(set(ends))
    assert ends[-1] == newest_end(now, 180.0, 60)
    assert {count[1:] for count in seen.late_counts} == {(60.0, float(end % 1000), 2.0) for end in ends}
    for name in ("came", "done"):
        summary = view.metric(name)
        assert (summary.problem, summary.gap, summary.count) == (None, False, 10)
