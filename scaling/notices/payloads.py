"""A notice as a webhook gets it: CloudEvents 1.0, or the form of Azure Monitor autoscale; and its signature. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from scaling.config.notify_table import Webhook
from scaling.notice import Notice, NoticeKind
from scaling.resource_id import ResourceId
from tidemark.foundation.sanitize import sanitize_line

TYPE = "tidemark.scaling"
"""What the types of events begin with; the kind follows."""

KEY_PREFIX = "whsec_"
_JSON = "application/json; charset=utf-8"

_AS_IT_IS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""Characters of a header's value that CloudEvents in binary mode leaves as they are; all others are percent-encoded UTF-8.
Servers read headers as Latin-1.
"""

MIN_KEY, MAX_KEY = 24, 64
"""Bytes of a key, as Standard Webhooks has them."""


class Message(Struct, frozen=True):
    """The body of a request and its headers."""

    body: bytes
    headers: dict[str, str]


class Sender(Struct, frozen=True):
    """Who sends: `app` is the name of the Functions app; `resources` the resource ids of targets, where they have one."""

    app: str
    resources: Mapping[str, str] = {}


def message_of(webhook: Webhook, notice: Notice, sender: Sender) -> Message:
    """The same bytes whenever it is sent again."""
    if webhook.format == "azure_autoscale":
        return Message(msgspec.json.encode(_autoscale(notice, sender)), {"Content-Type": _JSON})
    event = _cloud_event(notice, sender)
    if webhook.format == "cloudevents_binary":
        data = event.pop("data")
        del event["datacontenttype"]  # which the media type stands for
        attributes = {f"ce-{name}": quote(value, safe=_AS_IT_IS) for name, value in event.items()}
        return Message(msgspec.json.encode(data), {"Content-Type": _JSON, **attributes})
    return Message(
        msgspec.json.encode(event), {"Content-Type": "application/cloudevents+json; charset=utf-8"}
    )


def key_bytes(text: str) -> bytes:
    """The key in `whsec_` and base64. Raises ValueError, which does not show it."""
    try:
        key = base64.b64decode(text.strip().removeprefix(KEY_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not MIN_KEY <= len(key) <= MAX_KEY:
        raise ValueError(
            f"is no key of a webhook; accepted is {KEY_PREFIX} and {MIN_KEY} to {MAX_KEY} bytes in base64, such as"
            f" `echo {KEY_PREFIX}$(openssl rand -base64 32)` prints"
        )
    return key


def signed(message: Message, identity: str, key: bytes, now: float) -> dict[str, str]:
    """The headers of Standard Webhooks: id, time and a signature of both and the body. The id is signed as it is sent."""
    sent, stamp = quote(identity, safe=_AS_IT_IS), str(int(now))
    content = b".".join((sent.encode(), stamp.encode(), message.body))
    signature = base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
    return {"webhook-id": sent, "webhook-timestamp": stamp, "webhook-signature": f"v1,{signature}"}


def _cloud_event(notice: Notice, sender: Sender) -> dict[str, Any]:
    given = msgspec.to_builtins(notice)
    data = {key: value for key, value in given.items() if key not in {"id", "kind"}}
    data |= {"text": sanitize_line(notice.text), "resource_id": sender.resources.get(notice.target)}
    return {
        "specversion": "1.0",
        "id": notice.id,
        "source": f"/tidemark/{sender.app}",
        "type": f"{TYPE}.{notice.kind}",
        **({"subject": notice.target} if notice.target else {}),
        "time": _time(notice.at),
        "datacontenttype": "application/json",
        "data": {key: value for key, value in data.items() if value not in (None, "")},
    }


def _autoscale(notice: Notice, sender: Sender) -> dict[str, Any]:
    """Capacities are texts there. What has no resource id leaves the parts of one empty."""
    resource = sender.resources.get(notice.target, "")
    parsed = _resource(resource)
    name = parsed.name if parsed else notice.target
    start, end = notice.current, notice.reached
    detail = "This is a test"  # of the kinds that this form is for, all but one are changes
    if notice.kind is NoticeKind.SCALED:
        done = "Autoscale successfully completed scale operation"
        detail = f"{done} for resource '{name}' from capacity '{start}' to capacity '{end}'"
    return {
        "version": "1.0",
        "status": "Activated",
        "operation": "Scale In" if (end or 0) < (start or 0) else "Scale Out",
        "context": {
            "timestamp": _time(notice.at),
            "id": notice.id,
            "name": notice.target,
            "details": f"{detail}. {sanitize_line(notice.text)}",
            "subscriptionId": parsed.subscription if parsed else "",
            "resourceGroupName": parsed.group if parsed else "",
            "resourceName": name,
            "resourceType": parsed.type.lower() if parsed else "",
            "resourceId": resource,
            "portalLink": f"https://portal.azure.com/#resource{resource}" if resource else "",
            "oldCapacity": "" if start is None else str(start),
            "newCapacity": "" if end is None else str(end),
        },
        "properties": {"reason": notice.reason, "decision_id": notice.decision_id},
    }


def _resource(text: str) -> ResourceId | None:
    try:
        return ResourceId.parse(text, odd_names=True) if text else None
    except ValueError:  # that of a scaler of the user's own may be anything
        return None


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
