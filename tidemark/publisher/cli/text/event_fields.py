"""Application properties, message id and content type of an event: fixed, or from the fields of its line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from tidemark.publisher.errors import PublishSettingsError

_Value = str | int | float | bool
_LONG = 2**63  # the end of the range of AMQP's long


class EventFields(Struct, frozen=True):
    """`properties` have a fixed value, `fields` map further properties to fields of the line; `id_field` is the message id."""

    properties: Mapping[str, str] = {}
    fields: Mapping[str, str] = {}
    id_field: str | None = None
    content_type: str | None = None

    @classmethod
    def of_options(
        cls,
        properties: Sequence[str],
        fields: Sequence[str],
        id_field: str | None,
        content_type: str | None,
    ) -> EventFields:
        """From texts NAME=VALUE, and NAME=FIELD or FIELD. Raises PublishSettingsError."""
        fixed = _pairs("--property", properties, "NAME=VALUE")
        named = _pairs(
            "--property-field", [text if "=" in text else f"{text}={text}" for text in fields], "NAME=FIELD"
        )
        if both := fixed.keys() & named.keys():
            raise PublishSettingsError(
                f"--property and --property-field both give {', '.join(sorted(both))}; accepted: each name once"
            )
        return cls(fixed, named, id_field, content_type)

    def read(self, body: bytes, line: int) -> tuple[dict[str | bytes, _Value], str | None]:
        """The application properties and the message id of a line.

        Raises PublishSettingsError naming the line for a field that is no single value.
        """
        properties: dict[str | bytes, _Value] = dict(self.properties.items())
        message_id = None
        if self.fields or self.id_field is not None:
            document = read_object(body, line)
            for name, field in self.fields.items():
                if (value := _value(document, field, line)) is not None:
                    properties[name] = value
            if self.id_field is not None:
                message_id = text_of(body, document, self.id_field, line, "the message id")
        return properties, message_id


def read_object(body: bytes, line: int) -> dict[str, object]:
    """The JSON object of a line. Raises PublishSettingsError naming it."""
    try:
        document = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise PublishSettingsError(f"line {line} is not JSON ({error}): {_beginning(body)}") from None
    return document if isinstance(document, dict) else {}


def text_of(body: bytes, document: Mapping[str, object], field: str, line: int, role: str) -> str:
    """A text, or the JSON of a number, true or false. Raises PublishSettingsError naming the line."""
    value = document.get(field)
    if value is None or isinstance(value, dict | list):
        raise PublishSettingsError(
            f"line {line} has no text or number in '{field}', {role}: {_beginning(body)}"
        )
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _value(document: Mapping[str, object], field: str, line: int) -> _Value | None:
    """None where the field is absent or null: the event has no such property."""
    value = document.get(field)
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int) and -_LONG <= value < _LONG:
        return value
    raise PublishSettingsError(
        f"line {line} has {_beginning(msgspec.json.encode(value))} in '{field}', an application property; accepted: a text, "
        "a number of up to 64 bits, true, false; null for none"
    )


def _pairs(option: str, given: Sequence[str], form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name or name in pairs:
            raise PublishSettingsError(f"{option} is {text!r}, accepted: {form}, each name once")
        pairs[name] = value
    return pairs


def _beginning(body: bytes) -> str:
    text = body.decode(errors="replace")
    return text if len(text) <= 80 else f"{text[:80]}..."
