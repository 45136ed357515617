"""Any value survives the wire, any cut of a stream gives the same frames, and no bytes break the decoder."""

import asyncio
import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devstack.amqp.connection import Connection
from devstack.amqp.wire.decoder import decode, skip
from devstack.amqp.wire.encoder import encode
from devstack.amqp.wire.errors import NOT_FOUND, AmqpError, ProtocolError
from devstack.amqp.wire.frames import AMQP_HEADER, SASL_HEADER, FrameParser, encode_frame
from devstack.amqp.wire.messages import Request, batched, sections
from devstack.amqp.wire.performatives import (
    Attach,
    Begin,
    Close,
    Disposition,
    Flow,
    Open,
    Transfer,
    decode_performative,
    encode_performative,
)
from devstack.amqp.wire.values import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from devstack.service_bus.messages.messages import Sent
from tests.support.servers.transport import RecordingTransport


def integers(kind, bits, *, signed):
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high).map(kind)


characters = st.characters(exclude_categories=["Cs"])
text = st.text(characters, max_size=300)
symbols = st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol)

scalars = {
    "null": st.none(),
    "boolean": st.booleans(),
    "ubyte": integers(UByte, 8, signed=False),
    "ushort": integers(UShort, 16, signed=False),
    "uint": integers(UInt, 32, signed=False),
    "ulong": integers(ULong, 64, signed=False),
    "byte": integers(Byte, 8, signed=True),
    "short": integers(Short, 16, signed=True),
    "int": integers(Int, 32, signed=True),
    "long": integers(int, 64, signed=True),
    "timestamp": integers(Timestamp, 64, signed=True),
    "float": st.floats(width=32, allow_nan=False).map(Float),
    "double": st.floats(allow_nan=False),
    "decimal32": st.binary(min_size=4, max_size=4).map(Decimal32),
    "decimal64": st.binary(min_size=8, max_size=8).map(Decimal64),
    "decimal128": st.binary(min_size=16, max_size=16).map(Decimal128),
    "char": characters.map(Char),
    "uuid": st.uuids(),
    "binary": st.binary(max_size=300),
    "string": text,
    "symbol": symbols,
}
scalar = st.one_of(*scalars.values())
values = st.recursive(
    scalar,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(st.one_of(text, st.uuids()), inner, max_size=6),
        st.builds(Described, st.one_of(scalars["ulong"], symbols), inner),
    ),
    max_leaves=20,
)
arrays = st.one_of(*(st.lists(kind, max_size=5).map(Array) for kind in scalars.values())) | st.one_of(
    st.lists(st.lists(scalar, max_size=4), max_size=4).map(Array),
    st.lists(st.dictionaries(text, scalar, max_size=3), max_size=4).map(Array),
    st.lists(st.lists(scalars["uint"], max_size=4).map(Array), max_size=4).map(Array),
    st.lists(scalars["int"].map(lambda value: Described(ULong(7), value)), max_size=4).map(Array),
)


