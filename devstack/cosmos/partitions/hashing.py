"""Effective partition keys: the place of a partition key value on the line that ranges cut up.

Three schemes: version 1 and 2 of "Hash", and "MultiHash" for hierarchical keys. All three give
upper-case hexadecimal text that sorts as the service sorts it.

Version 1 follows .NET where the Python and JavaScript SDKs disagree with each other (negative
and large whole numbers are hashed as doubles; a final zero byte is written).
"""

import struct
from collections.abc import Sequence

import mmh3
from msgspec import UNSET, UnsetType

Component = str | float | bool | None | UnsetType
"""One value of a partition key; UNSET is a property that the document does not have."""

V1_STRING_LIMIT = 100  # characters that version 1 looks at
_UNDEFINED, _NULL, _FALSE, _TRUE, _NUMBER, _STRING = 0x00, 0x01, 0x02, 0x03, 0x05, 0x08
_SIGN = 1 << 63
_MASK = (1 << 64) - 1


def hash_v2(components: Sequence[Component]) -> str:
    """32 hexadecimal digits; the highest two bits are zero, so all keys sort below "FF"."""
    return _murmur_128(b"".join(_typed(component, b"\xff") for component in components))


def hash_multi(components: Sequence[Component]) -> str:
    """32 digits per component. Fewer components than the key has paths give a prefix."""
    return "".join(_murmur_128(_typed(component, b"\xff")) for component in components)


def hash_v1(component: Component) -> str:
    """Murmur 32 of the value, then the value itself; only its first 100 characters count."""
    if isinstance(component, str):
        component = component[:V1_STRING_LIMIT]
    hashed = mmh3.hash(_typed(component, b"\x00"), 0, signed=False)
    return (encode_number(float(hashed)) + _encoded(component)).hex().upper()


def encode_number(value: float) -> bytes:
    """Version 1's binary form: 8 bits, then 7 bits a byte with a continuation bit."""
    bits = int.from_bytes(struct.pack(">d", value))
    payload = (~bits + 1) & _MASK if bits & _SIGN else bits ^ _SIGN
    encoded = bytearray([_NUMBER, payload >> 56])
    payload = (payload << 8) & _MASK
    chunk = 0
    first = True
    while payload:
        if not first:
            encoded.append(chunk)
        first = False
        chunk = (payload >> 56) | 0x01
        payload = (payload << 7) & _MASK
    encoded.append(chunk & 0xFE)
    return bytes(encoded)


def _murmur_128(data: bytes) -> str:
    digest = bytearray(mmh3.hash_bytes(data, 0, True))
    digest.reverse()
    digest[0] &= 0x3F
    return digest.hex().upper()


def _typed(component: Component, end_of_string: bytes) -> bytes:
    """The bytes that are hashed: a type, and the value if the type does not tell it."""
    if isinstance(component, str):
        return bytes([_STRING]) + component.encode() + end_of_string
    if component is True:
        return bytes([_TRUE])
    if component is False:
        return bytes([_FALSE])
    if component is None:
        return bytes([_NULL])
    if component is UNSET:
        return bytes([_UNDEFINED])
    return bytes([_NUMBER]) + struct.pack("<d", component)


def _encoded(component: Component) -> bytes:
    """Version 1's binary form of a value."""
    if isinstance(component, str):
        raw = component.encode()
        cut = raw if len(raw) <= V1_STRING_LIMIT else raw[: V1_STRING_LIMIT + 1]
        end = b"\x00" if cut is raw else b""
        return bytes([_STRING]) + bytes(min(byte + 1, 0xFF) for byte in cut) + end
    if component is None or isinstance(component, bool) or component is UNSET:
        return _typed(component, b"")
    return encode_number(float(component))
