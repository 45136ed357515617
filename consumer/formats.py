"""The formats of bodies, and the options of each. Pure.

A field with an app setting is annotated with the name of the setting, and a whole number with its lower bound too. In a file of
hubs the fields have the names that they have here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Struct, structs

REGISTRY = "CONSUMER_SCHEMA_REGISTRY"
CONFLUENT = "CONSUMER_CONFLUENT_REGISTRY"
FILES = "CONSUMER_SCHEMA_FILES"
NAMES = "CONSUMER_SCHEMA_NAMES"
MESSAGE = "CONSUMER_PROTOBUF_MESSAGE"
COLUMNS = "CONSUMER_CSV_COLUMNS"

SAFE = 1 << 53
"""Whole numbers up to here are exact in a double, which is what Cosmos DB and JavaScript keep of a number."""


class DecoderName(StrEnum):
    """The formats. docs/decoding.md has the table."""

    JSON = "json"
    AUTO = "auto"
    AVRO = "avro"
    AVRO_PREAMBLE = "avro_preamble"
    AVRO_SINGLE_OBJECT = "avro_single_object"
    AVRO_FILE = "avro_file"
    CONFLUENT = "confluent"
    PROTOBUF = "protobuf"
    CLOUDEVENTS = "cloudevents"
    CSV = "csv"
    TEXT = "text"
    RAW = "raw"


class Unpack(StrEnum):
    """Which bodies are unpacked."""

    AUTO = "auto"
    """Those whose AMQP property or application property `content-encoding` says so; and, in formats whose bodies cannot begin
    so, those with the first bytes of gzip or zstd."""
    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


class Integers(StrEnum):
    """How whole numbers of 64 bits are written."""

    SAFE = "safe"  # as numbers up to 2^53, beyond as text, so that no digit is lost
    NUMBER = "number"
    TEXT = "text"


def safe_integer(value: int) -> int | str:
    return value if -SAFE <= value <= SAFE else str(value)


class BodyOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of every format."""

    unpack: Annotated[Unpack, "CONSUMER_UNPACK"] = Unpack.AUTO
    unpack_limit: Annotated[int, "CONSUMER_UNPACK_LIMIT", 1024] = 4 << 20
    """Bytes of a body when unpacked. A larger one is a dead letter, and is unpacked no further than that. Chosen: twice what
    Cosmos DB takes as a document, because one body may be several."""


class JsonOptions(BodyOptions, frozen=True):
    unpack: Annotated[Unpack, "CONSUMER_UNPACK"] = Unpack.NONE
    arrays: Annotated[bool, "CONSUMER_JSON_ARRAYS"] = False
    """True: a body that is an array of objects is as many documents."""


class AvroFileOptions(BodyOptions, frozen=True):
    integers: Annotated[Integers, "CONSUMER_INTEGERS"] = Integers.SAFE


class AvroOptions(AvroFileOptions, frozen=True):
    registry: Annotated[str, REGISTRY] = "SchemaRegistry"
    """The name of the registry's connection: settings `<name>__fullyQualifiedNamespace` and so on."""


class SingleObjectOptions(AvroFileOptions, frozen=True):
    files: Annotated[tuple[str, ...], FILES] = ()
    """Paths of Avro schemas."""
    names: Annotated[tuple[str, ...], NAMES] = ()
    """Schemas of the registry, `group/name`, in all of their versions."""
    registry: Annotated[str, REGISTRY] = "SchemaRegistry"


class ProtobufOptions(BodyOptions, frozen=True):
    files: Annotated[tuple[str, ...], FILES] = ()
    """Paths of descriptor sets: `protoc --include_imports --descriptor_set_out=PATH`."""
    message: Annotated[str, MESSAGE] = ""
    """The full name of the message, `package.Name`."""
    integers: Annotated[Integers, "CONSUMER_INTEGERS"] = Integers.SAFE


class ConfluentOptions(ProtobufOptions, frozen=True):
    """`files` and `message` are needed for schemas of Protobuf only."""

    registry: Annotated[str, CONFLUENT] = "ConfluentRegistry"
    """The name of the registry's connection: the setting `<name>` has its address, `<name>__username` and `<name>__password`
    its credentials."""


class CsvOptions(BodyOptions, frozen=True):
    columns: Annotated[tuple[str, ...], COLUMNS] = ()
    """Names of the columns of bodies without a header row."""
    delimiter: Annotated[str, "CONSUMER_CSV_DELIMITER"] = ","


class CloudEventsOptions(AvroFileOptions, frozen=True):
    registry: Annotated[str, REGISTRY] = ""
    """For data in Avro: the name of the registry's connection; '' for none."""


class AutoOptions(CloudEventsOptions, frozen=True):
    """`files` has descriptor sets; they and `message` are needed for Protobuf only."""

    files: Annotated[tuple[str, ...], FILES] = ()
    message: Annotated[str, MESSAGE] = ""
    columns: Annotated[tuple[str, ...], COLUMNS] = ()
    delimiter: Annotated[str, "CONSUMER_CSV_DELIMITER"] = ","


OPTIONS: dict[DecoderName, type[BodyOptions]] = {
    DecoderName.JSON: JsonOptions,
    DecoderName.AUTO: AutoOptions,
    DecoderName.AVRO: AvroOptions,
    DecoderName.AVRO_PREAMBLE: AvroOptions,
    DecoderName.AVRO_SINGLE_OBJECT: SingleObjectOptions,
    DecoderName.AVRO_FILE: AvroFileOptions,
    DecoderName.CONFLUENT: ConfluentOptions,
    DecoderName.PROTOBUF: ProtobufOptions,
    DecoderName.CLOUDEVENTS: CloudEventsOptions,
    DecoderName.CSV: CsvOptions,
    DecoderName.TEXT: BodyOptions,
    DecoderName.RAW: BodyOptions,
}


def registry_of(options: BodyOptions) -> str:
    """The name of the registry's connection; '' for a decoder that asks none."""
    if isinstance(options, SingleObjectOptions) and not options.names:
        return ""
    return str(getattr(options, "registry", ""))


DECODER = "CONSUMER_DECODER"
SETTINGS = frozenset(
    option.type.__metadata__[0] for options in OPTIONS.values() for option in structs.fields(options)
)
"""The names of the settings of all formats."""
