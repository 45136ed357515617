"""The sender's decisions against a modelled service that refuses, loses requests and loses answers at will."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.publisher.service_bus.core.errors import OversizedMessageError
from tidemark.publisher.service_bus.core.packing import Limits
from tidemark.publisher.service_bus.core.send_report import Outgoing
from tidemark.publisher.service_bus.core.send_steps import (
    Accepted,
    Busy,
    Pause,
    Read,
    Rejected,
    Store,
    TooLarge,
    Transfer,
    Unknown,
)
from tidemark.publisher.service_bus.core.sending import Sending, SendPolicy

ANNOUNCED = Limits(batch=100, message=120)
OUTCOMES = ("ok", "busy", "lost request", "lost answer", "refused", "too large")


def measure(size, index, limits):
    """A message that is its own size."""
    item = Outgoing(index, f"id-{index}", None, None, size, b"x" * size, size + 5, 4)
    if not limits.sendable(item):
        raise OversizedMessageError(index, item.message_id, size, limits.message, "no claim check")
    return item


class Service:
    """Takes batches up to a limit it does not announce, and fails as the schedule says, then never again."""

    def __init__(self, faults, hidden, *, detects_duplicates=False):
        self.faults, self.hidden = list(faults), hidden
        self.detects_duplicates = detects_duplicates
        self.stored = []

    def take(self, effect):
        fault = self.faults.pop(0) if self.faults else "ok"
        items = effect.items
        wire = items[0].size if effect.singly else items[0].envelope + sum(item.cost for item in items)
        assert wire <= (ANNOUNCED.message if effect.singly else ANNOUNCED.batch)
        if fault in ("ok", "lost answer") and wire > self.hidden and not effect.singly:
            return TooLarge("larger than it looks")
        if fault in ("ok", "lost answer"):
            known = set(self.stored) if self.detects_duplicates else set()
            self.stored.extend(item.index for item in items if item.index not in known)
        return {
            "ok": Accepted(),
            "busy": Busy("server busy", 0.5),
            "lost request": Unknown("no answer"),
            "lost answer": Unknown("no answer"),
            "refused": Rejected("entity disabled"),
            "too large": TooLarge("at random"),
        }[fault]


def carry_out(sending, source, service):
    """What both senders do, without their I/O; returns the report."""
    effect = sending.next()
    while effect is not None:
        match effect:
            case Read(count):
                answer = [message for _, message in zip(range(count), source, strict=False)]
            case Transfer():
                answer = service.take(effect)
            case Pause(seconds):
                answer = None
                assert seconds >= 0.5
            case Store():
                answer = Accepted()
        effect = sending.next(answer)
    taken = sending.give_back()
    return sending.report([*taken, *source])


sizes = st.lists(st.one_of(st.integers(1, 40), st.integers(80, 95)), max_size=150)
faults = st.lists(st.sampled_from(OUTCOMES), max_size=25)


def check_partition(report, count):
    """Every message is in exactly one place."""
    places = [
        *report.sent,
        *(item.index for item in report.unknown),
        *(item.index for item in report.unsent),
        *(each.index for each in report.refused),
        *range(report.next_index, report.next_index + len(report.rest)),
    ]
    assert sorted(places) == list(range(count))


@given(sizes, faults, st.integers(30, 100), st.booleans())
def test_nothing_is_lost_or_doubled_under_any_fault_schedule(messages, schedule, hidden, ordered):
    service = Service(schedule, hidden)
    policy = SendPolicy(look_ahead=0, attempts=3, retry_delay=0.5, mixed=True, ordered=ordered)
    source, before = iter(messages), None
    for _ in range(30):
        sending = Sending(measure, ANNOUNCED, policy, before=before)
        report = carry_out(sending, source, service)
        check_partition(report, len(messages))
        unknown = {item.index for item in report.unknown}
        assert set(report.sent) <= set(service.stored) <= set(report.sent) | unknown
        assert len(service.stored) == len(set(service.stored))
        assert not ordered or service.stored == sorted(service.stored)
        if not report.reason:
            break
        source, before = iter(report.rest), report

    refused = {each.index for each in report.refused}
    assert set(report.sent) | unknown | refused == set(range(len(messages)))


@given(sizes, faults)
def test_with_duplicate_detection_unknown_is_sent_again_and_everything_arrives_once(messages, schedule):
    service = Service(schedule, hidden=100, detects_duplicates=True)
    policy = SendPolicy(look_ahead=0, attempts=2, retry_delay=0.5, mixed=True, resend_unknown=True)
    source, before, limits = iter(messages), None, ANNOUNCED
    for _ in range(30):
        sending = Sending(measure, limits, policy, before=before)
        report = carry_out(sending, source, service)
        check_partition(report, len(messages))
        if not report.reason:
            break
        source, before, limits = iter(report.rest), report, sending.limits

    refused = {each.index for each in report.refused}
    assert report.exhausted
    assert not report.unknown
    assert not report.unsent
    assert set(report.sent) == set(range(len(messages))) - refused
    assert sorted(service.stored) == sorted(report.sent)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.one_of(st.integers(1, 30), st.integers(60, 70))), max_size=80
    ),
    faults,
    st.integers(30, 100),
    st.booleans(),
)
def test_each_session_keeps_its_order_over_retries_size_splits_and_resumptions(
    messages, schedule, hidden, resends
):
    """Of what is sent again without an answer the first copy counts: with duplicate detection it is the only one."""
    service, source, before = Service(schedule, hidden), iter(messages), None

    def of_session(message, index, limits):
        session, size = message
        item = Outgoing(index, f"id-{index}", session, None, message, b"x" * size, size + 5, 4)
        if not limits.sendable(item):
            raise OversizedMessageError(index, item.message_id, size, limits.message, "no claim check")
        return item

    policy = SendPolicy(look_ahead=0, attempts=2, retry_delay=0.5, resend_unknown=resends)
    for _ in range(40):
        report = carry_out(Sending(of_session, ANNOUNCED, policy, before=before), source, service)
        check_partition(report, len(messages))
        if not report.reason:
            break
        source, before = iter(report.rest), report

    for session in "abc":
        first_copies = [index for index in dict.fromkeys(service.stored) if messages[index][0] == session]
        assert first_copies == sorted(first_copies)
        wanted = {index for index, (key, _) in enumerate(messages) if key == session}
        assert wanted - set(first_copies) <= {item.index for item in report.unknown} | {
            each.index for each in report.refused
        }


@given(sizes, st.integers(40, 99))
def test_a_reused_sender_converges_so_that_a_hidden_limit_costs_refusals_only_once(messages, hidden):
    messages = [size for size in messages if size + 9 <= hidden]
    policy = SendPolicy(look_ahead=0, mixed=True)
    first = Sending(measure, ANNOUNCED, policy)
    carry_out(first, iter(messages), Service([], hidden))
    again = Sending(measure, first.limits, policy)
    report = carry_out(again, iter(messages), Service([], hidden))

    assert report.complete
    assert report.size_refusals == 0


def test_only_the_refused_chunk_is_sent_again():
    service = Service(["ok", "too large"], hidden=100)
    policy = SendPolicy(look_ahead=0, mixed=True)
    sending = Sending(measure, ANNOUNCED, policy)
    transfers = []
    take = service.take
    service.take = lambda effect: (transfers.append([item.index for item in effect.items]), take(effect))[1]
    report = carry_out(sending, iter([43] * 6), service)

    assert report.complete
    assert transfers == [[0, 1], [2, 3], [2], [3], [4], [5]]
    assert sending.limits.batch == 95
    assert report.size_refusals == 1


def test_a_transfer_that_was_given_up_is_unknown():
    sending = Sending(measure, ANNOUNCED, SendPolicy(look_ahead=0))
    assert isinstance(sending.next(), Read)
    transfer = sending.next([10, 20])
    assert isinstance(transfer, Transfer)
    sending.abandon("given up: CancelledError", transfer)
    report = sending.report()

    assert [item.index for item in report.unknown] == [0, 1]
    assert report.reason == "given up: CancelledError"
    assert not report.sent


def test_what_was_given_up_between_two_attempts_was_not_sent():
    sending = Sending(measure, ANNOUNCED, SendPolicy(look_ahead=0))
    sending.next()
    sending.next([10, 20])
    pause = sending.next(Busy("busy"))
    assert isinstance(pause, Pause)
    sending.abandon("given up: CancelledError", pause)

    assert [item.index for item in sending.report().unsent] == [0, 1]
    assert not sending.report().unknown


def test_what_is_too_large_in_a_stream_stops_it_with_everything_accounted_for():
    service = Service([], hidden=100)
    sending = Sending(measure, ANNOUNCED, SendPolicy(look_ahead=0, mixed=True))
    messages = [90] * 3 + [500] + [10] * 70
    report = carry_out(sending, iter(messages), service)

    check_partition(report, len(messages))
    assert [each.index for each in report.refused] == [3]
    assert report.refused[0].size == 500
    assert "message 3 (message id id-3) has 500 bytes, accepted: up to 120" in report.reason


def test_a_collection_is_measured_before_anything_is_sent():
    sending = Sending(measure, ANNOUNCED, SendPolicy(look_ahead=0))
    with pytest.raises(OversizedMessageError, match="message 1000 "):
        sending.measure_ahead([10] * 1000 + [500])


@given(st.lists(st.integers(1, 40), max_size=80), st.integers(1, 9))
def test_a_collection_measured_in_parts_is_sent_once_and_whole(messages, part):
    sending = Sending(measure, ANNOUNCED, SendPolicy(look_ahead=0, mixed=True))
    for start in range(0, len(messages), part):
        sending.measure_ahead(messages[start : start + part])
    service = Service([], hidden=100)
    report = carry_out(sending, iter(messages[sending.next_index :]), service)

    assert report.complete
    assert service.stored == list(range(len(messages)))


def test_a_body_is_stored_once_however_often_its_message_is_sent():
    from tidemark.publisher.service_bus.core.send_report import Claim  # noqa: PLC0415 - only here

    def claimed(size, index, limits):
        return Outgoing(
            index, f"id-{index}", None, None, size, b"x" * 10, 15, 4, Claim("claims/a", b"body", "00")
        )

    sending = Sending(claimed, ANNOUNCED, SendPolicy(look_ahead=0, retry_delay=0.5))
    effects = []
    effect = sending.next()
    answers = {Read: [500], Store: Accepted(), Pause: None}
    transfers = iter([Busy("busy"), Accepted()])
    while effect is not None:
        effects.append(type(effect))
        answer = next(transfers) if isinstance(effect, Transfer) else answers[type(effect)]
        effect = sending.next(answer)

    assert effects == [Read, Store, Transfer, Pause, Transfer]
    assert sending.report().claims == 1