def same(left, right):
    """Equal, and of the same types all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left), list(right)) and same(list(left.values()), list(right.values()))
    if isinstance(left, Described):
        return same(left.descriptor, right.descriptor) and same(left.value, right.value)
    return left == right


@given(st.one_of(values, arrays), st.binary(max_size=8))
def test_every_value_comes_back_as_it_was_with_its_type_and_nothing_behind_it_is_touched(value, behind):
    encoded = encode(value)

    decoded, end = decode(encoded + behind)

    assert same(value, decoded), (value, decoded)
    assert end == len(encoded)
    assert skip(encoded + behind, 0) == end


@pytest.mark.parametrize("name", sorted(scalars))
def test_the_extremes_of_every_type_come_back(name):
    @given(scalars[name])
    @settings(max_examples=20)
    def check(value):
        assert same(value, decode(encode(value))[0])

    check()


@given(values)
def test_a_value_that_is_cut_off_is_a_protocol_error(value):
    encoded = encode(value)
    for length in range(len(encoded)):
        with pytest.raises(ProtocolError):
            decode(encoded[:length])


@given(st.binary(max_size=60))
@settings(max_examples=500)
def test_garbage_is_a_value_or_a_protocol_error(data):
    for read in (decode, skip, decode_performative):
        with contextlib.suppress(ProtocolError):
            read(data) if read is not skip else read(data, 0)


@given(values, st.data())
def test_a_damaged_value_is_a_value_or_a_protocol_error(value, data):
    encoded = bytearray(encode(value))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        decode(bytes(encoded))


@given(st.binary(max_size=80))
@settings(max_examples=300)
def test_garbage_in_place_of_a_message_is_a_message_or_a_protocol_error(data):
    for prefix in (b"", b"\x00\x53\x72", b"\x00\x53\x73\xc0", b"\x00\x53\x75\xa0"):
        for read in (lambda payload: list(sections(payload)), batched, Request.parse, Sent.parse):
            with contextlib.suppress(ProtocolError):
                read(prefix + data)


def test_nesting_without_end_is_a_protocol_error():
    with pytest.raises(ProtocolError, match="nested"):
        decode(b"\x00" * 100_000)
    with pytest.raises(ProtocolError):
        skip(b"\x00" * 100_000, 0)


def test_an_array_of_billions_of_nothing_is_a_protocol_error():
    with pytest.raises(ProtocolError, match="array"):
        decode(b"\xf0" + struct.pack(">II", 5, 2**32 - 1) + b"\x40")


performatives = st.sampled_from(
    [
        Open("client", hostname="localhost", max_frame_size=65536),
        Begin(None, 0, 5000, 5000),
        Attach("link", 1, role=False, target=Described(ULong(0x29), ["queue"]), initial_delivery_count=0),
        Attach("link", 2, role=True, source=Described(ULong(0x28), ["queue"])),
        Flow(1, 5000, 1, 5000, handle=2, delivery_count=0, link_credit=10),
        Transfer(1, delivery_id=0, delivery_tag=b"t", message_format=0, settled=False),
        Disposition(role=True, first=1, last=2, settled=True, state=Described(ULong(0x24), [])),
        Close(),
    ]
)


@given(performatives)
def test_a_performative_is_written_with_all_its_fields_and_comes_back(performative):
    encoded = encode_performative(performative)

    fields = decode(encoded)[0].value

    assert len(fields) == len(performative)
    assert decode_performative(encoded) == (performative, len(encoded))


streams = st.lists(
    st.tuples(st.integers(0, 3), performatives, st.binary(max_size=40)).map(lambda f: encode_frame(*f)),
    max_size=8,
).map(lambda frames: SASL_HEADER.encode() + AMQP_HEADER.encode() + b"".join(frames))


@given(streams, st.data())
def test_a_stream_gives_the_same_frames_however_it_is_cut(stream, data):
    whole = FrameParser(65536).feed(stream)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))

    pieces, by_byte = FrameParser(65536), FrameParser(65536)
    in_pieces = [
        item
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for item in pieces.feed(stream[start:end])
    ]

    assert in_pieces == whole
    assert [item for byte in stream for item in by_byte.feed(bytes((byte,)))] == whole


class RefusingService:
    def attach_sink(self, link):
        raise AmqpError(NOT_FOUND, f"no {link.address}")

    attach_source = attach_sink


@given(streams, st.data())
@settings(max_examples=150)
def test_whatever_a_peer_sends_the_connection_goes_on_or_closes_with_an_error(stream, data):
    damaged = bytearray(stream)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    lost = []

    async def run():
        connection = Connection(
            lambda _: RefusingService(), container_id="test", max_message_size=1000, lost=lost.append
        )
        transport = RecordingTransport()
        connection.connection_made(transport)
        connection.data_received(bytes(damaged))
        connection.connection_lost(None)
        return connection

    assert lost == [asyncio.run(run())]


@pytest.mark.parametrize("length", range(248, 260))
def test_values_around_the_limit_of_the_short_encodings_come_back(length):
    for value in (
        b"x" * length,
        ["x" * length],
        {"k": "x" * length},
        Array([b"x" * length]),
        [None] * length,
    ):
        assert same(value, decode(encode(value))[0])


def test_a_compound_whose_size_and_count_disagree_is_a_protocol_error():
    with pytest.raises(ProtocolError, match="its size says"):
        decode(b"\xc0\x03\x01\x40\x40")
    with pytest.raises(ProtocolError, match="its size says"):
        decode(b"\xe0\x04\x01\x56\x01\x01")


def test_a_section_with_an_odd_descriptor_is_a_protocol_error():
    with pytest.raises(ProtocolError, match="no message section"):
        list(sections(b"\x00\xc0\x01\x00\x40"))
