"""What a function app is configured with: application settings and host.json."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

_MAX_BATCH_SIZE = 32  # what the storage service hands out at once
_DURATION = re.compile(r"(\d\d):([0-5]\d):([0-5]\d(?:\.\d{1,7})?)")
_OVERRIDE = "AzureFunctionsJobHost__"
_PLACEHOLDER = re.compile(r"%([^%]+)%")


class HostError(Exception):
    """The app or its configuration cannot be hosted; the message names the function or setting at fault."""


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """extensions.queues of host.json. The defaults are the real host's."""

    batch_size: int = 16
    new_batch_threshold: int = 8
    """Messages at work at which a new batch is asked for; half of batch_size unless given."""
    max_polling_interval_s: float = 2.0
    visibility_timeout_s: float = 0.0
    """How long a failed message is hidden before its retry."""
    max_dequeue_count: int = 5
    base64: bool = True

    @classmethod
    def parse(cls, section: Mapping[str, Any]) -> Self:
        """Read the section. Raises HostError naming the first bad value."""
        default = cls()
        batch_size = _integer(section, "batchSize", default.batch_size, low=1, high=_MAX_BATCH_SIZE)
        encoding = section.get("messageEncoding", "base64")
        if encoding not in {"base64", "none"}:
            raise HostError(f"host.json messageEncoding is {encoding!r}, accepted: base64, none")
        return cls(
            batch_size=batch_size,
            new_batch_threshold=_integer(section, "newBatchThreshold", batch_size // 2, low=0),
            max_polling_interval_s=_seconds(section, "maxPollingInterval", default.max_polling_interval_s),
            visibility_timeout_s=_seconds(section, "visibilityTimeout", default.visibility_timeout_s),
            max_dequeue_count=_integer(section, "maxDequeueCount", default.max_dequeue_count, low=1),
            base64=encoding == "base64",
        )


@dataclass(frozen=True, slots=True)
class EventHubOptions:
    """extensions.eventHubs of host.json. The defaults are the real host's."""

    max_batch_size: int = 100
    prefetch_count: int = 300
    from_end: bool = False
    """Where a partition without a checkpoint begins."""

    @classmethod
    def parse(cls, section: Mapping[str, Any]) -> Self:
        """Read the section. Raises HostError naming the first bad value."""
        default = cls()
        start = section.get("initialOffsetOptions", {}).get("type", "fromStart")
        if start not in {"fromStart", "fromEnd"}:
            raise HostError(
                f"host.json initialOffsetOptions type is {start!r}, accepted here: fromStart, fromEnd"
            )
        return cls(
            max_batch_size=_integer(section, "maxEventBatchSize", default.max_batch_size, low=1),
            prefetch_count=_integer(section, "prefetchCount", default.prefetch_count, low=1),
            from_end=start == "fromEnd",
        )


@dataclass(frozen=True, slots=True)
class HostOptions:
    """The parts of host.json that this host reads; unknown ones are left to the real host."""

    route_prefix: str
    queues: QueueOptions
    event_hubs: EventHubOptions = EventHubOptions()

    @classmethod
    def parse(cls, host_json: Mapping[str, Any]) -> Self:
        """Read a parsed host.json. Raises HostError."""
        if host_json.get("version") != "2.0":
            raise HostError(f'host.json version is {host_json.get("version")!r}, accepted: "2.0"')
        extensions = host_json.get("extensions", {})
        prefix = extensions.get("http", {}).get("routePrefix", "api")
        return cls(
            prefix.strip("/"),
            QueueOptions.parse(extensions.get("queues", {})),
            EventHubOptions.parse(extensions.get("eventHubs", {})),
        )


def load_host_json(root: Path) -> dict[str, Any]:
    """Read host.json of an app folder. Raises HostError if it is missing or no JSON object."""
    path = root / "host.json"
    if not path.exists():
        raise HostError(f"no host.json in {root}; is it the folder of a function app?")
    return _json_object(path)


def load_settings(root: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of an app folder: Values of local.settings.json, if there is one, overruled by the environment."""
    path = root / "local.settings.json"
    document = _json_object(path) if path.exists() else {}
    if document.get("IsEncrypted"):
        raise HostError(f"{path} is encrypted; decrypt it with: func settings decrypt")
    values = document.get("Values", {})
    for name, value in values.items():
        if not isinstance(value, str):
            raise HostError(f"{path}: the value of {name} is {value!r}, accepted: a string")
    return {**values, **environment}


def overridden(host_json: Mapping[str, Any], settings: Mapping[str, str]) -> dict[str, Any]:
    """host.json with the settings `AzureFunctionsJobHost__section__name` put over its values, as the platform does."""
    document: dict[str, Any] = json.loads(json.dumps(host_json))
    for setting, value in settings.items():
        if setting.startswith(_OVERRIDE):
            *sections, name = setting.removeprefix(_OVERRIDE).split("__")
            place = document
            for section in sections:
                place = place.setdefault(section, {})
            place[name] = int(value) if value.isdigit() else value
    return document


def resolve(text: str, settings: Mapping[str, str], *, where: str) -> str:
    """Replace each %NAME% by that setting. Raises HostError naming a missing one and `where` it is used."""

    def value_of(match: re.Match[str]) -> str:
        if match[1] not in settings:
            raise HostError(f"{where} uses %{match[1]}%, but there is no setting {match[1]}")
        return settings[match[1]]

    return _PLACEHOLDER.sub(value_of, text)


def connection_string(name: str, settings: Mapping[str, str], *, where: str) -> str:
    """The connection string a binding names: the setting of that name, or of AzureWebJobs + that name."""
    for candidate in (name, f"AzureWebJobs{name}"):
        if candidate in settings:
            return settings[candidate]
    raise HostError(
        f"{where} uses the connection {name}, but there is no setting {name} holding a connection string"
    )


def _json_object(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise HostError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise HostError(f"{path} holds a {type(document).__name__}, accepted: an object")
    return document


def _integer(
    section: Mapping[str, Any], name: str, default: int, *, low: int, high: int | None = None
) -> int:
    value = section.get(name, default)
    if not isinstance(value, int) or value < low or (high is not None and value > high):
        accepted = f"{low} to {high}" if high is not None else f"{low} or more"
        raise HostError(f"host.json {name} is {value!r}, accepted: {accepted}")
    return value


def _seconds(section: Mapping[str, Any], name: str, default: float) -> float:
    value = section.get(name)
    return default if value is None else parse_duration(value, where=f"host.json {name}")


def parse_duration(value: object, *, where: str) -> float:
    """Seconds of a duration as the host writes it. Raises HostError naming `where`."""
    match = _DURATION.fullmatch(str(value))
    if match is None:
        raise HostError(f'{where} is {value!r}, accepted: "hh:mm:ss" or "hh:mm:ss.fff"')
    hours, minutes, seconds = (float(part) for part in match.groups())
    return 3600.0 * hours + 60.0 * minutes + seconds
