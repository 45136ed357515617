"""Private names of the SDKs: used where they are known, done without where they are not, and dropped when they fail."""

import ast
import sys
from pathlib import Path

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.support.publisher import FakeLinks, FakeService, events, read
from tidemark.publisher import sdk_insides
from tidemark.publisher.errors import MessageTooLargeError, PublishSettingsError, UnsupportedPublishingError
from tidemark.publisher.event_hubs.core.steps import FailureKind
from tidemark.publisher.event_hubs.ports.links import InsidesError, LinkError
from tidemark.publisher.event_hubs.producer import IdempotentProducer
from tidemark.publisher.event_hubs.sdk import link_hooks
from tidemark.publisher.event_hubs.sdk import links as sdk_links
from tidemark.publisher.event_hubs.sdk.links import FallbackLinks, PublicLinks, links_of
from tidemark.publisher.model import Claims
from tidemark.publisher.sdk_insides import SETTING, reason_against_insides, wants_insides
from tidemark.publisher.service_bus.core.claims import ClaimSettings
from tidemark.publisher.service_bus.core.errors import OversizedMessageError, UnsendableMessageError
from tidemark.publisher.service_bus.core.packing import Limits
from tidemark.publisher.service_bus.core.send_report import PlainMessage
from tidemark.publisher.service_bus.sdk import message_sizes
from tidemark.publisher.service_bus.sdk.public_sdk import PublicEncoder
from tidemark.publisher.service_bus.sdk.sdk_way import Encoder, SdkWay

CONNECTION = (
    "Endpoint=sb://localhost:1;SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
)
ROOT = Path(__file__).resolve().parents[3]
PRIVATE = {
    "azure.eventhub._": {
        "tidemark/publisher/event_hubs/sdk/event_encoding.py",
        "tidemark/publisher/event_hubs/sdk/link_hooks.py",
        "tidemark/publisher/event_hubs/sdk/single_frames.py",
    },
    "azure.servicebus._": {
        "tidemark/publisher/service_bus/sdk/message_sizes.py",
        "tidemark/publisher/service_bus/sdk/link.py",
    },
}


def client():
    return EventHubProducerClient.from_connection_string(CONNECTION, eventhub_name="flights")


@pytest.mark.parametrize("prefix", PRIVATE)
def test_private_names_are_imported_in_few_modules_that_nothing_imports_at_once(prefix):
    importers, private = set(), PRIVATE[prefix]
    for path in (ROOT / "tidemark/publisher").rglob("*.py"):
        name = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(prefix):
                importers.add(name)
            if isinstance(node, ast.ImportFrom) and name not in private:
                module = f"{node.module}".replace(".", "/") + ".py"
                assert module not in private, f"{name} imports {module}"

    assert importers == private


@pytest.mark.parametrize(("wanted", "found"), [(True, "5.16.0"), (True, "6.0.0"), (False, "5.15.1")])
async def test_without_them_publishing_goes_on_by_public_names_and_idempotence_is_refused(
    monkeypatch, wanted, found
):
    monkeypatch.setattr(sdk_insides, "version", lambda _: found)
    monkeypatch.setitem(
        sys.modules, "tidemark.publisher.event_hubs.sdk.link_hooks", None
    )  # its names are not there any more

    assert isinstance(links_of(client(), "host", idempotent=False, sdk_insides=wanted), PublicLinks)
    words = rf"azure-eventhub {found} is installed" if wanted else rf"{SETTING}=off"
    with pytest.raises(UnsupportedPublishingError, match=words):
        links_of(client(), "host", idempotent=True, sdk_insides=wanted)


async def test_a_known_version_whose_names_have_moved_is_an_unknown_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "tidemark.publisher.event_hubs.sdk.link_hooks", None)

    assert isinstance(links_of(client(), "host", idempotent=False, sdk_insides=True), PublicLinks)
    with pytest.raises(UnsupportedPublishingError, match="have changed: ModuleNotFoundError"):
        IdempotentProducer.from_connection_string(CONNECTION, "flights")


async def test_the_pinned_version_is_known():
    assert reason_against_insides("azure-eventhub", sdk_links.SDK, wanted=True) is None
    assert isinstance(links_of(client(), "host", idempotent=True, sdk_insides=True), link_hooks.SdkLinks)
    assert isinstance(links_of(client(), "host", idempotent=False, sdk_insides=True), FallbackLinks)


PUBLIC = PublicLinks(type("Client", (), {"eventhub_name": "h"})(), "host")


class Broken(FakeLinks):
    """Private names that fail at one place."""

    def __init__(self, service, where):
        super().__init__(service)
        self.where = where
        self.opened = 0

    def encode(self, event, *, stamped):
        if self.where == "encode":
            raise AttributeError("the SDK has no attribute '_encode'")
        return FakeLinks.encode(event, stamped=stamped)

    async def open(self, partition_id, claims, *, timeout):
        self.opened += 1
        if self.where == "open":
            raise InsidesError(FailureKind.NOT_STORED, "unexpected AttributeError", link_lost=True)
        link = await super().open(partition_id, claims, timeout=timeout)
        if self.where == "transfer":
            link.transfer = self.transfer
        return link

    async def transfer(self, encoded, stamp, *, timeout):
        raise InsidesError(FailureKind.UNKNOWN, "unexpected TypeError", link_lost=True)


