"""What a webhook gets, and how it makes sure who sent it: the example of docs/notifications.md, run."""

import json
import re
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest

from scaling.config.notify_table import Webhook
from scaling.notice import Notice, NoticeKind
from scaling.notices import events
from scaling.notices.payloads import Message, Sender, key_bytes, message_of, signed
from tests.support.servers.webhooks import KEY, OPS

PLAN = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg/providers/Microsoft.Web/serverfarms/plan-a"
SENDER = Sender("func-tidemark", {"orders": PLAN})
MOVED = Notice(
    id="scaled:orders@20270115T080000.000Z",
    kind=NoticeKind.SCALED,
    target="orders",
    at=1_800_000_000.0,
    text="orders went out, 1 -> 3: backlog 812 > 250",
    reason="scale_out",
    current=1,
    desired=3,
    reached=3,
    decision_id="orders@20270115T080000.000Z",
)
DOCS = Path(__file__).parents[4] / "docs" / "notifications.md"


def test_a_cloud_event():
    message = message_of(OPS, MOVED, SENDER)

    assert message.headers == {"Content-Type": "application/cloudevents+json; charset=utf-8"}
    assert json.loads(message.body) == {
        "specversion": "1.0",
        "id": "scaled:orders@20270115T080000.000Z",
        "source": "/tidemark/func-tidemark",
        "type": "tidemark.scaling.scaled",
        "subject": "orders",
        "time": "2027-01-15T08:00:00.000Z",
        "datacontenttype": "application/json",
        "data": {
            "target": "orders",
            "at": 1_800_000_000.0,
            "text": "orders went out, 1 -> 3: backlog 812 > 250",
            "reason": "scale_out",
            "current": 1,
            "desired": 3,
            "reached": 3,
            "decision_id": "orders@20270115T080000.000Z",
            "resource_id": PLAN,
        },
    }


def test_a_cloud_event_in_binary_mode_says_the_same_in_headers():
    odd = msgspec.structs.replace(MOVED, target='größe "1" 100%', id="scaled:a b")
    structured = json.loads(message_of(OPS, odd, SENDER).body)

    message = message_of(Webhook("w", "URL", format="cloudevents_binary"), odd, SENDER)

    assert message.headers.pop("Content-Type") == "application/json; charset=utf-8"
    assert message.headers["ce-subject"] == "gr%C3%B6%C3%9Fe%20%221%22%20100%25"
    assert message.headers["ce-type"] == "tidemark.scaling.scaled"  # what is plain stays readable
    assert message.headers["ce-time"] == "2027-01-15T08:00:00.000Z"
    told = {name.removeprefix("ce-"): unquote(value) for name, value in message.headers.items()}
    assert {**told, "datacontenttype": "application/json", "data": json.loads(message.body)} == structured


def test_the_form_of_azure_monitor_autoscale():
    message = message_of(Webhook("w", "URL", format="azure_autoscale"), MOVED, SENDER)
    found = json.loads(message.body)

    assert {key: found[key] for key in ("version", "status", "operation")} == {
        "version": "1.0",
        "status": "Activated",
        "operation": "Scale Out",
    }
    assert found["context"]["details"].startswith(
        "Autoscale successfully completed scale operation for resource 'plan-a' from capacity '1' to capacity '3'"
    )
    expected = {
        "subscriptionId": "11111111-2222-3333-4444-555555555555",
        "resourceGroupName": "rg",
        "resourceName": "plan-a",
        "resourceType": "microsoft.web/serverfarms",
        "resourceId": PLAN,
        "portalLink": f"https://portal.azure.com/#resource{PLAN}",
        "oldCapacity": "1",
        "newCapacity": "3",
    }
    assert {key: found["context"][key] for key in expected} == expected


def test_the_parts_of_a_resource_below_another_and_of_none():
    container = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg/providers/Microsoft.DocumentDB/databaseAccounts/a/sqlDatabases/d"
    form = Webhook("w", "URL", format="azure_autoscale")

    below = json.loads(message_of(form, MOVED, Sender("f", {"orders": container})).body)["context"]
    none = json.loads(message_of(form, MOVED, Sender("f")).body)["context"]

    assert below["resourceType"] == "microsoft.documentdb/databaseaccounts/sqldatabases"
    assert (none["resourceName"], none["resourceType"], none["portalLink"]) == ("orders", "", "")


def test_a_test_in_the_form_of_azure_monitor_says_that_it_is_one():
    form = Webhook("w", "URL", format="azure_autoscale")

    context = json.loads(message_of(form, events.test_notice(1_800_000_000.0), SENDER).body)["context"]

    assert context["details"] == "This is a test. this is a test of a webhook; nothing happened"


@pytest.fixture
def example():
    """The receiver of the docs."""
    code = re.search(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    found = {}
    exec(code[1], found)
    return found


def test_what_is_told_of_a_target_with_other_letters_is_accepted_as_servers_read_headers(example):
    """As Latin-1, whatever they were sent in: then another id would be signed than the one that is read."""
    message, now = message_of(OPS, MOVED, SENDER), 1_800_000_100.0
    headers = signed(message, "scaled:zähler@1", key_bytes(KEY), now)

    read = {name: value.encode().decode("latin-1") for name, value in headers.items()}

    assert example["is_ours"](read, message.body, KEY, now)


def test_the_receiver_of_the_docs_accepts_what_is_signed_and_nothing_else(example):
    message = message_of(OPS, MOVED, SENDER)
    now = 1_800_000_100.0
    headers = signed(message, MOVED.id, key_bytes(KEY), now)

    assert example["is_ours"](headers, message.body, KEY, now)
    assert not example["is_ours"](headers, message.body + b" ", KEY, now)
    assert not example["is_ours"](headers, message.body, "whsec_" + "A" * 32, now)
    assert not example["is_ours"]({**headers, "webhook-id": "scaled:other"}, message.body, KEY, now)
    assert not example["is_ours"](headers, message.body, KEY, now + 301.0)
    assert not example["is_ours"]({}, message.body, KEY, now)


def test_the_signature_is_that_of_standard_webhooks():
    """The vector of that specification."""
    message = Message(b'{"test": 2432232314}', {})
    headers = signed(message, "msg_p5jXN8AQM9LWM0D4loKWxJek", key_bytes(KEY), 1614265330.0)

    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_c2hvcnQ=", "not base64!", "whsec_" + "A" * 100])
def test_what_is_no_key_is_refused_and_not_shown(text):
    with pytest.raises(ValueError, match="is no key of a webhook") as caught:
        key_bytes(text)

    assert text.removeprefix("whsec_") not in str(caught.value) or not text.removeprefix("whsec_")
