"""Queue messages are versioned, checked when decoded, and small enough for a queue."""

import json

import pytest

from scaling.model import Capacity, MetricFailure, MetricSample, MetricsReport, Reason, ScaleAction
from scaling.service.messages import (
    MAX_BYTES,
    MessageError,
    decode,
    encode,
)

REPORT = MetricsReport(
    "plan-orders",
    1_800_000_000.25,
    (MetricSample("backlog", 1_800_000_000.0, 812.0), MetricSample("done", 1_800_000_000.0, 9.0, 1)),
    (MetricFailure("dead", 1_800_000_000.0, "timed out"),),
    Capacity(3, 1_800_000_000.0, ceiling=10),
)
ACTION = ScaleAction("plan-orders@20270115T080000.000Z", "plan-orders", 3, 4, 1.0, 601.0, Reason.SCALE_OUT)


def test_a_report_and_an_action_come_back_as_they_were():
    assert decode(MetricsReport, encode(REPORT)) == REPORT
    assert decode(ScaleAction, encode(ACTION).encode()) == ACTION


def test_the_envelope_names_version_and_kind():
    message = json.loads(encode(ACTION))

    assert (message["v"], message["kind"], message["body"]["to_capacity"]) == (1, "action", 4)


def test_fields_of_a_newer_writer_are_ignored():
    message = json.loads(encode(ACTION))
    message["body"]["colour"] = "red"

    assert decode(ScaleAction, json.dumps(message)) == ACTION


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a report message"),
        ("hello", "not a report message"),
        (b"\xff\xfe", "not a report message"),
        ("\ud800", "not a report message"),
        ("[" * 100_000, "not a report message"),
        ("[]", "not a report message"),
        ('{"v": 1, "kind": "report"}', "body"),
        ('{"v": 2, "kind": "report", "body": {}}', "version 2; this release accepts 1"),
        ('{"v": 1, "kind": "action", "body": {}}', "kind 'action' where 'report' is accepted"),
        ('{"v": 1, "kind": "report", "body": {"target": 5, "at": 0}}', "Expected `str`"),
        ('{"v": 1, "kind": "report", "body": {"target": "t", "at": null}}', "Expected `float`"),
        ('{"v": 1, "kind": "report", "body": {"target": "t", "at": 1e999}}', "out of range"),
    ],
)
def test_anything_else_is_refused_in_words(text, words):
    with pytest.raises(MessageError, match=words.replace("`", ".")) as caught:
        decode(MetricsReport, text)

    assert len(str(caught.value)) < 600


def test_a_message_too_large_for_a_queue_is_refused_when_it_is_written():
    samples = tuple(MetricSample("m" * 100, 0.0, float(i)) for i in range(500))

    with pytest.raises(MessageError, match=f"at most {MAX_BYTES}"):
        encode(MetricsReport("t", 0.0, samples))
