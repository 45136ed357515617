"""From readings, policy and options to what is replayed: what is told, what is assumed, and what is refused."""

import re
from math import nan

import pytest

from scaling.config.policy import Policy
from scaling.service import registry
from tests.support.analysis import CONFIG, MONDAY
from tidemark.analysis.advise.question import Options, prepare
from tidemark.analysis.backtest.candidates.grid import Targets
from tidemark.analysis.backtest.replay.history import HistoryError, Reading
from tidemark.analysis.simulation.field import field, service_level
from tidemark.analysis.simulation.world import Seen

RATE = Options(service_rate=10.0)

SERVICE_LEVEL = """
[[targets.plan.rules]]
type = "service_level"
backlog = "backlog"
incoming = "came"
wait = "30s"
late = "2%"
concurrency = 4
start_up = "2m"

[targets.plan.metrics.came]
collector = "service_bus_queue"
connection = "Bus"
queue = "orders"
window = "5m"
"""


def spec(text=CONFIG):
    return Targets(text, name="tidemark.toml", settings={}, plug_ins=registry).baseline("plan")


def minutes(counts, **columns):
    return [
        Reading(MONDAY + 60.0 * n, arrivals=each, **columns)
        for n, each in enumerate(counts)
        if each is not None
    ]


def told(question, words):
    return [note for note in question.notes if re.search(words, note)]


def test_options_win_over_the_policy_and_what_is_assumed_is_told():
    own = spec(CONFIG.partition("[[targets")[0] + SERVICE_LEVEL)
    found = prepare("plan", minutes([60.0] * 30), Options(service_rate=10.0, wait=45.0), own).target
    bare = prepare("plan", minutes([60.0] * 30), RATE, spec())

    assert (found.wait, found.late, found.concurrency, found.start_up) == (45.0, 0.02, 4.0, 120.0)
    assert found.given == {"concurrency": 4.0, "start_up": "120s", "takes": "0.4s"}
    assert found.reads == {"backlog": "backlog", "came": "incoming"}
    assert (found.minimum, found.maximum) == (2, 12)
    assert (bare.target.wait, bare.target.concurrency, bare.target.start_up) == (60.0, 16.0, 90.0)
    assert told(bare, "assumed") == [
        "an instance holds 16 messages at once: assumed (--concurrency)",
        "an instance serves 90 s after it was asked for: assumed (--start-up)",
        "no message should wait longer than 60 s: assumed (--wait)",
        "1 % of the messages may wait longer than they should: assumed (--late)",
    ]
    assert bare.target.given == {}  # what is assumed is left to be learned


@pytest.mark.parametrize(("arrivals", "notes"), [([0.0, None, 0.0], 1), ([0.0, None, 1.0], 0)])
def test_that_nothing_arrived_is_said(arrivals, notes):
    assert len(told(prepare("plan", minutes(arrivals), RATE, None), "no message arrives")) == notes


def test_gaps_stay_gaps_and_are_told():
    found = prepare("plan", minutes([60.0, None, None, 60.0, None, 60.0, 60.0]), RATE, spec())

    assert found.hours == pytest.approx(4 / 60)
    assert found.whole == pytest.approx(7 / 60)
    assert told(found, r"43 % of the time is missing \(3 min in 2 gaps\)")


def test_how_little_a_short_history_proves_is_told():
    assert told(prepare("plan", minutes([60.0] * 90), RATE, None), "1 h 30 min is less than a day")
    day = [Reading(MONDAY + 3600.0 * n, arrivals=60.0) for n in range(48)]
    assert told(prepare("plan", day, RATE, None), "less than a week")
    week = [Reading(MONDAY + 3600.0 * n, arrivals=60.0) for n in range(200)]
    assert not told(prepare("plan", week, RATE, None), "less than")


def test_what_an_instance_serves_is_asked_for_where_the_history_does_not_tell():
    with pytest.raises(
        HistoryError, match=r"no backlog with the instances of that time: give --service-rate"
    ):
        prepare("plan", minutes([60.0] * 30), Options(), spec())
    with pytest.raises(
        HistoryError, match=r"all instances were busy in 0 bins, 20 are needed: give --service-rate"
    ):
        prepare("plan", minutes([60.0] * 30, backlog=0.0, instances=3), Options(), spec())
    with pytest.raises(HistoryError, match=r"no arrivals.* give --service-rate"):
        prepare("plan", [Reading(MONDAY + 60.0 * n, backlog=5.0) for n in range(9)], Options(), spec())


