"""From a message of the SDK to an event: what a sender put into it never ends the receiving."""

from types import SimpleNamespace

import pytest
from azure.eventhub.amqp import AmqpMessageBodyType
from hypothesis import example, given

from consumer.receiving.events import to_event
from tests.support.failures import exceptions

ANNOTATIONS = {b"x-opt-sequence-number": 7, b"x-opt-offset": b"o7", b"x-opt-enqueued-time": 1500}


class Body:
    def __init__(self, failure):
        self._failure = failure

    def __iter__(self):
        raise self._failure


@given(exceptions())
@example(MemoryError("strange"))
def test_a_message_that_cannot_be_read_is_an_event_without_a_body_that_says_why(failure):
    message = SimpleNamespace(
        annotations=ANNOTATIONS,
        body_type=AmqpMessageBodyType.DATA,
        body=Body(failure),
        properties=None,
        application_properties=None,
    )

    if isinstance(failure, MemoryError):  # of the machine: the event comes again
        with pytest.raises(MemoryError):
            to_event("0", SimpleNamespace(raw_amqp_message=message))
        return
    event = to_event("0", SimpleNamespace(raw_amqp_message=message))

    assert (event.sequence_number, event.offset, event.enqueued_at, event.body) == (7, "o7", 1.5, b"")
    assert type(failure).__name__ in event.unreadable
