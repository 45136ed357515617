"""Entities of a namespace as Atom documents, the way the administration API has them."""

import re
from datetime import UTC, datetime
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from devstack.service_bus.broker import Topic
from devstack.service_bus.queue import Counts, Queue
from devstack.service_bus.rules.documents import rule_description
from devstack.service_bus.rules.rules import Rule
from devstack.service_bus.settings import EntityLimits, QueueSettings

_ATOM = "http://www.w3.org/2005/Atom"
_SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"

_FOREVER = "P10675199DT2H48M5.4775807S"  # .NET's TimeSpan.MaxValue
_FOREVER_DAYS = 10_675_199
_DEFAULT_WINDOW = 600.0  # seconds; the service's
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?")

_COMMON = {
    "DefaultMessageTimeToLive": _FOREVER,
    "EnableBatchedOperations": "true",
    "AutoDeleteOnIdle": _FOREVER,
    "EntityAvailabilityStatus": "Available",
}
_STORED = {
    "MaxSizeInMegabytes": "1024",
    "RequiresDuplicateDetection": "false",
    "DuplicateDetectionHistoryTimeWindow": "PT10M",
    "SupportOrdering": "true",
    "EnablePartitioning": "false",
    "EnableExpress": "false",
    "MaxMessageSizeInKilobytes": "1024",
}
_DEFAULTS = {
    "QueueDescription": {**_COMMON, **_STORED, "RequiresSession": "false"},
    "TopicDescription": {**_COMMON, **_STORED},
    "SubscriptionDescription": {**_COMMON, "RequiresSession": "false"},
}
# What the server computes or acts upon; said by a client, it is not kept as it was said.
_COMPUTED = frozenset(
    ("SizeInBytes", "MessageCount", "CreatedAt", "UpdatedAt", "AccessedAt", "SubscriptionCount")
)
_ACTED_UPON = frozenset(
    (
        "LockDuration",
        "MaxDeliveryCount",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DeadLetteringOnFilterEvaluationExceptions",
        "Status",
    )
)


def parse_duration(text: str) -> float | None:
    """Seconds of an ISO 8601 duration of days and time; None for .NET's "forever".

    Raises ValueError for anything else.
    """
    match = _DURATION.fullmatch(text)
    if match is None or text in ("P", "PT"):
        raise ValueError(f"duration {text!r}, accepted: ISO 8601 days and time, such as PT1M or P1DT12H")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return None if days >= _FOREVER_DAYS else ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def format_duration(seconds: float | None) -> str:
    return _FOREVER if seconds is None else f"PT{seconds:g}S" if seconds % 1 else f"PT{int(seconds)}S"


def find_description(body: bytes, kind: str) -> ET.Element | None:
    """The first element of this name. Raises ValueError if the body is no XML."""
    try:
        root = ET.fromstring(body)  # noqa: S314 - written by the client under test
    except ET.ParseError as error:
        raise ValueError(f"the body is not XML: {error}") from None
    return next((element for element in root.iter() if element.tag.rpartition("}")[2] == kind), None)


def parse_description(body: bytes) -> tuple[str, dict[str, str]]:
    """Kind and plain properties of the description in an entry, such as ("QueueDescription", {...}).

    Raises ValueError if there is none.
    """
    content = find_description(body, "content")
    for element in () if content is None else content.iter():
        _, _, kind = element.tag.rpartition("}")
        if kind in _DEFAULTS:
            leaves = {child.tag.rpartition("}")[2]: child.text or "" for child in element if len(child) == 0}
            return kind, leaves
    raise ValueError(f"the body describes no entity, accepted: {', '.join(_DEFAULTS)}")


def queue_settings(properties: dict[str, str]) -> QueueSettings:
    """Settings from the properties of a description; what is not said has its default.

    Raises ValueError for what cannot be set.
    """
    default = QueueSettings()
    lock, ttl = properties.get("LockDuration"), properties.get("DefaultMessageTimeToLive")
    return QueueSettings(
        lock_duration=(parse_duration(lock) if lock else None) or default.lock_duration,
        max_delivery_count=int(properties.get("MaxDeliveryCount") or default.max_delivery_count),
        default_ttl=parse_duration(ttl) if ttl else None,
        dead_letter_on_expiration=properties.get("DeadLetteringOnMessageExpiration") == "true",
        dead_letter_on_filter_errors=properties.get("DeadLetteringOnFilterEvaluationExceptions") != "false",
        status=properties.get("Status") or default.status,
        duplicate_window=duplicate_window(properties),
        requires_session=properties.get("RequiresSession") == "true",
        limits=EntityLimits(partitioned=properties.get("EnablePartitioning") == "true"),
    )


def duplicate_window(properties: dict[str, str]) -> float | None:
    """Seconds in which a queue or topic of this description knows a message id; None without detection."""
    if properties.get("RequiresDuplicateDetection") != "true":
        return None
    window = properties.get("DuplicateDetectionHistoryTimeWindow")
    return (parse_duration(window) if window else None) or _DEFAULT_WINDOW


def kept_properties(properties: dict[str, str]) -> dict[str, str]:
    """What of a description is only kept to be said again."""
    return {
        name: value
        for name, value in properties.items()
        if value and name not in _COMPUTED and name not in _ACTED_UPON
    }


