"""Rules of subscriptions over HTTP and AMQP, by the SDK, and what then arrives."""

from datetime import UTC, datetime
from xml.etree import ElementTree as ET

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from devstack.amqp.wire.messages import Request
from devstack.amqp.wire.values import Described
from devstack.service_bus.management import respond

pytestmark = pytest.mark.wire


@pytest.fixture
def admin(threaded):
    threaded.call(threaded.server.broker.topics.clear)
    server = threaded.server
    with ServiceBusAdministrationClient.from_connection_string(
        server.connection_string, connection_verify=str(server.ca_path), retry_total=0
    ) as client:
        client.create_topic("orders")
        client.create_subscription("orders", "sub")
        yield client


def rules(admin):
    return {rule.name: rule for rule in admin.list_rules("orders", "sub")}


def test_a_new_subscription_has_the_rule_that_takes_everything(admin):
    assert {name: type(rule.filter) for name, rule in rules(admin).items()} == {"$Default": TrueRuleFilter}
    assert admin.get_subscription("orders", "sub").dead_lettering_on_filter_evaluation_exceptions is True


@pytest.mark.parametrize(
    ("given", "action"),
    [
        (TrueRuleFilter(), None),
        (FalseRuleFilter(), SqlRuleAction("REMOVE a")),
        (SqlRuleFilter("color = 'red' AND n < 3"), SqlRuleAction("SET n = n + 1")),
        (
            SqlRuleFilter(
                "color = @c AND n > @n AND f = @f AND b = @b",
                parameters={"@c": "<é>", "@n": 5, "@f": 1.5, "@b": True},
            ),
            None,
        ),
        (
            CorrelationRuleFilter(
                correlation_id="1",
                label="<order>",
                properties={"n": 1, "text": "x", "big": 2**40, "b": False},
            ),
            None,
        ),
    ],
)
def test_a_rule_reads_back_as_it_was_made(admin, given, action):
    created = admin.create_rule("orders", "sub", "mine", filter=given, action=action)
    read = admin.get_rule("orders", "SUB", "Mine")

    for rule in (created, read, rules(admin)["mine"]):
        assert type(rule.filter) is type(given)
        for name in ("parameters", "correlation_id", "label", "properties"):
            if getattr(given, name, None):
                assert getattr(rule.filter, name) == getattr(given, name)
        if type(given) is SqlRuleFilter:
            assert rule.filter.sql_expression == given.sql_expression
        assert getattr(rule.action, "sql_expression", None) == getattr(action, "sql_expression", None)
    assert (datetime.now(UTC) - read.created_at_utc.replace(tzinfo=UTC)).total_seconds() < 60


def test_a_rule_is_changed_and_deleted_and_its_name_is_its_own(admin):
    admin.create_rule("orders", "sub", "mine", filter=SqlRuleFilter("a = 1"))
    with pytest.raises(ResourceExistsError):
        admin.create_rule("orders", "sub", "MINE", filter=SqlRuleFilter("a = 1"))
    rule = admin.get_rule("orders", "sub", "mine")
    rule.filter = SqlRuleFilter("a = 2")
    admin.update_rule("orders", "sub", rule)
    assert admin.get_rule("orders", "sub", "mine").filter.sql_expression == "a = 2"

    admin.delete_rule("orders", "sub", "mine")
    with pytest.raises(ResourceNotFoundError):
        admin.get_rule("orders", "sub", "mine")
    with pytest.raises(ResourceNotFoundError):
        admin.delete_rule("orders", "sub", "mine")


def test_a_rule_that_makes_no_sense_is_refused_with_the_place(admin):
    with pytest.raises(HttpResponseError, match="at 4, accepted") as caught:
        admin.create_rule("orders", "sub", "mine", filter=SqlRuleFilter("a = = 1"))
    assert caught.value.status_code == 400
    assert set(rules(admin)) == {"$Default"}


def test_paths_are_found_in_whatever_case_they_are_written(admin, threaded):
    """The generated client under the SDK's takes any path; clients of other languages write /Subscriptions/ and /Rules/."""
    entity = admin._impl.entity
    content = ET.fromstring(ENTRY)
    entity.put("Orders/Subscriptions/New", content)

    assert [name for name, each in threaded.server.broker.topic("orders").subscriptions.items()] == [
        "sub",
        "new",
    ]
    for path in (
        "ORDERS/SUBSCRIPTIONS/NEW",
        "orders/Subscriptions/New/Rules/$default",
        "orders/Subscriptions/New/Rules",
    ):
        assert entity.get(path) is not None
    entity.delete("orders/SUBSCRIPTIONS/new/RULES/$DEFAULT")
    assert list(admin.list_rules("orders", "new")) == []
    entity.delete("orders/Subscriptions/NEW")
    assert [subscription.name for subscription in admin.list_subscriptions("orders")] == ["sub"]


