"""How the query language compares and orders values of different types.

UNSET is its `undefined`: the result of a missing property and of comparing what cannot be.
"""

from typing import Any

from msgspec import UNSET

_UNDEFINED, _NULL, _BOOLEAN, _NUMBER, _STRING, _ARRAY, _OBJECT = range(7)


def rank(value: Any) -> int:
    """The place of a value's type in the order of types."""
    if value is UNSET:
        return _UNDEFINED
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return _BOOLEAN
    if isinstance(value, (int, float)):
        return _NUMBER
    if isinstance(value, str):
        return _STRING
    return _ARRAY if isinstance(value, list) else _OBJECT


def sort_key(value: Any) -> tuple[int, Any]:
    """A key for sorting; arrays and objects of one type keep the order they are found in."""
    place = rank(value)
    return place, value if place in (_BOOLEAN, _NUMBER, _STRING) else 0


def equal(left: Any, right: Any) -> Any:
    """True, False, or UNSET where one is undefined; values of different types are not equal."""
    if left is UNSET or right is UNSET:
        return UNSET
    return rank(left) == rank(right) and left == right


def ordered(left: Any, right: Any) -> int | None:
    """Below, at or above zero; None for values that have no order between them."""
    place = rank(left)
    if place != rank(right) or place in (_UNDEFINED, _ARRAY, _OBJECT):
        return None
    if place == _NULL or left == right:
        return 0
    return -1 if left < right else 1


def both(left: Any, right: Any) -> Any:
    """AND: false wins over undefined."""
    if left is False or right is False:
        return False
    return True if left is True and right is True else UNSET


def either(left: Any, right: Any) -> Any:
    """OR: true wins over undefined."""
    if left is True or right is True:
        return True
    return False if left is False and right is False else UNSET
