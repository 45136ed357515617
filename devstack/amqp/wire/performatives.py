"""The performatives of AMQP 1.0.

Every performative is written with its full field count: some clients read fields by
position without looking how many there are. Read, missing trailing fields are None.
"""

from typing import Any, NamedTuple, TypeAlias

from devstack.amqp.wire.decoder import decode
from devstack.amqp.wire.encoder import (
    Encoder,
    encode,
    encode_binary,
    encode_boolean,
    encode_list_of,
    encode_string,
    encode_symbol,
    encode_ubyte,
    encode_uint,
    encode_ulong,
    encode_ushort,
)
from devstack.amqp.wire.errors import INVALID_FIELD, ProtocolError
from devstack.amqp.wire.values import Array, Described, Symbol, ULong


class Open(NamedTuple):
    container_id: str
    hostname: str | None = None
    max_frame_size: int | None = None
    channel_max: int | None = None
    idle_time_out: int | None = None
    outgoing_locales: Any = None
    incoming_locales: Any = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Begin(NamedTuple):
    remote_channel: int | None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Attach(NamedTuple):
    """`role` is True for the end that receives; settle modes as in the specification."""

    name: str
    handle: int
    role: bool
    snd_settle_mode: int | None = None
    rcv_settle_mode: int | None = None
    source: Described | None = None
    target: Described | None = None
    unsettled: dict[Any, Any] | None = None
    incomplete_unsettled: bool | None = None
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Flow(NamedTuple):
    next_incoming_id: int | None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool | None = None
    echo: bool | None = None
    properties: dict[Any, Any] | None = None


class Transfer(NamedTuple):
    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool | None = None
    rcv_settle_mode: int | None = None
    state: Described | None = None
    resume: bool | None = None
    aborted: bool | None = None
    batchable: bool | None = None


class Disposition(NamedTuple):
    role: bool
    first: int
    last: int | None = None
    settled: bool | None = None
    state: Described | None = None
    batchable: bool | None = None


class Detach(NamedTuple):
    handle: int
    closed: bool | None = None
    error: Described | None = None


class End(NamedTuple):
    error: Described | None = None


class Close(NamedTuple):
    error: Described | None = None


class SaslMechanisms(NamedTuple):
    mechanisms: Any


class SaslInit(NamedTuple):
    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None


class SaslOutcome(NamedTuple):
    code: int
    additional_data: bytes | None = None


Performative: TypeAlias = (
    Open
    | Begin
    | Attach
    | Flow
    | Transfer
    | Disposition
    | Detach
    | End
    | Close
    | SaslMechanisms
    | SaslInit
    | SaslOutcome
)


class _Kind(NamedTuple):
    encode: Encoder
    accepts: tuple[type, ...]


_BINARY = _Kind(encode_binary, (bytes,))
_BOOLEAN = _Kind(encode_boolean, (bool,))
_DESCRIBED = _Kind(encode, (Described,))
_MAP = _Kind(encode, (dict,))
_STRING = _Kind(encode_string, (str,))
_SYMBOL = _Kind(encode_symbol, (str,))
_SYMBOLS = _Kind(encode, (Symbol, Array))
_UBYTE = _Kind(encode_ubyte, (int,))
_UINT = _Kind(encode_uint, (int,))
_ULONG = _Kind(encode_ulong, (int,))
_USHORT = _Kind(encode_ushort, (int,))


class _Layout(NamedTuple):
    kind: type[Any]
    fields: tuple[_Kind, ...]
    required: tuple[bool, ...]
    prefix: bytes  # descriptor


# Fields that we always state but that a peer may leave out.
_NULLABLE = {(Begin, "remote_channel"), (Flow, "next_incoming_id")}


