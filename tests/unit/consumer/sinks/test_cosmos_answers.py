import pytest

from consumer.model import Outcome
from consumer.sinks.cosmos.answers import (
    Answer,
    after_conflict,
    result_of,
    result_of_request,
    unclear_refusal,
)

WRITTEN, RETRY, REJECT = Outcome.WRITTEN, Outcome.RETRY, Outcome.REJECT


def operation(status, sub_status=0, **more):
    return {"statusCode": status, "subStatusCode": sub_status, "requestCharge": 1.5, **more}


MEANINGS = {
    (WRITTEN, "", False): [(200, 0), (201, 0), (204, 0)],
    (REJECT, "bad_request", False): [(400, 0)],
    (RETRY, "container_recreated", True): [(400, 1024), (410, 1000)],
    (RETRY, "unauthorized", False): [(401, 0)],
    (RETRY, "forbidden", False): [(403, 0), (403, 3)],
    (REJECT, "partition_full", False): [(403, 1014)],
    (RETRY, "not_found", False): [(404, 0), (404, 1002)],
    (RETRY, "container_missing", True): [(404, 1003)],
    (RETRY, "timeout", False): [(408, 0)],
    (REJECT, "conflict", False): [(409, 0)],
    (RETRY, "range_moved", True): [(410, 1002), (410, 1007), (410, 1008), (410, 0)],
    (REJECT, "precondition", False): [(412, 0)],
    (REJECT, "too_large", False): [(413, 0)],
    (RETRY, "response_too_large", False): [(413, 3402)],
    (RETRY, "failed_dependency", False): [(424, 0)],
    (RETRY, "throttled", False): [(429, 3200)],
    (RETRY, "concurrent_write", False): [(449, 0)],
    (RETRY, "server_error", False): [(500, 0), (503, 20001)],
    (RETRY, "unexpected", False): [(418, 0), (304, 0), (0, 0)],
}


@pytest.mark.parametrize(
    ("status", "meaning"), [(status, meaning) for meaning, all_ in MEANINGS.items() for status in all_]
)
def test_what_each_status_of_an_operation_means(status, meaning):
    result = result_of(operation(*status))

    assert (result.outcome, result.reason, result.rerouted) == meaning
    assert (result.status, result.request_units) == (status[0], 1.5)


LISTED = [
    (400, 0),
    (400, 1001),
    (403, 0),
    (403, 3),
    (403, 1014),
    (404, 9999),
    (429, 9999),
    (449, 9999),
    (503, 9999),
]


@pytest.mark.parametrize("status", [(418, 0), (422, 7), (400, 9999), (403, 9999), (409, 9999), (413, 9999)])
def test_a_refusal_that_no_list_has_is_tried_again_until_evidence_decides(status):
    code = f"{status[0]}/{status[1]}"

    assert unclear_refusal(*status) == Answer(status=status[0], sub_status=status[1]).unclear == code
    assert result_of(operation(*status)).outcome is RETRY


@pytest.mark.parametrize("status", [*LISTED, (304, 0), (0, 0)])
def test_a_refusal_that_a_list_has_needs_no_evidence(status):
    assert unclear_refusal(*status) == Answer(status=status[0], sub_status=status[1]).unclear == ""


def test_a_throttled_operation_says_how_long_to_wait():
    result = result_of(operation(429, 3200, retryAfterMilliseconds=250))

    assert (result.throttled, result.retry_after) == (True, 0.25)
    assert result_of(operation(429)).retry_after is None


@pytest.mark.parametrize("status", [(424, 0), (413, 3402)])
def test_what_would_be_tried_at_once_waits_as_long_as_the_service_asks(status):
    assert result_of(operation(*status, retryAfterMilliseconds=250)).retry_after == 0.25


@pytest.mark.parametrize("status", [(424, 0), (413, 3402)])
def test_operations_that_suffered_for_others_are_tried_again_at_once(status):
    assert result_of(operation(*status)).retry_after == 0.0


def test_a_rejection_carries_the_words_of_the_service():
    assert (
        result_of(operation(400, message="ttl must be positive")).reason
        == "bad_request: ttl must be positive"
    )


CONFLICT = result_of(operation(409, message="Unique index constraint violation."))


@pytest.mark.parametrize(
    ("reading", "outcome", "reason"),
    [
        (operation(200), WRITTEN, "exists"),
        (operation(404), REJECT, "unique_key: conflict: Unique index constraint violation."),
        (operation(404, 1002), RETRY, "conflict, not explained: not_found"),
        (operation(404, 1003), RETRY, "conflict, not explained: container_missing"),
        (operation(410, 1002), RETRY, "conflict, not explained: range_moved"),
        (operation(429, 3200), RETRY, "conflict, not explained: throttled"),
        (operation(424), RETRY, "conflict, not explained: failed_dependency"),
        (operation(400), RETRY, "conflict, not explained: bad_request"),
        (operation(503), RETRY, "conflict, not explained: server_error"),
        (operation(299), WRITTEN, "exists"),
        ({}, RETRY, "conflict, not explained: unexpected"),
    ],
)
def test_what_a_conflict_of_a_create_means_is_told_by_reading_the_document(reading, outcome, reason):
    result = after_conflict(CONFLICT, reading)

    assert (result.outcome, result.reason) == (outcome, reason)
    assert result.request_units == (1.5 if outcome is RETRY and reading else 3.0 if reading else 0.0)


def test_an_answer_for_the_whole_request_means_the_same_for_each_record():
    answer = Answer(status=429, sub_status=3200, retry_after=1.5)

    assert result_of_request(answer) == result_of(
        operation(429, requestCharge=0.0, retryAfterMilliseconds=1500)
    )


def test_no_answer_is_tried_again_and_says_why():
    result = result_of_request(Answer(message="ServerDisconnectedError"))

    assert (result.outcome, result.status, result.reason) == (RETRY, 0, "ServerDisconnectedError")


@pytest.mark.parametrize(
    "status", [(400, 0), (400, 1001), (413, 0), (400, 1024), (413, 3402), (429, 0), (0, 0)]
)
def test_only_refusals_of_what_is_in_a_request_are_worth_halving_it(status):
    is_divisible = status in {(400, 0), (400, 1001), (413, 0)}

    assert Answer(status=status[0], sub_status=status[1]).divisible is is_divisible
