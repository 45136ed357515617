"""Partition key definitions: reading a document's key, naming a key, cutting the key space."""

import re
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, cast

import msgspec
from msgspec import UNSET, Struct

from devstack.cosmos.partitions.hashing import Component, encode_number, hash_multi, hash_v1, hash_v2
from devstack.cosmos.protocol.errors import CosmosError, bad_request

MAX_KEY_BYTES = 2048  # of a partition key value; 101 under version 1
MAX_KEY_BYTES_V1 = 101
MAX_ID_BYTES = 1023
_FORBIDDEN_IN_ID = frozenset("/\\?#")
_SHORT_ID = re.compile(r"[^/\\?#]{1,255}")  # at most 4 bytes a character, so surely not too long
_MAX_PATHS = 3  # levels of a hierarchical key


Identity = tuple[str, tuple[Any, ...]]
"""Id and partition key: what the service looks at before it stores a document."""


class KeyDefinition(Struct, frozen=True):
    """How a container cuts its documents up; `version` is 1 or 2, `kind` "Hash" or "MultiHash"."""

    paths: tuple[str, ...]
    kind: str = "Hash"
    version: int = 2

    @property
    def space(self) -> int:
        """The number of places that ranges are cut from."""
        return 1 << 32 if self.is_v1 else 1 << 126

    @property
    def is_v1(self) -> bool:
        return self.kind == "Hash" and self.version == 1

    def effective(self, key: Sequence[Component]) -> str:
        """The effective partition key of a whole key, or of a prefix of a hierarchical one."""
        if self.kind == "MultiHash":
            return hash_multi(key)
        return hash_v1(key[0]) if self.is_v1 else hash_v2(key)

    def boundary(self, place: int) -> str:
        """The text of a place, as in the description of a range."""
        if place <= 0:
            return ""
        if place >= self.space:
            return "FF"
        return encode_number(float(place)).hex().upper() if self.is_v1 else f"{place:032X}"

    def parse(self, header: str | None) -> tuple[Component, ...]:
        """A key from its JSON form, complete or, in a hierarchy, a prefix.

        Raises CosmosError (400).
        """
        if header is None:
            raise bad_request("PartitionKey value must be supplied for this operation.")
        try:
            values = msgspec.json.decode(header)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise bad_request(f"The partition key {header!r} is not JSON: {error}") from None
        if not isinstance(values, list) or len(values) > len(self.paths):
            raise bad_request(
                f"The partition key {header} does not fit, accepted: an array with values for "
                f"{', '.join(self.paths)}"
            )
        return self.checked(tuple(UNSET if value == {} else value for value in values))

    def checked(self, key: tuple[Any, ...]) -> tuple[Component, ...]:
        """The key itself, if each value may be one. Raises CosmosError (400)."""
        limit = MAX_KEY_BYTES_V1 if self.is_v1 else MAX_KEY_BYTES
        for path, value in zip(self.paths, key, strict=False):
            if isinstance(value, str):
                if len(value) * 4 > limit and len(value.encode()) > limit:
                    raise bad_request(f"Partition key {path} is larger than {limit} bytes.")
            elif isinstance(value, (list, dict)):
                raise bad_request(
                    f"Partition key {path} is {type(value).__name__}, accepted: string, number, boolean, null",
                    substatus=1001,
                )
        return cast("tuple[Component, ...]", key)


def parse_definition(document: Any) -> KeyDefinition:
    """From the `partitionKey` of a container; without `version` it is 1, as the service has it.

    Raises CosmosError (400).
    """
    if not isinstance(document, dict):
        raise bad_request("A container needs a partitionKey: {paths, kind, version}.")
    paths = document.get("paths")
    kind = document.get("kind", "Hash")
    version = document.get("version", 1)
    if kind not in ("Hash", "MultiHash") or version not in (1, 2):
        raise bad_request(
            f"partitionKey has kind {kind!r}, version {version!r}, accepted: Hash or MultiHash, 1 or 2"
        )
    limit = _MAX_PATHS if kind == "MultiHash" else 1
    if not isinstance(paths, list) or not 1 <= len(paths) <= limit:
        raise bad_request(f"partitionKey has paths {paths!r}, accepted for {kind}: 1 to {limit}")
    for path in paths:
        if not isinstance(path, str) or not path.startswith("/") or len(path) < 2:
            raise bad_request(f"partitionKey has path {path!r}, accepted: /property or /property/nested")
    return KeyDefinition(tuple(paths), kind, version)


def canonical(key: Sequence[Component]) -> str:
    """One text per key, however its JSON was written."""
    values: list[object] = [
        {} if value is UNSET else float(value) if type(value) is int else value for value in key
    ]
    return msgspec.json.encode(values).decode()


def same_key(left: tuple[Component, ...], right: tuple[Component, ...]) -> bool:
    """Whether two keys are one; Python alone would take true for 1."""
    return left == right and [type(part) is bool for part in left] == [type(part) is bool for part in right]


def identity_reader(definition: KeyDefinition) -> Callable[[bytes], Identity]:
    """Reads id and partition key of a document without decoding the rest of it.

    The reader raises CosmosError (400) for what is no document, or has no id that may be one;
    whether its key may be one is for the caller to check.
    """
    trails = [path[1:].split("/") for path in definition.paths]
    names = ["id", *dict.fromkeys(trail[0] for trail in trails if trail[0] != "id")]
    attributes = {name: f"f{index}" for index, name in enumerate(names)}
    fields = [(attribute, Any, UNSET) for attribute in attributes.values()]
    wanted = msgspec.defstruct(
        "Wanted", fields, rename={attribute: name for name, attribute in attributes.items()}, gc=False
    )
    decode = msgspec.json.Decoder(wanted).decode
    get_id = attrgetter("f0")
    steps = [(attrgetter(attributes[trail[0]]), trail[1:]) for trail in trails]
    get_only = steps[0][0] if len(steps) == 1 and not steps[0][1] else None

    def read(body: bytes) -> Identity:
        try:
            document = decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise bad_request(f"The document is not valid: {error}") from None
        name = check_id(get_id(document))
        if get_only is not None:
            return name, (get_only(document),)
        return name, tuple(_follow(get(document), trail) for get, trail in steps)

    return read


def check_id(name: object) -> str:
    """A document's id, if it may be one. Raises CosmosError (400)."""
    if isinstance(name, str) and _SHORT_ID.fullmatch(name):
        return name
    if not isinstance(name, str) or not name:
        raise bad_request(
            "The input content is invalid because the required properties - 'id; ' - are missing"
            if name is UNSET
            else f"The id is {name!r}, accepted: a string that is not empty"
        )
    if not _FORBIDDEN_IN_ID.isdisjoint(name):
        raise bad_request(f"The id {name!r} holds one of / \\ ? # which are not accepted")
    if len(name) * 4 > MAX_ID_BYTES and len(name.encode()) > MAX_ID_BYTES:
        raise bad_request(f"The id is longer than {MAX_ID_BYTES} bytes")
    return name


def mismatch() -> CosmosError:
    return bad_request(
        "PartitionKey extracted from document doesn't match the one specified in the header", substatus=1001
    )


def _follow(value: Any, trail: Sequence[str]) -> Any:
    for name in trail:
        value = value.get(name, UNSET) if isinstance(value, dict) else UNSET
    return value