def test_a_subscription_may_be_made_with_a_rule_of_its_own_instead_of_the_default(admin):
    filtered = """<DefaultRuleDescription><Filter xmlns:i="http://www.w3.org/2001/XMLSchema-instance" i:type="SqlFilter">
        <SqlExpression>a = 1</SqlExpression></Filter><Name>first</Name></DefaultRuleDescription>"""
    admin._impl.entity.put(
        "orders/subscriptions/own", ET.fromstring(ENTRY.replace("<!-- rule -->", filtered))
    )

    (rule,) = admin.list_rules("orders", "own")
    assert (rule.name, rule.filter.sql_expression) == ("first", "a = 1")


ENTRY = """<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">
    <SubscriptionDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">
    <DeadLetteringOnFilterEvaluationExceptions>false</DeadLetteringOnFilterEvaluationExceptions><!-- rule -->
    </SubscriptionDescription></content></entry>"""


def test_messages_arrive_as_the_rules_say(admin, threaded):
    admin.delete_rule("orders", "sub", "$Default")
    admin.create_rule("orders", "sub", "red", filter=SqlRuleFilter("color = 'red'"))
    admin.create_rule(
        "orders",
        "sub",
        "labelled",
        filter=CorrelationRuleFilter(label="order"),
        action=SqlRuleAction("SET seen = 'labelled'"),
    )
    with ServiceBusClient.from_connection_string(threaded.server.connection_string, retry_total=0) as client:
        with client.get_topic_sender("orders", keep_alive=0) as sender:
            sender.send_messages(
                [
                    ServiceBusMessage("1", application_properties={"color": "red"}),
                    ServiceBusMessage("2", application_properties={"color": "blue"}),
                    ServiceBusMessage("3", subject="order"),
                    ServiceBusMessage("4", subject="order", application_properties={"color": "red"}),
                ]
            )
        with client.get_subscription_receiver("orders", "sub", keep_alive=0, max_wait_time=0.5) as receiver:
            found = []
            for message in receiver:
                receiver.complete_message(message)
                found.append((str(message), (message.application_properties or {}).get(b"seen")))

    assert found == [("1", None), ("3", b"labelled"), ("4", None), ("4", b"labelled")]


# -- rules over AMQP: the clients of .NET and JavaScript have them, that of Python has none --------------------


def ask(threaded, operation, body):
    request = Request("1", None, {"operation": f"com.microsoft:{operation}"}, body)
    properties, value = threaded.call(
        lambda: respond(threaded.server.broker, "orders/Subscriptions/sub", request)
    )
    return int(properties["statusCode"]), value


def test_rules_are_made_listed_and_removed_over_amqp(admin, threaded):
    sql = {"sql-filter": {"expression": "color = 'red'"}, "sql-rule-action": {"expression": "SET a = 1"}}
    correlation = {"correlation-filter": {"label": "order", "to": None, "properties": {"n": 1}}}

    assert ask(threaded, "add-rule", {"rule-name": "a", "rule-description": sql})[0] == 200
    assert ask(threaded, "add-rule", {"rule-name": "b", "rule-description": correlation})[0] == 200
    assert ask(threaded, "add-rule", {"rule-name": "A", "rule-description": sql})[0] == 409
    assert (
        ask(
            threaded, "add-rule", {"rule-name": "c", "rule-description": {"sql-filter": {"expression": "="}}}
        )[0]
        == 400
    )
    assert ask(threaded, "add-rule", {"rule-name": "c", "rule-description": 5})[0] == 400
    assert ask(threaded, "remove-rule", {"rule-name": "$Default"})[0] == 200
    assert ask(threaded, "remove-rule", {"rule-name": "$Default"})[0] == 404

    status, value = ask(threaded, "enumerate-rules", {"skip": 0, "top": 100})
    a, b = (entry["rule-description"] for entry in value["rules"])
    assert status == 200
    assert (a.descriptor, a.value[2]) == (0x13700000004, "a")
    assert a.value[0] == Described(0x1370000006, ["color = 'red'", 20])
    assert a.value[1] == Described(0x13700000006, ["SET a = 1", 20])
    assert (b.value[0].descriptor, b.value[0].value[4], b.value[0].value[8]) == (
        0x1370000009,
        "order",
        {"n": 1},
    )
    assert b.value[1].descriptor == 0x13700000005
    assert ask(threaded, "enumerate-rules", {"skip": 2, "top": 100}) == (204, None)
    assert set(rules(admin)) == {"a", "b"}


def test_a_rule_added_over_the_wire_is_there(admin, threaded):
    """The request that clients with a rule manager send, through the management link of a receiver."""
    answers = []

    def answered(status, *_, **__):
        answers.append(status)

    body = {"rule-name": "wire", "rule-description": {"sql-filter": {"expression": "n = 1"}}}
    with (
        ServiceBusClient.from_connection_string(threaded.server.connection_string, retry_total=0) as client,
        client.get_subscription_receiver("orders", "sub", keep_alive=0) as receiver,
    ):
        receiver._mgmt_request_response_with_retry(b"com.microsoft:add-rule", body, answered)
        receiver._mgmt_request_response_with_retry(
            b"com.microsoft:remove-rule", {"rule-name": "$Default"}, answered
        )

    assert answers == [200, 200]
    assert {name: rule.filter.sql_expression for name, rule in rules(admin).items()} == {"wire": "n = 1"}