@pytest.mark.parametrize(
    ("said", "found", "given"),
    [
        ({"takes": 32.0, "concurrency": 16.0}, (0.5, 16.0), {"concurrency": 16, "takes": "32s"}),
        ({"takes": 32.0, "service_rate": 0.5}, (0.5, 16.0), {"concurrency": 16, "takes": "32s"}),
        ({"concurrency": 16.0, "service_rate": 0.5}, (0.5, 16.0), {"concurrency": 16, "takes": "32s"}),
        ({"concurrency": 16.0, "service_rate": 10.0}, (10.0, 16.0), {"concurrency": 16, "takes": "1.6s"}),
        ({"service_rate": 0.5}, (0.5, 16.0), {}),
    ],
)
def test_two_of_rate_concurrency_and_time_say_the_third_and_what_is_assumed_is_asked_for(said, found, given):
    question = prepare("plan", minutes([60.0] * 30), Options(**said), None)

    assert (question.target.service_rate, question.target.concurrency) == pytest.approx(found)
    assert question.target.given == given
    assert told(question, f"a message takes {question.target.concurrency / question.target.service_rate:g} s")
    assert bool(told(question, "give --takes")) == (not given)


def test_a_time_of_a_message_that_contradicts_rate_and_concurrency_is_refused():
    with pytest.raises(HistoryError, match=r"serves 0.5 a second, and --service-rate is 10: leave one of"):
        prepare("plan", minutes([60.0] * 30), Options(takes=32.0, concurrency=16.0, service_rate=10.0), None)


def test_what_the_maximum_cannot_serve_is_said_to_be_late_for_every_policy_only_where_it_is():
    burst = minutes([0.0] * 20 + [6000.0] + [0.0] * 40)  # ten minutes of ten instances
    slow, fast = (
        prepare("plan", burst, Options(service_rate=1.0, maximum=10, wait=wait), None)
        for wait in (1200.0, 60.0)
    )

    peak = "what comes at the peak keeps 100 instances busy, and the maximum is 10: with 10 all the time, "
    assert slow.saturated == ""  # ten serve it within twenty minutes
    assert fast.saturated.startswith(peak)
    assert fast.saturated.endswith("% of the messages would be late, so no policy keeps the objective")


def test_it_is_estimated_from_busy_bins_and_how_is_told():
    # 3 instances serve 600 a minute each while thousands wait; 1000 of 2800 that come wait longer each minute.
    busy = [
        Reading(MONDAY + 60.0 * n, arrivals=2800.0, backlog=5000.0 + 1000.0 * n, instances=3)
        for n in range(40)
    ]
    found = prepare("plan", busy, Options(), spec())

    assert found.target.service_rate == pytest.approx(10.0)
    assert told(found, "estimated from the 39 bins of 1 min in which more waited at both ends")
    assert found.recorded.first == 3


def test_arrivals_of_a_scaling_log_are_those_that_it_counted():
    own = spec(CONFIG.partition("[[targets")[0] + SERVICE_LEVEL)
    log = [
        Reading(MONDAY + 60.0 * n + 0.3, backlog=10.0, instances=2, metrics={"came": 100.0 + n})
        for n in range(1, 5)
    ]
    found = prepare("plan", log, RATE, own)

    assert found.recorded.bins == [101.0, 102.0, 103.0, 104.0]
    assert found.recorded.begin == pytest.approx(MONDAY + 0.3, abs=0.01)


def test_arrivals_follow_from_backlogs_that_count_what_is_processed_too():
    # 2 instances hold 32: with 16 there they serve 10/s, and with 320 there all they can, which is 20/s.
    there = [16.0, 16.0, 320.0, 320.0, 20.0, None, 16.0, 16.0]
    log = [
        Reading(MONDAY + 60.0 * n, backlog=each, instances=2)
        for n, each in enumerate(there)
        if each is not None
    ]
    found = prepare("plan", log, RATE, spec())

    assert found.recorded.bins == pytest.approx([600, 1504, 1200, 900, nan, nan, 600], nan_ok=True)
    assert told(found, "recovered from backlogs")
    assert found.recorded.first == 2


def test_a_policy_that_reads_more_than_the_queue_is_left_out_with_the_reason():
    guarded = CONFIG + CONFIG[CONFIG.index("[targets.plan.metrics") : CONFIG.index("[[")].replace(
        "metrics.backlog", "metrics.deep"
    )
    found = prepare("plan", minutes([60.0] * 30), RATE, spec(guarded))

    assert found.target.policy is None
    assert told(found, "left out: it reads deep")
    assert found.target.maximum == 12


