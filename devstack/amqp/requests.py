"""Requests and responses over a pair of links, and the put-token request of $cbs."""

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from devstack.amqp.links import IncomingLink, OutgoingLink
from devstack.amqp.ports import ACCEPTED, Delivery, Settlement, Sink, Source, rejected
from devstack.amqp.wire.errors import NOT_FOUND, AmqpError
from devstack.amqp.wire.messages import Request, encode_response
from devstack.amqp.wire.values import Int

CBS_ADDRESS = "$cbs"

Reply = Callable[[dict[str, Any], Any], None]
"""Sends the response: its application properties and its value. Calling it never is no response."""

Response = tuple[dict[str, Any], Any]
"""Application properties and value."""


class RequestNode:
    """Answers the requests to one address of one connection.

    `answer` gets each request and the means to reply to it, at once or later. The response
    goes out on the link of the same session that receives from the same address; where there
    are several, on the one that the request's reply-to names.
    """

    def __init__(self, answer: Callable[[Request, Reply], None]) -> None:
        self._answer = answer
        self._response_links: list[_ResponseLink] = []

    def attach_sink(self, link: IncomingLink) -> Sink:
        return _RequestLink(self, link)

    def attach_source(self, link: OutgoingLink) -> Source:
        response_link = _ResponseLink(self, link)
        self._response_links.append(response_link)
        return response_link

    def forget(self, response_link: "_ResponseLink") -> None:
        self._response_links.remove(response_link)

    def handle(self, link: IncomingLink, delivery: Delivery) -> None:
        try:
            request = Request.parse(delivery.payload)
            response_link = self._response_link(link, request)
        except AmqpError as error:
            delivery.settle(rejected(error))
            return
        delivery.settle(ACCEPTED)

        def reply(application_properties: dict[str, Any], value: Any) -> None:
            response_link.send(encode_response(request.message_id, application_properties, value))

        self._answer(request, reply)

    def _response_link(self, link: IncomingLink, request: Request) -> "_ResponseLink":
        candidates = [other for other in self._response_links if other.link.session is link.session]
        for candidate in candidates:
            if request.reply_to is not None and candidate.link.reply_address == request.reply_to:
                return candidate
        if not candidates:
            raise AmqpError(NOT_FOUND, f"no link of the session receives from {link.address!r}")
        return candidates[0]


class _RequestLink:
    def __init__(self, node: RequestNode, link: IncomingLink) -> None:
        self._node = node
        self._link = link

    def on_message(self, delivery: Delivery) -> None:
        self._node.handle(self._link, delivery)

    def on_detached(self) -> None:
        """Nothing is kept per request link."""


class _ResponseLink:
    """Holds back responses until the peer gives credit for them."""

    def __init__(self, node: RequestNode, link: OutgoingLink) -> None:
        self._node = node
        self.link = link
        self._waiting: list[bytes] = []
        self._sent = 0

    def send(self, response: bytes) -> None:
        self._waiting.append(response)
        self.on_credit()

    def on_credit(self) -> None:
        while self._waiting and self.link.ready:
            self._sent += 1
            self.link.send(self._sent.to_bytes(4, "big"), self._waiting.pop(0))

    def on_settlement(self, settlement: Settlement) -> None:
        settlement.confirm(settlement.outcome)

    def on_detached(self) -> None:
        self._node.forget(self)
        self._waiting.clear()


def cbs_node(verify: Callable[[str, str], str | None]) -> RequestNode:
    """The node behind $cbs.

    `verify` gets the type of a token and the token and returns why it refuses it, or None.
    """

    def answer(request: Request, reply: Reply) -> None:
        operation = request.application_properties.get("operation")
        token_type = request.application_properties.get("type")
        if operation != "put-token" or not isinstance(token_type, str) or not isinstance(request.value, str):
            reply({"status-code": Int(400), "status-description": f"no put-token: {operation!r}"}, None)
            return
        refusal = verify(token_type, request.value)
        if refusal is None:
            reply({"status-code": Int(202), "status-description": "Accepted"}, None)
        else:
            reply({"status-code": Int(401), "status-description": refusal}, None)

    return RequestNode(answer)


KEY_NAME = "RootManageSharedAccessKey"


def is_key(name: str, password: str, key: str) -> bool:
    """Whether these are the name and the key of the namespace, as SASL PLAIN takes them; the key has all rights."""
    return name == KEY_NAME and hmac.compare_digest(password.encode(), key.encode())


def verify_sas(token: str, key: str, now: float) -> str | None:
    """Why a shared access signature is refused, or None. `now` in seconds since 1970."""
    scheme, _, fields = token.partition(" ")
    values = {name: value[0] for name, value in parse_qs(fields).items()}
    raw = dict(part.partition("=")[::2] for part in fields.split("&"))
    if scheme != "SharedAccessSignature" or not {"sr", "sig", "se"} <= values.keys():
        return "InvalidToken: a shared access signature has sr, sig and se"
    signed = f"{raw['sr']}\n{raw['se']}".encode()
    expected = base64.b64encode(hmac.digest(key.encode(), signed, hashlib.sha256)).decode()
    if not hmac.compare_digest(expected.encode(), values["sig"].encode()):
        return "InvalidSignature: the token has an invalid signature"
    if not values["se"].isdigit() or int(values["se"]) <= now:
        return "ExpiredToken: the token is expired"
    return None
