"""Bodies of all formats, and a registry in memory."""

import json

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from consumer.decoding.bodies import Definition
from consumer.formats import OPTIONS, DecoderName
from consumer.model import Event
from tidemark.foundation.errors import UnavailableError

ID = "0123456789abcdef0123456789abcdef"
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "long"}],
}
SETTINGS = {"SchemaRegistry__fullyQualifiedNamespace": "orders.servicebus.windows.net"}


def event(body=b"", content_type=None, *, encoding=None, unreadable=None, **properties):
    """An event. `ce_id` is the property `ce_id`, and `content_type` that of AMQP."""
    return Event(
        "0",
        7,
        "x",
        0.0,
        body,
        properties=properties,
        unreadable=unreadable,
        content_type=content_type,
        content_encoding=encoding,
    )


def read_decoder(table):
    """The format and options of a table of the file, such as `{"format": "avro"}`."""
    name = DecoderName(table.get("format", "auto"))
    given = {option: value for option, value in table.items() if option != "format"}
    return name, msgspec.convert(given, OPTIONS[name])


class MemoryRegistry:
    """A Source. While it is `down` it has no answer; `asked` are the ids that it was asked for."""

    def __init__(self, schemas=None):
        self.schemas = {ID: json.dumps(ORDER)} if schemas is None else schemas
        self.asked = []
        self.down = False

    async def fetch(self, ids, into):
        self.asked += sorted(ids)
        if self.down:
            raise UnavailableError("the registry does not answer")
        for each in ids:
            found = self.schemas.get(each)
            into(each, Definition(found) if isinstance(found, str) else found)


def varint(number):
    """As Avro and Protobuf write a number that is not negative."""
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def zigzag(number):
    """A long of Avro, which may have 64 bits."""
    return varint(((number << 1) ^ (number >> 63)) & (2**64 - 1))


def record(*types):
    """The text of a schema with the fields f0, f1, ..."""
    fields = [{"name": f"f{index}", "type": each} for index, each in enumerate(types)]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def message_class(name):
    """The class of a message in `descriptors`, by a pool of its own."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def descriptors():
    """A descriptor set as protoc writes it: shop.Order with fields of all kinds, shop.Node within itself, shop.Order.Line."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.enum_type.add(name="State").value.add(name="NEW", number=0)
    file.enum_type[0].value.add(name="PAID", number=1)
    order = file.message_type.add(name="Order")
    fields = ["id:STRING", "big:INT64", "small:INT32", "data:BYTES", "price:DOUBLE", "paid:BOOL", "u:UINT64"]
    for number, field in enumerate(fields, 1):
        name, _, kind = field.partition(":")
        order.field.add(name=name, number=number, type=getattr(kinds, f"TYPE_{kind}"), label=1)
    order.field.add(name="state", number=8, type=kinds.TYPE_ENUM, type_name=".shop.State", label=1)
    order.field.add(name="lines", number=9, type=kinds.TYPE_MESSAGE, type_name=".shop.Order.Line", label=3)
    order.field.add(
        name="at", number=10, type=kinds.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp", label=1
    )
    order.field.add(
        name="tags", number=11, type=kinds.TYPE_MESSAGE, type_name=".shop.Order.TagsEntry", label=3
    )
    order.nested_type.add(name="Line").field.add(name="n", number=1, type=kinds.TYPE_INT64, label=3)
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_INT32, label=1)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT64, label=1)
    node = file.message_type.add(name="Node")
    node.field.add(name="next", number=1, type=kinds.TYPE_MESSAGE, type_name=".shop.Node", label=1)
    file.dependency.append("google/protobuf/timestamp.proto")
    timestamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamp)
    return descriptor_pb2.FileDescriptorSet(file=[timestamp, file]).SerializeToString()