def _layout(code: int, kind: type[Any], *fields: _Kind) -> tuple[int, _Layout]:
    names: tuple[str, ...] = kind._fields
    defaults: dict[str, Any] = kind._field_defaults
    required = tuple(name not in defaults and (kind, name) not in _NULLABLE for name in names)
    if len(names) != len(fields):
        raise AssertionError(f"{kind.__name__} has {len(names)} fields, {len(fields)} kinds are listed")
    return code, _Layout(kind, fields, required, b"\x00" + encode(ULong(code)))


_LAYOUTS: dict[int, _Layout] = dict(
    (
        _layout(
            0x10, Open, _STRING, _STRING, _UINT, _USHORT, _UINT, _SYMBOLS, _SYMBOLS, _SYMBOLS, _SYMBOLS, _MAP
        ),
        _layout(0x11, Begin, _USHORT, _UINT, _UINT, _UINT, _UINT, _SYMBOLS, _SYMBOLS, _MAP),
        _layout(
            0x12,
            Attach,
            *(_STRING, _UINT, _BOOLEAN, _UBYTE, _UBYTE, _DESCRIBED, _DESCRIBED, _MAP, _BOOLEAN),
            *(_UINT, _ULONG, _SYMBOLS, _SYMBOLS, _MAP),
        ),
        _layout(
            0x13, Flow, *(_UINT, _UINT, _UINT, _UINT, _UINT, _UINT, _UINT, _UINT, _BOOLEAN, _BOOLEAN, _MAP)
        ),
        _layout(
            0x14,
            Transfer,
            *(_UINT, _UINT, _BINARY, _UINT, _BOOLEAN, _BOOLEAN, _UBYTE, _DESCRIBED),
            *(_BOOLEAN, _BOOLEAN, _BOOLEAN),
        ),
        _layout(0x15, Disposition, _BOOLEAN, _UINT, _UINT, _BOOLEAN, _DESCRIBED, _BOOLEAN),
        _layout(0x16, Detach, _UINT, _BOOLEAN, _DESCRIBED),
        _layout(0x17, End, _DESCRIBED),
        _layout(0x18, Close, _DESCRIBED),
        _layout(0x40, SaslMechanisms, _SYMBOLS),
        _layout(0x41, SaslInit, _SYMBOL, _BINARY, _STRING),
        _layout(0x44, SaslOutcome, _UBYTE, _BINARY),
    )
)
_LAYOUT_OF: dict[type, _Layout] = {layout.kind: layout for layout in _LAYOUTS.values()}


def encode_performative(performative: Performative) -> bytes:
    """Descriptor and all fields."""
    layout = _LAYOUT_OF[type(performative)]
    return layout.prefix + encode_list_of(
        [
            b"\x40" if value is None else kind.encode(value)
            for kind, value in zip(layout.fields, performative, strict=True)
        ]
    )


def decode_performative(body: bytes) -> tuple[Performative, int]:
    """The performative at the beginning of a frame body, and where its payload begins.

    Raises ProtocolError for an unknown performative, a missing field and one of a wrong type.
    """
    described, end = decode(body)
    if not isinstance(described, Described) or not isinstance(described.value, list):
        raise ProtocolError("a frame body does not begin with a performative")
    descriptor, values = described.descriptor, described.value
    layout = _LAYOUTS.get(descriptor) if isinstance(descriptor, ULong) else None
    if layout is None:
        raise ProtocolError(f"{descriptor!r} is no performative that a listener takes")
    missing = len(layout.fields) - len(values)
    if missing < 0:
        raise ProtocolError(f"{layout.kind.__name__.lower()} has {len(values)} fields")
    values.extend([None] * missing)
    for index, value in enumerate(values):
        if value is None:
            if layout.required[index]:
                raise _bad_field(layout, index, value)
        elif not isinstance(value, layout.fields[index].accepts):
            raise _bad_field(layout, index, value)
    performative: Performative = layout.kind(*values)
    return performative, end


def _bad_field(layout: _Layout, index: int, value: Any) -> ProtocolError:
    name = layout.kind._fields[index].replace("_", "-")
    return ProtocolError(f"{name} of {layout.kind.__name__.lower()} is {value!r}", INVALID_FIELD)
