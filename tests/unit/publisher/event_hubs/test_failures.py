"""Failures of a producer: what becomes of a set that is not known to be stored."""

import pytest

from tidemark.publisher.errors import OutcomeUnknownError, PublishUnavailableError
from tidemark.publisher.event_hubs.core.failures import of_loss, of_other_events, of_rejection
from tidemark.publisher.event_hubs.core.producer_state import PartitionPublisher
from tidemark.publisher.event_hubs.core.steps import Failed, FailureKind, Open, Pause, Transfer
from tidemark.publisher.model import Claims, PartitionPublishingOptions, PendingSet, RetryPolicy


def test_bookmarks_are_named_where_there_are_some():
    with_them = of_other_events(PendingSet(7, 2, "d", "line 9"), "line 7")
    without = of_other_events(PendingSet(1, 1, "d"), None)

    assert (
        "2 events from 7 on that may or may not be stored, after bookmark 'line 7' up to 'line 9'; "
        in with_them
    )
    assert "1 event from 1 on that may or may not be stored; another producer that is still open" in without
    assert "None" not in without


@pytest.mark.parametrize("condition", ["amqp:unauthorized-access", "com.microsoft:entity-disabled"])
def test_a_link_that_is_lost_before_the_answer_leaves_the_outcome_unknown(condition):
    """The service may have stored the events before it ended the link, whatever the reason."""
    assert of_rejection(condition) is FailureKind.REFUSED
    assert of_loss(condition) is FailureKind.UNKNOWN


class Events:
    sources, bookmark = (object(), object()), None

    def digest(self):
        return "d"

    def kept(self):
        return None


def failed(kind, **fields):
    return Failed(kind, "a fault", 10.0, **fields)


def test_without_numbers_one_unknown_attempt_leaves_the_outcome_unknown():
    producer = PartitionPublisher(
        "0", PartitionPublishingOptions(), RetryPolicy(max_attempts=2), idempotent=False
    )
    steps = producer.publish(Events())

    assert isinstance(next(steps), Open)
    assert isinstance(steps.send(None), Transfer)
    assert isinstance(steps.send(failed(FailureKind.UNKNOWN)), Pause)
    assert isinstance(steps.send(None), Transfer)
    with pytest.raises(OutcomeUnknownError, match="2 events were stored"):
        steps.send(failed(FailureKind.NOT_STORED))


@pytest.mark.parametrize(("deadline", "pauses"), [(11.0, False), (11.5, True)])
def test_no_attempt_begins_at_the_deadline(deadline, pauses):
    producer = PartitionPublisher("0", PartitionPublishingOptions(), RetryPolicy(delay=1.0))
    steps = producer.prepare(deadline)
    next(steps)

    if pauses:
        assert steps.send(failed(FailureKind.NOT_STORED)) == Pause(1.0)
    else:
        with pytest.raises(PublishUnavailableError):
            steps.send(failed(FailureKind.NOT_STORED))


def test_a_new_identity_does_not_claim_the_first_number_of_the_options():
    options = PartitionPublishingOptions(starting_sequence_number=100)
    producer = PartitionPublisher("0", options, RetryPolicy(max_attempts=1))
    steps = producer.publish(Events())
    assert next(steps) == Open(Claims(None, None, 100))
    steps.send(Claims(1, 0, 100))
    with pytest.raises(OutcomeUnknownError):
        steps.send(failed(FailureKind.UNKNOWN))

    producer.abandon_pending()

    assert next(producer.publish(Events())) == Open(Claims(None, None, None))