class Public(FakeLinks):
    """As the public names: the SDK encodes the events."""

    encode = PUBLIC.encode

    async def open(self, partition_id, claims, *, timeout):
        link = await super().open(partition_id, claims, timeout=timeout)
        take = link.transfer

        async def transfer(encoded, stamp, *, timeout):
            again = [FakeLinks.encode(one.source, stamped=False)[0] for one in encoded]
            await take(again, stamp, timeout=timeout)

        link.transfer = transfer
        return link


@pytest.mark.parametrize("where", ["encode", "open", "transfer"])
async def test_after_their_first_failure_they_are_not_used_again_and_nothing_is_lost(where):
    service = FakeService()
    private = Broken(service, where)
    links = FallbackLinks(private, Public(service))
    producer = IdempotentProducer.over(links, enable_idempotent_partitions=False)
    for body in "abc":
        await producer.send_events(events(body), partition_id="0")
    await producer.close()

    assert [read(one)[0] for one in service.stored["0"]] == list("abc")
    assert private.opened <= 1
    assert isinstance(links.chosen, Public)


async def test_public_links_cannot_be_asked_for_idempotence():
    links = PublicLinks(client(), "host")
    with pytest.raises(LinkError, match="no idempotent publishing"):
        await links.open("0", Claims(), timeout=1.0)
    with pytest.raises(UnsupportedPublishingError):
        links.encode(EventData("x"), stamped=True)
    await links.close()


@pytest.mark.parametrize("body", ["", "x", "x" * 300, "x" * 3_000_000])
def test_the_public_size_of_an_event_is_that_of_the_codec(body):
    try:
        _, size = PUBLIC.encode(EventData(body), stamped=False)
    except MessageTooLargeError:
        assert len(body) > 1024 * 1024
        return

    assert size == FakeLinks.encode(EventData(body), stamped=False)[1]


def test_the_setting_is_on_or_off():
    assert [wants_insides(found) for found in ({}, {SETTING: "on"}, {SETTING: " OFF "})] == [
        True,
        True,
        False,
    ]
    with pytest.raises(PublishSettingsError, match=f"{SETTING} is 'no', accepted: on, off"):
        wants_insides({SETTING: "no"})


@pytest.mark.parametrize(("wanted", "found"), [(True, "7.16.0"), (False, "7.15.0")])
def test_without_them_a_sender_works_by_public_names(monkeypatch, wanted, found):
    monkeypatch.setattr(sdk_insides, "version", lambda _: found)
    monkeypatch.setitem(sys.modules, "tidemark.publisher.service_bus.sdk.message_sizes", None)

    assert not SdkWay(sdk_insides=wanted).is_private


def test_a_known_servicebus_whose_names_have_moved_is_an_unknown_one(monkeypatch):
    assert SdkWay(sdk_insides=True).is_private
    monkeypatch.setitem(sys.modules, "tidemark.publisher.service_bus.sdk.link", None)
    assert not SdkWay(sdk_insides=True).is_private


@pytest.mark.parametrize(
    "message",
    [
        b"body",
        "text",
        {"a": 1},
        PlainMessage(b"x" * 300, "id", "session"),
        ServiceBusMessage("x", application_properties={"a": 1}, subject="s", partition_key="p"),
        AmqpAnnotatedMessage(value_body={"a": 1}),
    ],
)
def test_a_message_by_public_names_is_the_one_that_is_sent_by_private_ones(message):
    limits = Limits(batch=10_000, message=10_000)
    options = (
        {"id_prefix": "p", "session_id": "s"}
        if not isinstance(message, ServiceBusMessage)
        else {"id_prefix": "p"}
    )
    public, private = PublicEncoder(**options), message_sizes.Encoder(**options)
    outgoing, expected = public.measure(message, 7, limits), private.measure(message, 7, limits)

    for name in ("index", "message_id", "session_id", "partition_key", "message", "cost"):
        assert getattr(outgoing, name) == getattr(expected, name) or name == "cost"
    assert outgoing.cost >= expected.cost
    assert outgoing.envelope >= expected.envelope
    sent = message_sizes.encode_payload(
        bytearray(), message_sizes.PyamqpTransport.to_outgoing_amqp_message(public.wire(outgoing))
    )
    assert bytes(sent) == bytes(message_sizes.encode_payload(bytearray(), private.wire(expected)))


def test_what_is_no_message_or_too_large_is_refused_by_public_names_too():
    limits = Limits(batch=500, message=500)
    with pytest.raises(UnsendableMessageError, match="message 3: a object is no message"):
        PublicEncoder(id_prefix="p").measure(object(), 3, limits)
    with pytest.raises(OversizedMessageError, match="accepted: up to"):
        PublicEncoder(id_prefix="p").measure(b"x" * 600, 3, limits)
    claimed = PublicEncoder(id_prefix="p", claims=ClaimSettings()).measure(b"x" * 600, 3, limits)
    assert claimed.claim.body == b"x" * 600


def test_a_codec_that_has_changed_is_done_without_and_a_wrong_message_is_still_refused(monkeypatch):
    way = SdkWay(sdk_insides=True)
    encoder = Encoder(way, id_prefix="p")
    limits = Limits(batch=500, message=500)
    with pytest.raises(UnsendableMessageError):
        encoder.measure(object(), 0, limits)
    assert way.is_private

    def changed(*_):
        raise AttributeError("the SDK has no attribute '_data_body'")

    monkeypatch.setattr(message_sizes.Encoder, "_encode", changed)
    assert encoder.measure(b"x", 0, limits).message_id == "p-0000000000"
    assert not way.is_private
