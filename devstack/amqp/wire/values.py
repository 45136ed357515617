"""Types of the AMQP wire that Python has no type for.

    null None            boolean bool         string str         binary bytes
    long int             double float         uuid uuid.UUID     list list
    map dict             and the classes below

Each class keeps the behaviour of its base, so that a decoded symbol compares equal to a
string and a decoded uint to a number; the class only decides how a value is encoded.
"""

from dataclasses import dataclass
from typing import Any


class UByte(int):
    """0 to 2**8 - 1."""

    __slots__ = ()


class UShort(int):
    """0 to 2**16 - 1."""

    __slots__ = ()


class UInt(int):
    """0 to 2**32 - 1."""

    __slots__ = ()


class ULong(int):
    """0 to 2**64 - 1."""

    __slots__ = ()


class Byte(int):
    """-2**7 to 2**7 - 1."""

    __slots__ = ()


class Short(int):
    """-2**15 to 2**15 - 1."""

    __slots__ = ()


class Int(int):
    """-2**31 to 2**31 - 1."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970-01-01 UTC."""

    __slots__ = ()


class Float(float):
    """A binary32 number."""

    __slots__ = ()


class Char(str):
    """One Unicode character."""

    __slots__ = ()


class Symbol(str):
    """A name in ASCII."""

    __slots__ = ()


class Decimal32(bytes):
    """The 4 bytes of an IEEE 754 decimal, not interpreted."""


class Decimal64(bytes):
    """The 8 bytes of an IEEE 754 decimal, not interpreted."""


class Decimal128(bytes):
    """The 16 bytes of an IEEE 754 decimal, not interpreted."""


class Array(list[Any]):
    """Elements of one and the same type."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor, which on the wire is a ULong or a Symbol."""

    descriptor: Any
    value: Any
