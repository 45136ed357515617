"""What the SDK's errors say about a transfer, and that both fronts are one."""

import logging

import pytest
from azure.servicebus._pyamqp.error import AMQPLinkError, ErrorCondition, MessageException, TokenAuthFailure
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusServerBusyError,
)

from tests.support.publisher import methods
from tidemark.publisher.errors import PublishSettingsError
from tidemark.publisher.service_bus.claim_check import ClaimCheck, SyncClaimCheck
from tidemark.publisher.service_bus.core.packing import Limits
from tidemark.publisher.service_bus.core.send_steps import Busy, Rejected, TooLarge, Unknown
from tidemark.publisher.service_bus.core.sending import SendPolicy
from tidemark.publisher.service_bus.sdk.link import answer_to, not_sent
from tidemark.publisher.service_bus.sdk.send_call import LearnedLimits, check_iterable
from tidemark.publisher.service_bus.sender import BigBatchSender
from tidemark.publisher.service_bus.sync_sender import SyncBigBatchSender


def _mapped(raw):
    """The SDK's error for one of its transport's."""
    return PyamqpTransport.create_servicebus_exception(logging.getLogger("test"), raw)


@pytest.mark.parametrize(
    ("condition", "description", "answer", "details"),
    [
        (
            b"amqp:link:message-size-exceeded",
            "The received message (delivery-id:1, size:300 bytes) exceeds the limit (200 bytes) currently allowed",
            TooLarge,
            {"counted": 300, "allowed": 200},
        ),
        (b"amqp:link:message-size-exceeded", "too large", TooLarge, {"counted": None, "allowed": None}),
        (b"com.microsoft:server-busy", "Please wait 4 seconds and try again", Busy, {"retry_after": 4.0}),
        (b"com.microsoft:server-busy", "busy", Busy, {"retry_after": None}),
        (b"amqp:internal-error", "stumbled", Busy, {}),
        (b"com.microsoft:timeout", "the service gave up waiting for itself", Unknown, {}),
        (b"amqp:not-allowed", "distinct sessions", Rejected, {}),
        (b"amqp:resource-limit-exceeded", "the queue is full", Rejected, {}),
        (b"com.microsoft:entity-disabled", "disabled", Rejected, {}),
        (b"amqp:unauthorized-access", "no Send claim", Rejected, {}),
    ],
)
def test_a_rejected_delivery_was_certainly_not_accepted_unless_the_service_timed_out(
    condition, description, answer, details
):
    found = answer_to(_mapped(MessageException(condition=condition, description=description)))

    assert type(found) is answer
    assert description.partition("(")[0] in found.story
    for name, value in details.items():
        assert getattr(found, name) == value


@pytest.mark.parametrize(
    "error",
    [
        _mapped(MessageException(condition=ErrorCondition.UnknownError)),
        _mapped(MessageException(condition=ErrorCondition.ClientError, description="connection not running")),
        _mapped(AMQPLinkError(condition=ErrorCondition.LinkDetachForced)),
        ServiceBusConnectionError(),
        OperationTimeoutError(),
    ],
    ids=["detached", "not running", "link error", "connection", "timeout"],
)
def test_what_breaks_after_the_transfer_leaves_the_outcome_unknown(error):
    assert type(answer_to(error)) is Unknown


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (ServiceBusConnectionError(), Busy),
        (OperationTimeoutError(), Busy),
        (ServiceBusServerBusyError(), Busy),
        (ServiceBusAuthenticationError(), Rejected),
        (MessagingEntityNotFoundError(), Rejected),
    ],
)
def test_what_breaks_before_the_transfer_is_tried_again_or_final_but_never_unknown(error, answer):
    assert type(not_sent(error)) is answer


def test_a_refused_token_is_told_in_one_sentence_with_what_to_check():
    error = ServiceBusAuthenticationError(
        error=TokenAuthFailure(401, b"InvalidSignature: no"), condition=ErrorCondition.ClientError
    )

    assert not_sent(error).story == (
        "CBS Token authentication failed. Status code: 401 Description: InvalidSignature: no (amqp:client-error); "
        "check the connection's key or identity: sending needs the right Send (Azure Service Bus Data Sender)"
    )


def test_limits_are_learned_per_kind_of_transfer_and_forgotten_with_a_new_announcement():
    learned = LearnedLimits(None)
    announced = Limits(1000, 2000)
    assert learned.begin(announced, scheduled=False) == announced
    assert learned.begin(announced, scheduled=True) == Limits(1000, 0)
    learned.remember(Limits(900, 2000, header=3), scheduled=False)
    assert learned.begin(announced, scheduled=False) == Limits(900, 2000, header=3)
    assert learned.begin(announced, scheduled=True) == Limits(1000, 0)
    assert learned.begin(Limits(5000, 5000), scheduled=False) == Limits(5000, 5000)


def test_a_cap_makes_batches_smaller_and_messages_not():
    assert LearnedLimits(500).begin(Limits(1000, 2000), scheduled=False) == Limits(500, 2000)


def test_a_single_message_is_no_iterable_of_messages():
    for single in ("text", b"bytes", {"a": 1}, 7):
        with pytest.raises(PublishSettingsError, match="accepted: an iterable of messages"):
            check_iterable(single)
    for several in ([], (b"a",), iter(()), {b"a"}):
        check_iterable(several)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"look_ahead": -1}, "look_ahead is -1"),
        ({"attempts": 0}, "attempts is 0, accepted: 1 or more"),
        ({"retry_delay": -1.0}, "retry_delay is -1.0"),
    ],
)
def test_a_policy_is_checked(options, words):
    with pytest.raises(ValueError, match=words):
        SendPolicy(**options)


def test_the_blocking_front_has_the_same_methods():
    assert methods(SyncBigBatchSender) == methods(BigBatchSender)
    assert methods(SyncClaimCheck) == methods(ClaimCheck)