AGES = SERVICE_LEVEL.partition("[targets.plan.metrics")[0].replace(
    "incoming =", "oldest_age = 'waits'\noutgoing ="
)
AGES += """
[targets.plan.metrics.waits]
collector = "storage_queue"
connection = "Bus"
queue = "orders"
count = "oldest_age"
window = "5m"

[targets.plan.metrics.came]
collector = "azure_monitor"
resource_id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/g/providers/Microsoft.ServiceBus/namespaces/n"
metric = "CompleteMessage"
aggregation = "total"
window = "5m"
"""


def test_a_policy_that_reads_ages_and_late_counts_is_replayed_and_so_are_others_of_its_senses():
    own = spec(CONFIG.partition("[[targets")[0] + AGES)
    found = prepare("plan", minutes([60.0] * 30), RATE, own).target

    assert found.policy is not None
    assert found.reads == {"backlog": "backlog", "waits": "oldest_age", "came": "late_outgoing"}
    for entry in field(found):
        if entry.ours and not entry.name.startswith("target"):
            options = entry.spec.rules[0].options
            assert (options["oldest_age"], options["outgoing"]) == ("waits", "came")
            assert entry.spec.metrics["came"].window.interval == 60.0
        if entry.spec is not None:
            entry.policy(found, 0.0).see(Seen(0.0, 5.0, 0.0, 2, 2, 5.0, 0.0))


def test_todays_policy_is_replayed_as_if_it_were_not_in_dry_run():
    found = prepare("plan", minutes([60.0] * 30), Options(service_rate=10.0, maximum=40), spec())

    assert not found.target.policy.dry_run
    assert found.target.policy.maximum == 40
    assert told(found, "dry-run")


@pytest.mark.parametrize(
    ("width", "wait", "said"),
    [(60, 10.0, False), (300, 60.0, True), (3600, 7200.0, False), (86_400, 7200.0, True)],
)
def test_a_row_that_is_longer_than_the_wait_hides_batches_and_that_is_told(width, wait, said):
    rows = [Reading(MONDAY + width * n, arrivals=600.0) for n in range(9)]
    found = prepare("plan", rows, Options(service_rate=10.0, wait=wait), None)

    assert bool(told(found, "those that come at once, as of a batch, wait longer")) is said


@pytest.mark.parametrize(
    "said",
    [
        {"service_rate": 1e6, "concurrency": 1.0},
        {"service_rate": 16 / 1.6e6, "concurrency": 16.0, "wait": 2_592_000.0},
        {"takes": 1_234_567.0, "concurrency": 1.0, "wait": 1_234_567.0, "start_up": 1_000_001.0},
        {"service_rate": 1e6, "concurrency": 1e-6},
    ],
)
def test_the_shortest_and_longest_times_are_options_that_the_rule_reads(said):
    question = prepare("plan", minutes([60.0] * 30), Options(**said), None)
    target = question.target
    (rule,) = Policy(service_level(target, target.wait, target.late, 60.0)).flat_rules

    assert rule.objective.takes == pytest.approx(target.concurrency / target.service_rate, rel=1e-3)
    assert rule.objective.wait == target.wait
    assert rule.objective.start_up in {None, target.start_up}


def test_a_message_that_takes_longer_than_any_does_is_refused():
    with pytest.raises(
        HistoryError, match=r"a message takes 1.6e\+07 s by 16 at once .* accepted are up to 30 d"
    ):
        prepare("plan", minutes([60.0] * 30), Options(service_rate=1e-6, concurrency=16.0), None)


def test_a_load_beyond_the_maximum_is_told_and_bounds_that_cross_are_refused():
    found = prepare("plan", minutes([60.0, 48_000.0]), RATE, spec())

    assert found.saturated.startswith("what comes at the peak keeps 80 instances busy, and the maximum is 12")
    assert prepare("plan", minutes([60.0, 60.0]), RATE, spec()).saturated == ""
    with pytest.raises(HistoryError, match=r"minimum 9, maximum 3.*--maximum"):
        prepare("plan", minutes([60.0, 60.0]), Options(service_rate=1.0, minimum=9, maximum=3), None)


def test_what_ran_in_truth_is_told_where_it_was_recorded():
    assert told(
        prepare("plan", minutes([60.0] * 90, instances=4), RATE, spec()), "6 instance-hours ran in truth"
    )


def test_where_only_completed_messages_were_counted_arrivals_are_those_and_what_the_backlog_grew_by():
    own = spec(CONFIG.partition("[[targets")[0] + SERVICE_LEVEL.replace("incoming", "outgoing"))
    there = [10.0, 30.0, 20.0, 20.0]
    log = [
        Reading(MONDAY + 60.0 * n, backlog=each, instances=2, metrics={"came": 100.0})
        for n, each in enumerate(there)
    ]

    assert prepare("plan", log, RATE, own).recorded.bins == [120.0, 90.0, 100.0]
