"""Claim checks: the properties that say in which blob a message has its body.

Pure. A message with a claim has an empty body and these application properties:

    tidemark-claim          the blob's name in the container
    tidemark-claim-sha256   SHA-256 of the body, in hexadecimal
    tidemark-claim-size     the body's size in bytes
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote

from msgspec import Struct

from tidemark.foundation.wording import count_text
from tidemark.publisher.service_bus.core.errors import ClaimDamagedError
from tidemark.publisher.service_bus.core.send_report import Claim

BLOB, SHA256, SIZE = "tidemark-claim", "tidemark-claim-sha256", "tidemark-claim-size"
SETTLED = "settled"
"""Metadata of a blob whose message was processed: when. The body is gone."""


class ClaimSettings(Struct, frozen=True):
    """`above`: bodies of messages larger than so many bytes go to a blob even if the entity takes them.

    `naming` "message" gives each message a blob of its own, which its receiver may delete; "content" gives one blob
    to equal bodies, which no receiver can know to be the last user of.
    """

    above: int | None = None
    naming: Literal["message", "content"] = "message"
    prefix: str = "claims/"

    def __post_init__(self) -> None:
        if self.above is not None and self.above < 0:
            raise ValueError(f"above is {self.above}, accepted: 0 or more bytes, or None")
        if self.naming not in ("message", "content"):
            raise ValueError(f"naming is {self.naming!r}, accepted: 'message', 'content'")


class Reference(Struct, frozen=True):
    """The reference of a received message to its body."""

    blob: str
    sha256: str
    size: int


def claim_of(body: bytes, message_id: str, settings: ClaimSettings) -> Claim:
    """The claim of a body; the same for every attempt to send the message."""
    digest = hashlib.sha256(body).hexdigest()
    if settings.naming == "content":
        return Claim(f"{settings.prefix}content/{digest}", body, digest)
    # With the digest, two messages with the same id by mistake get different blobs.
    return Claim(f"{settings.prefix}message/{quote(message_id, safe='')}/{digest[:16]}", body, digest)


def add_claim(properties: Mapping[Any, Any], claim: Claim) -> dict[Any, Any]:
    """The application properties with those of the claim."""
    return {**properties, BLOB: claim.blob, SHA256: claim.sha256, SIZE: len(claim.body)}


def reference_of(properties: Mapping[Any, Any] | None) -> Reference | None:
    """The claim among the application properties of a received message; None if it contains its body.

    Raises ClaimDamagedError if its properties are incomplete.
    """
    named = {text_of(key): text_of(value) for key, value in (properties or {}).items()}
    if BLOB not in named:
        return None
    sha256, size = named.get(SHA256), named.get(SIZE)
    if not isinstance(sha256, str) or not isinstance(size, int):
        raise ClaimDamagedError(
            f"the message refers to blob {named[BLOB]!r}, but its properties {SHA256} ({sha256!r}) and {SIZE} "
            f"({size!r}) are not a text and a number"
        )
    return Reference(str(named[BLOB]), sha256, size)


def verify(body: bytes, reference: Reference) -> bytes:
    """The body, if it is the one that was sent. Raises ClaimDamagedError otherwise."""
    digest = hashlib.sha256(body).hexdigest()
    if len(body) != reference.size or digest != reference.sha256:
        raise ClaimDamagedError(
            f"blob {reference.blob!r} holds {count_text(len(body), 'byte', style=',')} with SHA-256 {digest}, expected: "
            f"{count_text(reference.size, 'byte', style=',')} with SHA-256 {reference.sha256}"
        )
    return body


def text_of(value: Any) -> Any:
    """Decode a value, because the SDK returns received texts as bytes."""
    return value.decode() if isinstance(value, bytes) else value
