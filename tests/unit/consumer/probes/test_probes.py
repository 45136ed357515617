"""What a worker answers to probes and to Prometheus, also while its event loop is blocked."""

import http.client
import math
from contextlib import contextmanager

import msgspec
import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from consumer.core.statistics import Totals
from consumer.probes.fleet import START_WITHIN, FleetAnswers
from consumer.probes.health import STALLED, WATCHDOG, Progress, Pulse, why_dead, why_unready
from consumer.probes.prometheus import merged, metrics_text
from consumer.probes.server import Answer, Board, ProbeServer, ProcessAnswers
from consumer.telemetry.instruments import BY_REASON, INSTRUMENTS
from consumer.telemetry.records import Identity
from tests.support.consumer.telemetry import IDENTITY, partition, statistics
from tidemark.foundation.errors import SettingsError

NOW = 10_000.0
GOOD = Pulse(NOW, "", statistics(), call_timeout=60.0)


@pytest.mark.parametrize(
    ("pulse", "dead", "unready"),
    [
        (GOOD, "", ""),
        (structs.replace(GOOD, at=NOW - STALLED), "", ""),
        (
            structs.replace(GOOD, at=NOW - STALLED - 1),
            "the event loop is blocked",
            "the event loop is blocked",
        ),
        (structs.replace(GOOD, overdue_since=NOW - WATCHDOG), "", ""),
        (
            structs.replace(GOOD, overdue_since=NOW - WATCHDOG - 1),
            "the pipeline is stuck",
            "the pipeline is stuck",
        ),
        # a call that is not answered is the sink's fault until it goes on beyond its own end
        (structs.replace(GOOD, unanswered_since=NOW - 60.0 - WATCHDOG), "", ""),
        (structs.replace(GOOD, unanswered_since=NOW - 61.0 - WATCHDOG), "no write ended", "no write ended"),
        # neither hub nor sink makes a process dead
        (structs.replace(GOOD, waits_for="the hub is away"), "", "the hub is away"),
        (structs.replace(GOOD, errors={"0": "no route to host"}), "", ""),
        (structs.replace(GOOD, stopping=True), "", "it is stopping"),
        (Pulse(NOW), "", "the start"),
    ],
)
def test_a_process_is_dead_by_itself_only_and_unready_while_it_waits(pulse, dead, unready):
    for found, expected in ((why_dead(pulse, NOW), dead), (why_unready(pulse, NOW), unready)):
        assert expected in found
        assert bool(expected) == bool(found)


def test_the_watch_over_a_pipeline_begins_anew_with_each_thing_that_is_done():
    progress, seen = Progress(), []
    for now, due_at, in_flight, attempts in [
        (0.0, 1.0, 1, 5),
        (10.0, 11.0, 1, 5),  # nothing ended
        (20.0, 15.0, 1, 5),  # overdue
        (30.0, 15.0, 1, 6),  # a batch ended
        (40.0, math.inf, 0, 6),
    ]:
        state = structs.replace(
            statistics(), due_at=due_at, in_flight_batches=in_flight, totals=Totals(attempts=attempts)
        )
        seen.append(progress.note(state, now))

    assert seen == [(None, 0.0), (None, 0.0), (15.0, 0.0), (15.0, 30.0), (None, None)]


ODD = Identity('a"b\\c\nd', "host~1~é", "hub", "$Default")


