"""Where the consumers of event hubs keep their checkpoints in a blob container, and how to read them. Pure.

| layout          | blob                                   | position                                             |
|-----------------|----------------------------------------|------------------------------------------------------|
| `blob_metadata` | `{ns}/{hub}/{group}/checkpoint/{pid}`  | metadata `sequencenumber`                            |
| `functions`     | `{ns}/{hub}/{group}/{pid}`             | JSON `SequenceNumber`                                |
| `legacy`        | `{group}/{pid}`                        | JSON `SequenceNumber`, old Python: `sequence_number` |
| `go`            | `{pid}`                                | JSON `checkpoint.sequenceNumber`                     |
| `dapr`          | `dapr-{hub}-{group}-{pid}`             | JSON `checkpoint.sequenceNumber`                     |

`blob_metadata` is written by the current SDKs, by version 5 and newer of the Functions extension, and by our
own consumer. The SDKs write the whole name in lower case: namespace, hub and group. Writers of the other layouts
kept the case of the configuration, so both spellings are tried.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal
from urllib.parse import unquote

import msgspec
from msgspec import Struct

Layout = Literal["blob_metadata", "functions", "legacy", "go", "dapr"]

# "-1" is the start of the stream and "@latest" its end: a lease that was taken, but nothing settled yet.
_NO_POSITION = ("", None, "-1", "@latest")


class _Origin(Struct, frozen=True):
    """The part that is read of the origin that consumer/model.py writes."""

    hub: int = 0


class CheckpointError(ValueError):
    """A blob is where a checkpoint has to be and holds none; the message does not name the blob."""


class Consumer(Struct, frozen=True):
    """Whose checkpoints: the fully qualified namespace, the event hub, and the consumer group."""

    namespace: str
    hub: str
    group: str

    def lowered(self) -> Consumer:
        return Consumer(self.namespace.lower(), self.hub.lower(), self.group.lower())


class Place(Struct, frozen=True):
    """A layout keeps the checkpoint of partition `p` in the blob `prefix + p`."""

    layout: Layout
    prefix: str


class Listing(Struct, frozen=True):
    """One list request: all blobs that begin with `prefix`; `flat` leaves out those in deeper folders."""

    prefix: str
    places: tuple[Place, ...]
    flat: bool = False

    def find(self, blob: str, partitions: Collection[str]) -> tuple[Place, str] | None:
        """The place and the partition of a listed blob, or None for one that is no checkpoint (a lease, say)."""
        for place in self.places:
            partition = blob.removeprefix(place.prefix)
            if blob.startswith(place.prefix) and partition in partitions:
                return place, partition
        return None


def listings(consumer: Consumer, layout: Layout | None = None) -> tuple[tuple[Listing, ...], ...]:
    """Rounds of list requests; those of a later round are for partitions without a checkpoint in earlier ones.

    The first round is the one request that finds what every current writer writes. With a `layout` there is
    one round, for that layout only.
    """
    lowered = consumer.lowered()
    current = _in_folders(lowered, "blob_metadata", "functions")
    spelled = _in_folders(consumer, "blob_metadata", "functions")
    legacy = tuple(
        Listing(f"{group}/", (Place("legacy", f"{group}/"),))
        for group in dict.fromkeys((consumer.group, lowered.group))
    )
    dapr = Place("dapr", f"dapr-{consumer.hub}-{consumer.group}-")
    if layout is None:
        root = Listing("", (Place("go", ""), dapr), flat=True)
        exact = (spelled,) if spelled != current else ()
        return ((current,), (*exact, *legacy, root))
    if layout in {"blob_metadata", "functions"}:
        return (tuple(dict.fromkeys((_in_folders(lowered, layout), _in_folders(consumer, layout)))),)
    go = Listing("", (Place("go", ""),), flat=True)
    alone = {"legacy": legacy, "go": (go,), "dapr": (Listing(dapr.prefix, (dapr,)),)}
    return (alone[layout],)


def position_in_metadata(metadata: Mapping[str, str] | None) -> int | None:
    """The sequence number in a blob's metadata, whatever the case of its name; None before the first event.

    Raises CheckpointError.
    """
    lowercase = {name.casefold(): value for name, value in (metadata or {}).items()}
    if "sequencenumber" not in lowercase:
        raise CheckpointError("its metadata holds no sequencenumber")
    return _number(lowercase["sequencenumber"], "sequencenumber in its metadata")


def saved_at(metadata: Mapping[str, str] | None) -> float | None:
    """When our own consumer saved the position, in seconds since the epoch; None in the blobs of others. A claim of a
    partition writes to the blob, too, so the blob's own time may be later.
    """
    try:
        at = float((metadata or {}).get("savedat", "nan"))
    except ValueError:
        return None
    return at if at > 0 else None


def hub_created_at(metadata: Mapping[str, str] | None) -> int | None:
    """When the hub of the position was created, in milliseconds since 1970; None in the blobs of others."""
    try:
        origin = msgspec.json.decode(unquote((metadata or {}).get("origin", "{}")), type=_Origin)
    except (ValueError, RecursionError):
        return None
    return origin.hub or None


def position_in_body(layout: Layout, body: bytes) -> int | None:
    """The sequence number in a blob's JSON; None where a lease was taken but nothing was settled.

    Raises CheckpointError.
    """
    try:
        document = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"it is not JSON ({error})") from None
    if layout in {"go", "dapr"}:
        document = document.get("checkpoint") if isinstance(document, dict) else None
        keys: tuple[tuple[str, str], ...] = (("sequenceNumber", "offset"),)
    else:
        keys = (("SequenceNumber", "Offset"), ("sequence_number", "offset"))
    if not isinstance(document, dict):
        raise CheckpointError("its JSON holds no checkpoint")
    return _position(document, keys)


def _position(document: dict[str, Any], keys: tuple[tuple[str, str], ...]) -> int | None:
    for number, offset in keys:
        if number in document:
            if document.get(offset) in _NO_POSITION:
                return None
            return _number(document[number], number)
    raise CheckpointError(f"its JSON holds no {' or '.join(number for number, _ in keys)}")


def _number(value: Any, name: str) -> int | None:
    try:
        if isinstance(value, bool | float):
            raise ValueError(value)
        number = int(value)
    except (TypeError, ValueError):
        raise CheckpointError(f"{name} is {value!r}, not a whole number") from None
    return number if number >= 0 else None


def _in_folders(consumer: Consumer, *layouts: Layout) -> Listing:
    folder = f"{consumer.namespace}/{consumer.hub}/{consumer.group}/"
    prefixes: dict[Layout, str] = {"blob_metadata": f"{folder}checkpoint/", "functions": folder}
    places = tuple(Place(layout, prefixes[layout]) for layout in layouts)
    return Listing(prefixes[layouts[0]] if len(layouts) == 1 else folder, places)
