"""What steps get of a body."""

import pytest

from consumer.definition.bodies import BodyReader
from consumer.model import Event, Rejection


class Texts:
    """A decoder of texts, whose schemas are named by the body."""

    def __repr__(self):
        return "texts"  # a part of the test's name, which must be the same in every process

    def decode(self, event):
        return [event.body.decode()]

    def missing(self, events):
        return {event.body.decode() for event in events}

    async def load(self, ids, *, deadline):
        self.loaded = ids


def event(body, **others):
    return Event("0", 1, "1", 0.0, body, **others)


@pytest.mark.parametrize(
    ("body", "inner", "expected"),
    [
        (b'{"a": 1}', None, [{"a": 1}]),
        (b'[{"a": 1}]', None, [[{"a": 1}]]),
        (b"\xef\xbb\xbf[1]", None, [[1]]),
        (b"null", None, [None]),
        (b"", None, [None]),
        (b" \n", None, [None]),
        (b"", Texts(), [None]),
        (b"null", Texts(), ["null"]),
        (b"[1,]", None, "json"),
        (b"\x1f\x8b\x00", None, "encoding"),
    ],
    ids=str,
)
def test_a_body_is_any_json_value_or_what_its_decoder_says(body, inner, expected):
    found = BodyReader(inner).decode(event(body))

    assert (found.reason if isinstance(found, Rejection) else found) == expected


def test_an_unreadable_message_is_no_tombstone():
    assert BodyReader(None).decode(event(b"", unreadable="an AMQP value")).reason == "unreadable"


async def test_schemas_of_the_decoder_within_are_loaded_but_for_events_without_a_body():
    inner = Texts()
    reader = BodyReader(inner)
    ids = reader.missing([event(b""), event(b"x")])
    await reader.load(ids, deadline=1.0)

    assert inner.loaded == {"x"}
    assert BodyReader(None).missing([event(b"x")]) == ()
