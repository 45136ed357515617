"""Protobuf bodies by descriptor, without generated code. Pure."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
)

from consumer.decoding.bodies import GZIP, Format, finite
from consumer.formats import Integers, safe_integer
from consumer.model import Event, Rejection
from tidemark.foundation.errors import SettingsError

_INTEGERS: dict[Integers, Callable[[int], Any]] = {
    Integers.SAFE: safe_integer,
    Integers.NUMBER: int,
    Integers.TEXT: str,
}
_WITH_JSON_FORM = frozenset(
    f"google.protobuf.{name}"
    for name in (
        *("Any", "Duration", "Empty", "FieldMask", "ListValue", "Struct", "Timestamp", "Value"),
        *("BoolValue", "BytesValue", "DoubleValue", "FloatValue", "Int32Value", "Int64Value"),
        *("StringValue", "UInt32Value", "UInt64Value"),
    )
)
"""Messages that JSON writes in a form of their own (ProtoJSON): a timestamp as ISO 8601, a wrapper as its value."""


class ProtobufMessages:
    """The messages in descriptor sets. `message` is the one of bodies that name none."""

    def __init__(self, sets: Iterable[tuple[str, bytes]], message: str, integers: Integers) -> None:
        """`sets` are (name, content), as `protoc --include_imports --descriptor_set_out` writes them. Raises SettingsError."""
        self._pool = descriptor_pool.DescriptorPool()
        self._files: dict[str, Any] = {}
        self._integers = _INTEGERS[integers]
        self._readers: dict[str, dict[int, tuple[str, Callable[[Any], Any]]]] = defaultdict(dict)
        """By message and number of a field."""
        for name, content in sets:
            self._add(name, content)
        try:
            descriptor = self._pool.FindMessageTypeByName(message)
        except KeyError:
            names = ", ".join(sorted(self._names()))
            raise SettingsError(
                f"the Protobuf message '{message}' is not in the descriptors; accepted: {names[:500]}"
            ) from None
        self._message = message_factory.GetMessageClass(descriptor)
        self._file = descriptor.file.name

    def _add(self, name: str, content: bytes) -> None:
        try:
            described = descriptor_pb2.FileDescriptorSet.FromString(content)
            for file in described.file:
                self._pool.Add(file)
                self._files[file.name] = file
            for file in described.file:
                self._pool.FindFileByName(file.name)  # which only now looks at what the file imports
        except Exception as error:  # DecodeError, TypeError, KeyError
            raise SettingsError(
                f"'{name}' is no complete descriptor set ({type(error).__name__}: {error}); expected the output of protoc"
                " --include_imports --descriptor_set_out"
            ) from error
        if not described.file:
            raise SettingsError(
                f"'{name}' has no descriptors; expected the output of protoc --descriptor_set_out"
            )

    def _names(self) -> Iterable[str]:
        for file in self._files.values():
            prefix = f"{file.package}." if file.package else ""
            yield from (f"{prefix}{message.name}" for message in file.message_type)

    def decode(self, body: bytes, kind: Any = None, label: str = "") -> dict[str, Any] | Rejection:
        """The message in all of the body. Raises NotFiniteError, ValueError for a time beyond the year 9999."""
        message = (kind or self._message)()
        where = f" ({label})" if label else ""
        try:
            message.ParseFromString(body)
        except Exception as error:  # DecodeError; nothing but MemoryError may leave
            if isinstance(error, MemoryError):
                raise
            name = message.DESCRIPTOR.full_name
            return Rejection("protobuf", f"the body is no message {name}: {error}{where}"[:1000])
        document = self._document(message)
        if body and not document:  # short garbage is read as fields that nobody knows
            name = message.DESCRIPTOR.full_name
            return Rejection("protobuf", f"the body has no field of the message {name}{where}")
        return document

    def with_indexes(self, label: str) -> _Indexed:
        """Reads bodies that begin with the path of their message in the file of `message`."""
        return _Indexed(self, label)

    def at(self, path: Sequence[int]) -> Any:
        """The class of the message at a path: [1, 0] is the first message within the second of the file. Raises IndexError."""
        file = self._files[self._file]
        descriptor, name = file.message_type[path[0]], file.package
        name = f"{name}.{descriptor.name}" if name else descriptor.name
        for index in path[1:]:
            descriptor = descriptor.nested_type[index]
            name = f"{name}.{descriptor.name}"
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))

    def _document(self, message: Any) -> dict[str, Any]:
        readers = self._readers[message.DESCRIPTOR.full_name]
        document: dict[str, Any] = {}
        for field, value in message.ListFields():
            reader = readers.get(field.number)
            if reader is None:
                reader = readers[field.number] = field.name, self._reader(field)
            name, read = reader
            document[name] = read(value)
        return document

    def _reader(self, field: Any) -> Callable[[Any], Any]:
        """What makes the value of a field one of JSON. Descriptors are slow to ask, so each is asked once."""
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            of_value = self._reader_of_one(field.message_type.fields_by_name["value"])
            return lambda entries: {_key(key): of_value(entries[key]) for key in entries}
        one = self._reader_of_one(field)
        return (lambda values: [one(value) for value in values]) if field.is_repeated else one

    def _reader_of_one(self, field: Any) -> Callable[[Any], Any]:
        kind = field.cpp_type
        if kind == field.CPPTYPE_MESSAGE:
            return self._with_json_form if field.message_type.full_name in _WITH_JSON_FORM else self._document
        if kind == field.CPPTYPE_STRING and field.type == field.TYPE_BYTES:
            return lambda data: base64.b64encode(data).decode()
        if kind in {field.CPPTYPE_INT64, field.CPPTYPE_UINT64}:
            return self._integers
        if kind in {field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT}:
            return finite
        if kind == field.CPPTYPE_ENUM:
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            return lambda number: names.get(number, number)
        return _same

    def _with_json_form(self, message: Any) -> Any:
        return json_format.MessageToDict(
            message, preserving_proto_field_name=True, descriptor_pool=self._pool
        )


def _same(value: Any) -> Any:
    return value


def _key(key: Any) -> str:
    """A key of a map as JSON has it."""
    return str(key).lower() if isinstance(key, bool) else str(key)


class _Indexed:
    def __init__(self, messages: ProtobufMessages, label: str) -> None:
        self._messages = messages
        self._label = label

    def decode(self, body: bytes, start: int) -> dict[str, Any] | Rejection:
        try:
            count, at = _varint(body, start)
            path = []
            for _ in range(min(count, 65)):  # none is nested so deep
                index, at = _varint(body, at)
                path.append(index)
            kind = self._messages.at(path or [0])
        except (IndexError, ValueError):
            return Rejection(
                "protobuf", f"the body names a message that is not in the descriptors ({self._label})"
            )
        return self._messages.decode(body[at:], kind, self._label)


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A number as Kafka's serialisers write it: zigzag. Raises IndexError, ValueError."""
    value = 0
    for shift in range(0, 35, 7):
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            number = (value >> 1) ^ -(value & 1)
            if number < 0:
                break
            return number, at
    raise ValueError("no index")


class ProtobufFormat(Format):
    def __init__(self, messages: ProtobufMessages) -> None:
        self._messages = messages

    def shows_packing(self, event: Event) -> bool:
        return event.body.startswith(GZIP)  # no tag of a field has the wire type of its first byte

    def decode(self, event: Event) -> Sequence[Any] | Rejection:
        if not event.body:
            return Rejection("empty", "the body is empty")
        document = self._messages.decode(event.body)
        return document if isinstance(document, Rejection) else [document]
