"""The change feed: the latest version of every document, in the order they were written. Pure.

Changes are numbered over the whole container, so that a place in the feed means the same before and after ranges are
split or merged. A place is an ETag: `"<number of the last change seen>"`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec import Struct

from devstack.cosmos.protocol.errors import bad_request
from devstack.cosmos.store.container import Document, Partition

INCREMENTAL = "incremental feed"


class Place(Struct, frozen=True):
    """Where a reader stands: after a change, at a time (seconds since 1970), or at the beginning."""

    after: int = 0
    since: float | None = None


def parse_place(none_match: str | None, modified_since: str | None, last: int) -> Place:
    """From If-None-Match, where "*" is after the last change, and If-Modified-Since, which a place overrules.

    Raises CosmosError (400).
    """
    if none_match is not None:
        return Place(last if none_match == "*" else _number(none_match))
    if modified_since is None:
        return Place()
    try:
        time = datetime.strptime(modified_since, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)
    except ValueError:
        raise bad_request(f"If-Modified-Since is {modified_since!r}, accepted: an HTTP date") from None
    return Place(since=time.timestamp())


def _number(etag: str) -> int:
    text = etag.strip().strip('"')
    if not text.isdecimal():
        raise bad_request(f"If-None-Match is {etag!r}, accepted: the ETag of an answer of this feed, or *")
    return int(text)


def changed(partitions: Sequence[Partition], place: Place) -> list[Document]:
    """What the partitions have behind the place, the oldest change first."""
    documents = [
        document
        for partition in partitions
        for document in partition.documents.values()
        if document.change > place.after and (place.since is None or document.timestamp >= place.since)
    ]
    return sorted(documents, key=lambda document: document.change)


def with_change(body: bytes, change: int) -> bytes:
    """A document as the feed has it: with the number of its change."""
    return body[:-1] + f',"_lsn":{change}}}'.encode()
