"""What rules of subscriptions take and change, as the documents of Service Bus have it."""

import pytest

from devstack.amqp.wire.decoder import decode
from devstack.amqp.wire.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    encode_section,
    sections,
)
from devstack.amqp.wire.values import Symbol
from devstack.service_bus.broker import Broker
from devstack.service_bus.messages.messages import Sent
from devstack.service_bus.queue import Counts
from devstack.service_bus.rules.rules import (
    FALSE_FILTER,
    TRUE_FILTER,
    CorrelationFilter,
    MessageView,
    Rule,
    SqlAction,
    SqlFilter,
    copies,
)
from devstack.service_bus.rules.sql import SqlError
from devstack.service_bus.rules.sql_values import EvaluationError
from devstack.service_bus.settings import QueueSettings

PROPERTIES_OF = ["id-1", None, "to-1", "order", "reply", "corr", "text/plain", None, None, None, "session"]


def sent(**properties):
    section = encode_section(APPLICATION_PROPERTIES, properties) if properties else b""
    annotations = encode_section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-partition-key"): "p1"})
    return Sent.parse(
        annotations + encode_section(PROPERTIES, PROPERTIES_OF) + section + encode_section(DATA, b"body")
    )


def parts(message):
    return {code: decode(message.bare, start)[0] for code, _, start, _ in sections(message.bare)}


MESSAGE = {"Color": "red", "quantity": 3, "price": 2.5, "urgent": True, "a b": 1, "nothing": None}


@pytest.mark.parametrize(
    "text",
    [
        "color = 'red'",
        "COLOR = 'red' AND user.Quantity > 2",
        "quantity BETWEEN",
        "sys.Label = 'order' OR sys.subject = 'x'",
        "sys.MessageId = 'id-1' AND sys.To = 'to-1' AND sys.ReplyTo = 'reply'",
        "sys.CorrelationId = 'corr' AND sys.ContentType LIKE 'text/%' AND sys.SessionId = 'session'",
        "sys.ReplyToSessionId IS NULL AND sys.PartitionKey = 'p1' AND sys.SequenceNumber IS NULL",
        "[a b] = 1",
        '"a b" = 1',
        "EXISTS (color) AND NOT EXISTS(missing) AND EXISTS(user.urgent)",
        "missing IS NULL AND color IS NOT NULL",
        "quantity IN (1, 2, 3) AND color NOT IN ('blue')",
        "color LIKE 'r_d' AND color NOT LIKE '%x%'",
        "'10%' LIKE '10!%' ESCAPE '!'",
        "quantity * 2 + 1 = 7 AND -quantity < 0 AND quantity / 2 = 1 AND quantity % 2 = 1",
        "price * 2 = 5 AND 1e1 = 10 AND .5 < price",
        "urgent = TRUE",
        "urgent",
        "quantity = @limit AND property('color') = @Name AND p('sys.Label') = 'order'",
        "color + '!' = 'red!'",
        "newid() <> newid()",
        "'it''s' = 'it''s'",
        "quantity <> 'red'",
    ],
)
def test_a_condition_that_is_true(text):
    if "BETWEEN" in text:
        with pytest.raises(SqlError, match="'BETWEEN' at 9, accepted: an operator or the end"):
            SqlFilter(text)
        return
    assert SqlFilter(text, {"@limit": 3, "name": "red"}).matches(MessageView(sent(**MESSAGE)))


@pytest.mark.parametrize(
    "text",
    [
        "color = 'RED'",
        "missing = 1",
        "NOT (missing = 1)",  # unknown stays unknown
        "missing <> 1",
        "missing = 1 AND color = 'red'",
        "quantity = '3'",
        "1=0",
    ],
)
def test_a_condition_that_is_false_or_unknown_takes_nothing(text):
    assert not SqlFilter(text).matches(MessageView(sent(**MESSAGE)))


@pytest.mark.parametrize(
    "text",
    [
        "color > 1",
        "sys.Colour = 1",
        "quantity / 0 = 1",
        "color - 1 = 0",
        "quantity LIKE 'x'",
        "quantity",
        "urgent > FALSE",
    ],
)
def test_a_condition_that_cannot_be_evaluated_says_so(text):
    with pytest.raises(EvaluationError):
        SqlFilter(text).matches(MessageView(sent(**MESSAGE)))


