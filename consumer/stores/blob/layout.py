"""The layout of a checkpoint blob: readable by the Event Hubs SDKs and KEDA, with more fields than theirs. Pure.

`{namespace}/{hub}/{group}/checkpoint/{partition}`, all in lower case. Metadata:

| name           | written by | meaning                                                              |
|----------------|------------|----------------------------------------------------------------------|
| offset         | all        | opaque; "-1" while nothing is settled                                |
| sequencenumber | all        | low-water mark; "-1" while nothing is settled                        |
| epoch, owner   | us         | the claim that may write                                             |
| beyond         | us         | what is settled beyond the mark (consumer/core/settled/completion_map.py)         |
| savedat        | us         | epoch seconds; missing while the partition is claimed but never saved |
| origin         | us         | JSON: which hub of that name, and where its first claim began (model.Origin)  |
| stream, format | us         | whose position this is; the version of these rules                   |

The content repeats epoch and owner as JSON. The SDKs replace all metadata but not the content, so that the claim survives
a foreign writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from consumer.core.settled.completion_map import decode, encode
from consumer.model import NOTHING_SETTLED, Checkpoint, Origin, Stream

FORMAT = "1"
BEYOND_LIMIT = 4096  # characters: with any offset that occurs, well below the 8 KB of all metadata
_START = "-1"  # the SDKs' offset of the beginning of a stream
_PLAIN = " !#$&'()*+,/:;=?@[]"  # what of ASCII may stay in a header as it is


class Fence(Struct, frozen=True):
    """The claim that may write. Epoch 0 means that no store of this consumer ever claimed the partition."""

    epoch: int = 0
    owner: str = ""


class Stored(Struct, frozen=True):
    """A checkpoint blob as read."""

    fence: Fence
    position: Checkpoint | str | None
    """A text says why it cannot be read; None means that nothing was saved under the claim yet."""
    foreign: bool
    """Whether the last writer was another program."""


def to_metadata(
    stream: Stream, partition: str, fence: Fence, checkpoint: Checkpoint | None
) -> dict[str, str]:
    """The metadata of a checkpoint; None means claimed and nothing saved yet.

    If `beyond` does not fit, the runs furthest from the mark are left out.
    """
    written = {
        "offset": _START,
        "sequencenumber": str(NOTHING_SETTLED),
        "epoch": str(fence.epoch),
        "owner": header_text(fence.owner),
        "stream": header_text(stream.blob("checkpoint", partition)),
        "format": FORMAT,
    }
    if checkpoint is not None:
        written["savedat"] = repr(checkpoint.saved_at)
        written["origin"] = header_text(msgspec.json.encode(checkpoint.origin).decode())
        written["sequencenumber"] = str(checkpoint.sequence_number)
        if checkpoint.sequence_number > NOTHING_SETTLED:
            written["offset"] = header_text(checkpoint.offset)
        if beyond := encode(checkpoint.beyond, checkpoint.sequence_number, BEYOND_LIMIT):
            written["beyond"] = beyond
    return written


def to_content(fence: Fence) -> bytes:
    return msgspec.json.encode(fence)


def from_blob(
    stream: Stream,
    partition: str,
    metadata: Mapping[str, str | None] | None,
    content: bytes,
    modified_at: float,
) -> Stored:
    """The checkpoint in a blob. Never raises: `position` says why it cannot be read. `modified_at` dates a foreign one."""
    fields = {name.casefold(): value or "" for name, value in (metadata or {}).items()}
    fence = _fence(fields, content)
    position: Checkpoint | str | None
    try:
        position = _position(stream, partition, fields, fence, modified_at)
    except ValueError as error:
        position = str(error)
    return Stored(fence, position, foreign="epoch" not in fields)


def header_text(text: str) -> str:
    """The text encoded for metadata: percent-encoded, except plain ASCII."""
    return quote(text, safe=_PLAIN)


def plain_text(text: str) -> str:
    return unquote(text)


def _fence(fields: Mapping[str, str], content: bytes) -> Fence:
    if fields.get("epoch", "").isdecimal():
        return Fence(int(fields["epoch"]), plain_text(fields.get("owner", "")))
    try:
        return msgspec.json.decode(content, type=Fence)
    except (ValueError, RecursionError):  # an empty content, as the SDKs write it
        return Fence()


def _position(
    stream: Stream, partition: str, fields: Mapping[str, str], fence: Fence, modified_at: float
) -> Checkpoint | None:
    if fields.get("format", FORMAT) != FORMAT:
        raise ValueError(
            f"format is {fields['format']!r}: a newer version of Tidemark wrote it; this one reads {FORMAT!r}"
        )
    ours = stream.blob("checkpoint", partition)
    if plain_text(fields.get("stream", ours)) != ours:
        raise ValueError(f"it was copied: it is the checkpoint {plain_text(fields['stream'])!r}")
    for name in ("offset", "sequencenumber"):
        if name not in fields:
            raise ValueError(f"its metadata holds no {name}")
    number = _whole(fields["sequencenumber"], "sequencenumber")
    if number == NOTHING_SETTLED and "savedat" not in fields:
        return None
    return Checkpoint(
        partition=partition,
        sequence_number=number,
        offset="" if number == NOTHING_SETTLED else plain_text(fields["offset"]),
        beyond=decode(fields.get("beyond", ""), number),
        saved_at=_seconds(fields["savedat"]) if "savedat" in fields else modified_at,
        owner=fence.owner,
        epoch=fence.epoch,
        origin=_origin(plain_text(fields.get("origin", "{}"))),
    )


def _origin(text: str) -> Origin:
    try:
        return msgspec.json.decode(text, type=Origin)
    except (ValueError, RecursionError):
        raise ValueError(f"origin in its metadata is {text[:100]!r}, expected JSON of ours") from None


def _whole(text: str, name: str) -> int:
    if text != str(NOTHING_SETTLED) and not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{name} in its metadata is {text!r}, expected a whole number from -1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"savedat in its metadata is {text!r}, expected epoch seconds") from None
