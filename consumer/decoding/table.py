"""The decoders: for each format its options, and how it is built. What a format needs is imported when it is built."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, structs

from consumer.decoding.bodies import (
    Definition,
    Format,
    NotFiniteError,
    PackedError,
    checked,
    content_type_of,
    media_type,
    packing_of,
    unpacked,
)
from consumer.decoding.cloud_events import BATCH, STRUCTURED, CloudEventsFormat
from consumer.decoding.json_body import JsonFormat
from consumer.decoding.rows import CsvFormat, RawFormat, TextFormat
from consumer.decoding.schemas import Schemas, Source
from consumer.formats import (
    FILES,
    MESSAGE,
    NAMES,
    OPTIONS,
    REGISTRY,
    AutoOptions,
    AvroFileOptions,
    AvroOptions,
    BodyOptions,
    CloudEventsOptions,
    ConfluentOptions,
    CsvOptions,
    DecoderName,
    JsonOptions,
    ProtobufOptions,
    SingleObjectOptions,
    Unpack,
)
from consumer.model import Event, Rejection
from consumer.ports import Decoder
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.version import install_hint

if TYPE_CHECKING:
    from consumer.decoding.protobuf import ProtobufMessages

EXTRA = "decoders"
"""Of cli/pyproject.toml, with the packages that formats need."""

PROTOBUF_TYPES = ("application/protobuf", "application/x-protobuf", "application/vnd.google.protobuf")
AVRO_TYPES = ("avro/binary", "application/avro", "application/vnd.apache.avro")
"""Content types without the id of a schema: the body then has to be a container file."""


class DecoderContext(Struct, frozen=True):
    """What a decoder gets besides its options. `clock` is monotonic, in seconds."""

    settings: Mapping[str, str]
    clock: Callable[[], float] = time.monotonic


class DecoderType(Struct, frozen=True):
    """`build` raises SettingsError for options that cannot work, and for a package that is missing."""

    options: type[BodyOptions]
    build: Callable[[Any, DecoderContext], Format]


class Guarded(Decoder):
    """A format as a Decoder: unpacks bodies, and raises nothing but MemoryError out of `decode`."""

    def __init__(self, reading: Format, options: BodyOptions) -> None:
        self.reading = reading
        self._options = options

    def decode(self, event: Event) -> Sequence[Any] | Rejection:
        if event.unreadable is not None:
            return Rejection("unreadable", event.unreadable)
        try:
            if not self.reading.has_document(event):
                return [None]  # the sink decides what that is: a delete, or a dead letter
            documents = self.reading.decode(self._unpacked(event))
        except MemoryError:  # the machine's fault, not the event's
            raise
        except PackedError as error:
            return Rejection("packed", f"the body cannot be unpacked: {error}")
        except NotFiniteError as error:
            return Rejection("number", str(error))
        except Exception as error:  # a body may be anything
            return Rejection("undecodable", f"decoding raised {type(error).__name__}: {error}"[:1000])
        if not isinstance(documents, Rejection):
            return checked(documents)
        return documents

    def missing(self, events: Sequence[Event]) -> Collection[str]:
        if self.reading.schemas is None:
            return ()
        ids = {schema_id for event in events if (schema_id := self._schema_of(event))}
        return self.reading.schemas.missing(ids) if ids else ()

    async def load(self, ids: Collection[str], *, deadline: float) -> None:
        await cast("Schemas", self.reading.schemas).load(ids, deadline=deadline)

    def _schema_of(self, event: Event) -> str:
        if event.unreadable is not None or not event.body:
            return ""
        try:
            return self.reading.schema_of(self._unpacked(event) if self.reading.schema_in_body else event)
        except MemoryError:
            raise
        except Exception:  # `decode` says what it is
            return ""

    def _unpacked(self, event: Event) -> Event:
        options = self._options
        packing = packing_of(event, options.unpack, self.reading.shows_packing)
        if not packing:
            return event
        return structs.replace(event, body=unpacked(event.body, packing, options.unpack_limit))


def build_decoder(name: DecoderName, options: BodyOptions, context: DecoderContext) -> Decoder | None:
    """The decoder of a format; None for JSON as sinks read it themselves, which is quicker. Raises SettingsError."""
    if options == JsonOptions():
        return None
    if options.unpack is Unpack.ZSTD:
        _need("zstandard", "bodies in zstd")
    return Guarded(DECODERS[name].build(options, context), options)


def _need(module: str, what: str) -> None:
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # a parent of it is missing
        spec = None
    if spec is None:
        raise SettingsError(f"{what} need the package {module.partition('.')[0]}: {install_hint(EXTRA)}")


def _json(options: JsonOptions, _: DecoderContext) -> Format:
    return JsonFormat(arrays=options.arrays)


def _by_id(
    options: AvroFileOptions, registry: str, context: DecoderContext, *, preamble: bool = False
) -> Format:
    _need("fastavro", "Avro bodies")
    from consumer.decoding import avro
    from consumer.decoding.registries import AzureRegistry

    schemas = Schemas(
        AzureRegistry(context.settings, registry), avro.avro_reader(options.integers), context.clock
    )
    return avro.SchemaFormat(avro.by_preamble if preamble else avro.by_content_type, schemas)


def _avro(options: AvroOptions, context: DecoderContext) -> Format:
    return _by_id(options, options.registry, context)


def _preamble(options: AvroOptions, context: DecoderContext) -> Format:
    return _by_id(options, options.registry, context, preamble=True)


def _file(options: AvroFileOptions, _: DecoderContext) -> Format:
    _need("fastavro", "Avro bodies")
    from consumer.decoding.avro import AvroFileFormat

    return AvroFileFormat(options)


def _single_object(options: SingleObjectOptions, context: DecoderContext) -> Format:
    _need("fastavro", "Avro bodies")
    from consumer.decoding import avro
    from consumer.decoding.avro_schemas import parse_schema
    from consumer.decoding.registries import NamedSchemas

    if not options.files and not options.names:
        raise SettingsError(
            f"the format {DecoderName.AVRO_SINGLE_OBJECT} has no schemas: set {FILES} (paths) or {NAMES} (group/name)"
        )
    read = avro.avro_reader(options.integers)
    known = {}
    for path in options.files:
        schema = parse_schema(_content(path), f"the schema in {path}", integers=options.integers)
        if isinstance(schema, Rejection):
            raise SettingsError(f"{FILES}: {schema.detail}")
        known[schema.fingerprint] = schema

    def mark(definition: Definition) -> str:
        parsed = read("", definition)
        return definition.text[:40] if isinstance(parsed, Rejection) else str(parsed.fingerprint)

    source: Source | None = None
    if options.names:
        source = NamedSchemas(context.settings, options.registry, options.names, mark)
    return avro.SchemaFormat(avro.by_fingerprint, Schemas(source, read, context.clock, known))


def _confluent(options: ConfluentOptions, context: DecoderContext) -> Format:
    _need("fastavro", "Avro bodies")
    from consumer.decoding import avro
    from consumer.decoding.registries import ConfluentRegistry

    messages = _messages(options) if options.files or options.message else None
    read = avro.confluent_reader(options.integers, messages.with_indexes if messages else None)
    registry = ConfluentRegistry(context.settings, options.registry)
    return avro.SchemaFormat(avro.by_confluent, Schemas(registry, read, context.clock))


def _messages(options: ProtobufOptions | AutoOptions) -> ProtobufMessages:
    _need("google.protobuf", "Protobuf bodies")
    from consumer.decoding.protobuf import ProtobufMessages

    if not options.files or not options.message:
        raise SettingsError(
            f"Protobuf bodies need a descriptor set and the name of their message: set {FILES} and {MESSAGE}"
        )
    sets = [(path, _content(path)) for path in options.files]
    return ProtobufMessages(sets, options.message, options.integers)


def _protobuf(options: ProtobufOptions | AutoOptions, _: DecoderContext) -> Format:
    messages = _messages(options)
    from consumer.decoding.protobuf import ProtobufFormat

    return ProtobufFormat(messages)


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(f"{FILES}: '{path}' cannot be read: {error.strerror or error}") from None


def _cloud_events(options: CloudEventsOptions, context: DecoderContext) -> Format:
    if not options.registry:
        return CloudEventsFormat(_Unset(f"for Avro, set {REGISTRY} to the name of a registry's connection"))
    return CloudEventsFormat(_by_id(options, options.registry, context))


def _csv(options: CsvOptions | AutoOptions, _: DecoderContext) -> Format:
    return CsvFormat(options.columns, options.delimiter)


class _Unset(Format):
    """In place of a format whose options are not set."""

    def __init__(self, way: str) -> None:
        self._way = way

    def decode(self, event: Event) -> Rejection:
        return Rejection("content_type", f"the content type is '{content_type_of(event)[:100]}': {self._way}")


class AutoFormat(Format):
    """The format by the content type of each event; JSON for an unknown one, and for none."""

    def __init__(self, by_type: Mapping[str, Format], avro: Format, json: Format) -> None:
        self._by_type = by_type
        self._avro = avro
        self._json = json
        self.schemas = avro.schemas

    def _of(self, event: Event) -> Format:
        content_type = content_type_of(event)
        if not content_type:
            return self._json
        kind = media_type(content_type)
        with_id = kind.startswith("avro/binary") and "+" in kind
        return self._avro if with_id else self._by_type.get(kind, self._json)

    def shows_packing(self, event: Event) -> bool:
        return self._of(event).shows_packing(event)

    def decode(self, event: Event) -> Sequence[Any] | Rejection:
        return self._of(event).decode(event)

    def schema_of(self, event: Event) -> str:
        return self._of(event).schema_of(event)


def _auto(options: AutoOptions, context: DecoderContext) -> Format:
    avro: Format = _Unset(f"for Avro, set {REGISTRY} to the name of a registry's connection")
    if options.registry:
        avro = _by_id(options, options.registry, context)
    file: Format = _Unset(f"for Avro, {install_hint(EXTRA)}")
    if find_spec("fastavro"):
        file = _file(options, context)
    protobuf: Format = _Unset(f"for Protobuf, set {FILES} and {MESSAGE}")
    if options.files or options.message:
        protobuf = _protobuf(options, context)
    cloud_events = CloudEventsFormat(avro)
    by_type = {
        **dict.fromkeys((STRUCTURED, BATCH, "application/cloudevents"), cloud_events),
        **dict.fromkeys(PROTOBUF_TYPES, protobuf),
        **dict.fromkeys(AVRO_TYPES, file),
        "text/csv": _csv(options, context),
    }
    return AutoFormat(by_type, avro, JsonFormat())


_BUILDERS: dict[DecoderName, Callable[[Any, DecoderContext], Format]] = {
    DecoderName.JSON: _json,
    DecoderName.AUTO: _auto,
    DecoderName.AVRO: _avro,
    DecoderName.AVRO_PREAMBLE: _preamble,
    DecoderName.AVRO_SINGLE_OBJECT: _single_object,
    DecoderName.AVRO_FILE: _file,
    DecoderName.CONFLUENT: _confluent,
    DecoderName.PROTOBUF: _protobuf,
    DecoderName.CLOUDEVENTS: _cloud_events,
    DecoderName.CSV: _csv,
    DecoderName.TEXT: lambda _options, _context: TextFormat(),
    DecoderName.RAW: lambda _options, _context: RawFormat(),
}
DECODERS = {name: DecoderType(OPTIONS[name], build) for name, build in _BUILDERS.items()}
"""By the name of the format."""