@pytest.mark.parametrize(
    ("text", "story"),
    [
        ("", "the end at 0"),
        ("color =", "the end at 7"),
        ("color = 'red", "is no part"),
        ("x.color = 1", "the scope 'x', accepted: sys, user"),
        ("color = @p", "the parameter @p has no value"),
        ("a = 1 b", "'b' at 6"),
        ("a NOT = 1", "accepted: IN or LIKE"),
        ("f(1) = 1", r"accepted: newid\(\), property\(name\) or p\(name\)"),
        ("a = " + "1" * 1030, "1034 characters, accepted: up to 1024"),
        ("a = 99999999999999999999", "no integer of 64 bits"),
    ],
)
def test_a_text_that_is_no_condition_is_refused_with_the_place(text, story):
    with pytest.raises(SqlError, match=story):
        SqlFilter(text)


@pytest.mark.parametrize(
    ("fields", "properties", "matches"),
    [
        ({"Label": "order"}, {}, True),
        ({"Label": "order", "SessionId": "session"}, {"color": "red", "Quantity": 3}, True),
        ({"Label": "Order"}, {}, False),
        ({"Label": "order"}, {"color": "blue"}, False),
        ({}, {"missing": 1}, False),
        ({}, {"quantity": "3"}, False),
    ],
)
def test_a_correlation_filter_wants_everything_equal(fields, properties, matches):
    assert CorrelationFilter(fields, properties).matches(MessageView(sent(**MESSAGE))) is matches


def test_an_action_changes_the_copy_and_not_the_message():
    message = sent(color="red", old=1)
    action = SqlAction(
        "SET sys.Label = 'changed'; SET Color = color + '!'; SET new = 1 + 1; REMOVE old; REMOVE none;"
    )

    ((copy,), failures) = copies([Rule("r", TRUE_FILTER, action)], message)

    assert failures == []
    assert parts(copy)[APPLICATION_PROPERTIES] == {"color": "red!", "new": 2}
    assert parts(copy)[PROPERTIES][3] == "changed"
    assert parts(copy)[DATA] == b"body"
    assert parts(message)[APPLICATION_PROPERTIES] == {"color": "red", "old": 1}


@pytest.mark.parametrize("text", ["", "SET", "SET a", "SET a = 1 REMOVE b", "DROP a", "SET a = 1;" * 33])
def test_a_text_that_is_no_action_is_refused(text):
    with pytest.raises(SqlError):
        SqlAction(text)


def test_rules_without_action_give_one_copy_together_and_each_with_one_gives_its_own():
    marked = SqlAction("SET by = 'rule'")
    rules = [
        Rule("a", SqlFilter("color = 'red'")),
        Rule("b", TRUE_FILTER),
        Rule("c", FALSE_FILTER, marked),
        Rule("d", TRUE_FILTER, marked),
        Rule("e", CorrelationFilter({"Label": "order"}), marked),
    ]

    sent_messages, failures = copies(rules, sent(color="red"))

    assert failures == []
    assert [parts(each)[APPLICATION_PROPERTIES].get("by") for each in sent_messages] == [None, "rule", "rule"]


def test_a_message_whose_properties_are_none_is_a_failure_of_the_rules_and_no_crash():
    message = Sent.parse(
        encode_section(PROPERTIES, PROPERTIES_OF) + encode_section(APPLICATION_PROPERTIES, "text")
    )

    sent_messages, (failure,) = copies([Rule("r", SqlFilter("a = 1"))], message)

    assert (sent_messages, "cannot be read" in failure) == ([], True)


# -- in the broker --------------------------------------------------------------------------------------------

BROKEN = Rule("broken", SqlFilter("color > 1"))


@pytest.fixture
def broker():
    found = Broker(lambda: 1_700_000_000.0)
    found.create_topic("orders")
    return found


def test_a_subscription_takes_everything_until_its_default_rule_goes(broker):
    queue = broker.create_subscription("orders", "all")
    broker.topic("orders").send(sent())
    broker.remove_rule("orders/subscriptions/all", "$default")
    broker.topic("orders").send(sent())

    assert queue.counts() == Counts(active=1)


@pytest.mark.parametrize("kept", [True, False])
def test_a_message_whose_rule_fails_becomes_a_dead_letter_where_that_is_wished(broker, kept):
    queue = broker.create_subscription("orders", "s", QueueSettings(dead_letter_on_filter_errors=kept))
    waiting = []
    queue.available = lambda: waiting.append(queue.receive())
    broker.remove_rule("orders/Subscriptions/s", "$Default")
    broker.put_rule("orders/Subscriptions/s", BROKEN)

    broker.topic("orders").send(sent(color="red"))
    broker.topic("orders").send(sent(color=2))

    assert queue.counts() == Counts(active=1, dead_letter=int(kept))
    assert [parts(each.sent)[APPLICATION_PROPERTIES] for each in waiting] == [{"color": 2}]
    if kept:
        letter = queue.dead_letters.receive()
        assert letter.dead_letter.reason == "FilterEvaluationException"
        assert "rule 'broken'" in letter.dead_letter.description