def families(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


@pytest.mark.parametrize("identity", [IDENTITY, ODD])
def test_prometheus_reads_every_instrument_with_the_names_and_values_that_it_has(identity):
    totals = Totals(received=5, dropped={"filter": 3, 'odd"one': 2})
    shown = statistics(partition("0"), partition("1", last=None), totals=totals)
    found = families(metrics_text(identity, shown, {"consumer_live": ("Whether it is", 1.0)}))

    assert found["consumer_live"].samples[0].value == 1.0
    for instrument in INSTRUMENTS:
        family = found[instrument.name.replace(".", "_")]
        assert (family.type, family.documentation) == (
            instrument.kind.partition(" ")[0],
            instrument.description,
        )
        if instrument.kind == BY_REASON:
            assert {each.labels.pop("reason"): each.value for each in family.samples} == totals.dropped
            continue
        for sample in family.samples:
            of_partition = sample.labels.pop("partition", None)
            assert sample.labels == structs.asdict(identity)
            source = {None: shown.totals if instrument.kind == "counter" else shown}.get(
                of_partition
            ) or next(each for each in shown.partitions if each.partition == of_partition)
            assert sample.value == float(instrument.read(source))
    assert len(found["consumer_lag"].samples) == 1  # of the other partition it is unknown


def test_the_metrics_of_several_instances_are_one_text_with_all_their_samples():
    other = structs.replace(IDENTITY, instance="other")
    texts = [metrics_text(each, statistics(partition("0")), {}) for each in (IDENTITY, other)]
    texts.append(metrics_text(ODD, None, {"consumer_live": ("Whether it is", 0.0)}))

    text = merged(texts)

    assert text.count("# TYPE consumer_backlog gauge") == 1
    found = families(text)
    assert [sample.labels["instance"] for sample in found["consumer_backlog"].samples] == ["vm-1", "other"]
    assert sum(len(family.samples) for family in found.values()) == sum(
        len(family.samples) for each in texts for family in families(each).values()
    )


@contextmanager
def serving(answer):
    server = ProbeServer("127.0.0.1", 0, answer)
    try:
        yield server.port
    finally:
        server.close()


def ask(port, path, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read().decode()
    finally:
        connection.close()


def test_probes_are_answered_by_a_thread_also_while_the_loop_is_blocked():
    clock = [NOW]
    boards = [Board(IDENTITY, NOW), Board(structs.replace(IDENTITY, consumer="second"), NOW)]
    for board in boards:
        board.pulse = structs.replace(
            GOOD,
            statistics=statistics(partition("0"), structs.replace(partition("5"), problem="a parked event")),
            errors={"0": "AccountKey=c2VjcmV0c2VjcmV0;", "9": "no route"},
        )
    with serving(ProcessAnswers(boards, lambda: clock[0])) as port:
        good = [ask(port, path) for path in ("/live", "/ready?verbose", "/metrics", "/state/")]
        head, unknown = ask(port, "/live", "HEAD"), ask(port, "/other")
        refused = ask(port, "/live", "POST")
        boards[1].pulse = structs.replace(boards[1].pulse, at=NOW - 100.0)
        blocked = ask(port, "/live")

    assert [status for status, *_ in good] == [200] * 4
    assert good[2][1].startswith("text/plain; version=0.0.4")
    state = msgspec.json.decode(good[3][2])["consumers"][0]
    assert (state["consumer"], state["live"], state["ready"]) == (IDENTITY.consumer, True, True)
    zero, five, nine = state["partitions"]
    assert five["last_error"] == "a parked event"
    assert (zero["partition"], zero["low_water"], zero["lag"], zero["unsettled"], zero["parked"]) == (
        *("0", 800, 160, 60, 0),
    )
    assert nine == {"partition": "9", "epoch": None, "last_error": "no route"}
    assert "c2VjcmV0" not in good[3][2]
    assert head[0::2] == (200, "")
    assert (unknown[0], refused[0]) == (404, 501)
    assert blocked[0] == 503
    assert blocked[2].startswith("second: the event loop is blocked: no beat for 100 s")


def test_a_taken_port_is_an_error_that_names_the_setting():
    with (
        serving(lambda path: Answer(200, "")) as port,
        pytest.raises(
            SettingsError, match=f"CONSUMER_HTTP_PORT: port {port} .* in use; accepted: a free port"
        ),
    ):
        ProbeServer("127.0.0.1", port, lambda path: Answer(200, ""))
    with pytest.raises(SettingsError, match="CONSUMER_HTTP_PORT: port 70000"):
        ProbeServer("127.0.0.1", 70_000, lambda path: Answer(200, ""))


def test_an_answer_that_fails_is_a_bad_one():
    with serving(lambda path: {}[path]) as port:
        assert ask(port, "/live")[0] == 500


@pytest.mark.parametrize(
    ("ages", "live", "ready"),
    [
        ([100.0, 100.0], "", ""),
        ([100.0, None], "", "worker 2 of 2: it is being replaced"),
        ([100.0, 100.0, 5.0], "", "worker 3 of 3: it is starting"),
        ([100.0, 100.0, START_WITHIN + 1], "worker 3 of 3: it does not answer", "worker 3 of 3: it does not"),
    ],
)
def test_the_parent_answers_for_all_its_workers(ages, live, ready):
    boards = [Board(structs.replace(IDENTITY, instance=f"w{n}"), NOW) for n in range(2)]
    for board in boards:
        board.pulse = structs.replace(GOOD, statistics=statistics(partition("0")))
    with (
        serving(ProcessAnswers(boards[:1], lambda: NOW)) as one,
        serving(ProcessAnswers(boards[1:], lambda: NOW)) as two,
    ):
        answer = FleetAnswers([one, two, 1], lambda: ages)
        found = {path: answer(path) for path in ("/live", "/ready", "/metrics", "/state")}
        boards[0].pulse = structs.replace(GOOD, at=NOW - 100.0)
        blocked = answer("/live")

    for path, problem in (("/live", live), ("/ready", ready)):
        assert found[path].status == (503 if problem else 200)
        assert found[path].body.startswith(problem or "ok")
    running = sum(age is not None for age in ages[:2])
    assert len(families(found["/metrics"].body)["consumer_backlog"].samples) == running
    workers = msgspec.json.decode(found["/state"].body)["workers"]
    assert [worker and worker["consumers"][0]["instance"] for worker in workers] == [
        f"w{n}" if n < running else None for n in range(len(ages))
    ]
    assert blocked.status == 503
    assert "worker 1 of" in blocked.body