def queue_entry(queue: Queue, base: str, *, subscription: bool = False) -> str:
    """The entry of a queue or subscription; `base` is the address of the server."""
    kind = "SubscriptionDescription" if subscription else "QueueDescription"
    counts, settings = queue.counts(), queue.settings
    properties = {
        **_DEFAULTS[kind],
        **queue.properties,
        "LockDuration": format_duration(settings.lock_duration),
        "MaxDeliveryCount": str(settings.max_delivery_count),
        "DefaultMessageTimeToLive": format_duration(settings.default_ttl),
        "DeadLetteringOnMessageExpiration": str(settings.dead_letter_on_expiration).lower(),
        "RequiresSession": str(settings.requires_session).lower(),
        "Status": settings.status,
        "MessageCount": str(counts.total),
        **_times(queue),
    }
    if subscription:
        flag = str(settings.dead_letter_on_filter_errors).lower()
        properties["DeadLetteringOnFilterEvaluationExceptions"] = flag
    else:
        properties["SizeInBytes"] = str(queue.size_in_bytes)
        properties["EnablePartitioning"] = str(settings.limits.partitioned).lower()
    title = queue.name.rpartition("/")[2] if subscription else queue.name
    return _entry(title, f"{base}/{queue.name}", kind, properties, counts)


def topic_entry(topic: Topic, base: str) -> str:
    """The entry of a topic; `base` is the address of the server."""
    properties = {
        **_DEFAULTS["TopicDescription"],
        "EnablePartitioning": str(topic.limits.partitioned).lower(),
        **topic.properties,
        "Status": topic.status,
        "SizeInBytes": str(sum(subscription.size_in_bytes for subscription in topic.subscriptions.values())),
        "SubscriptionCount": str(len(topic.subscriptions)),
        **_times(topic),
    }
    return _entry(topic.name, f"{base}/{topic.name}", "TopicDescription", properties, topic.counts())


def rule_entry(rule: Rule, address: str) -> str:
    """The entry of a rule; `address` is its own."""
    created = _time(rule.created_at)
    return (
        f'<entry xmlns="{_ATOM}"><id>{_text(address)}</id><title type="text">{_text(rule.name)}</title>'
        f"<published>{created}</published><updated>{created}</updated>"
        f'<link rel="self" href="{_text(address)}"/><content type="application/xml">'
        f'<RuleDescription xmlns="{_SERVICE_BUS}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        f"{rule_description(rule)}</RuleDescription></content></entry>"
    )


def feed(title: str, address: str, entries: list[str], next_page: str | None) -> str:
    """A list of entries; `next_page` is where it goes on."""
    links = f'<link rel="self" href="{_text(address)}"/>'
    if next_page is not None:
        links += f'<link rel="next" href="{_text(next_page)}"/>'
    return (
        f'<feed xmlns="{_ATOM}"><title type="text">{_text(title)}</title><id>{_text(address)}</id>'
        f"<updated>{_time(datetime.now(UTC).timestamp())}</updated>{links}{''.join(entries)}</feed>"
    )


def namespace_entry(name: str, base: str) -> str:
    now = _time(datetime.now(UTC).timestamp())
    return (
        f'<entry xmlns="{_ATOM}"><id>{_text(base)}/$namespaceinfo</id><title type="text">{_text(name)}</title>'
        f'<updated>{now}</updated><content type="application/xml">'
        f'<NamespaceInfo xmlns="{_SERVICE_BUS}"><Alias/><CreatedTime>{now}</CreatedTime>'
        "<MessagingSKU>Premium</MessagingSKU><MessagingUnits>1</MessagingUnits>"
        f"<ModifiedTime>{now}</ModifiedTime><Name>{_text(name)}</Name><NamespaceType>Messaging</NamespaceType>"
        "</NamespaceInfo></content></entry>"
    )


def error_document(status: int, detail: str) -> str:
    return f"<Error><Code>{status}</Code><Detail>{_text(detail)}</Detail></Error>"


def _entry(title: str, address: str, kind: str, properties: dict[str, str], counts: Counts) -> str:
    leaves = "".join(f"<{name}>{_text(value)}</{name}>" for name, value in properties.items())
    details = "".join(
        f"<d:{name}>{value}</d:{name}>"
        for name, value in (
            ("ActiveMessageCount", counts.active),
            ("DeadLetterMessageCount", counts.dead_letter),
            ("ScheduledMessageCount", counts.scheduled),
            ("TransferMessageCount", counts.transfer),
            ("TransferDeadLetterMessageCount", counts.transfer_dead_letter),
        )
    )
    return (
        f'<entry xmlns="{_ATOM}"><id>{_text(address)}</id><title type="text">{_text(title)}</title>'
        f"<published>{properties['CreatedAt']}</published><updated>{properties['UpdatedAt']}</updated>"
        f'<link rel="self" href="{_text(address)}"/><content type="application/xml">'
        f'<{kind} xmlns="{_SERVICE_BUS}">{leaves}'
        f'<CountDetails xmlns:d="{_COUNTS}">{details}</CountDetails></{kind}></content></entry>'
    )


def _times(entity: Queue | Topic) -> dict[str, str]:
    return {
        "CreatedAt": _time(entity.created_at),
        "UpdatedAt": _time(entity.updated_at),
        "AccessedAt": _time(entity.updated_at),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _text(value: str) -> str:
    return escape(value, {'"': "&quot;"})
