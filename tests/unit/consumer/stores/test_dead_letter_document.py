"""A dead letter as JSON and back."""

import msgspec
import pytest

from consumer.errors import UnreadableError
from consumer.model import DeadLetter, Event, Rejection
from consumer.stores.dead_letter_document import event_of, from_document, position, to_document


def dead_letter(body=b"{", **event):
    return DeadLetter("h", "g", Event("0", 7, "o", 1.5, body, **event), Rejection("not_json", "x"), 1, 2.5)


@pytest.mark.parametrize(
    "body", [b"", b"{", "zoë \u2028".encode(), b"\xff\x00", b"\0" * 1_000_000, b'"\\' * 500_000]
)
def test_a_letter_comes_back_and_a_megabyte_fits_a_document_whatever_its_bytes(body):
    encoded = msgspec.json.encode(to_document(dead_letter(body)))

    assert from_document(encoded, "here", "id") == dead_letter(body)
    assert len(encoded) < 1_500_000


def test_how_the_body_is_to_be_read_is_kept_and_absent_in_a_letter_of_an_older_version():
    letter = dead_letter(content_type="avro/binary+1", content_encoding="gzip")
    document = to_document(letter)
    older = {name: value for name, value in document.items() if not name.startswith("content_")}

    assert from_document(document, "here", "id") == letter
    assert from_document(older, "here", "id") == dead_letter()


def test_text_is_readable_in_the_document():
    assert to_document(dead_letter(b'{"a": 1'))["body"] == '{"a": 1'
    assert "body_base64" in to_document(dead_letter(b"\xff"))


@pytest.mark.parametrize(
    "properties", [{1: b"x"}, {"a": {(1, 2): 3}}, {"a": "\ud800"}, {"a": object}, {"a": {"b": b"\xff"}}]
)
def test_properties_json_has_no_word_for_do_not_hold_up_the_letter(properties):
    document = to_document(dead_letter(properties=properties))

    assert msgspec.json.decode(msgspec.json.encode(document)) == document


@pytest.mark.parametrize(
    "document", [{}, {"body": 1}, {**to_document(dead_letter()), "position": "x"}, {"body_base64": "!"}, b"{"]
)
def test_what_is_no_letter_is_refused(document):
    with pytest.raises(
        UnreadableError, match=r"document 'x' is no dead letter .* purge 'h~g~0~1'` deletes it"
    ):
        from_document(document, "document 'x'", "h~g~0~1")
    with pytest.raises(UnreadableError, match=r"is no dead letter .*: move or delete it$"):
        from_document(document, "document 'x'", "")
    with pytest.raises(UnreadableError, match=r"is no parked event .* purge --parked 'h~g~parked~0~1'`"):
        from_document(document, "document 'x'", "h~g~parked~0~1")


def test_positions_sort_as_text_by_partition_then_number():
    in_order = [("0", 99), ("0", 100), ("1", 2), ("10", 1), ("2", 0)]

    assert sorted(in_order, key=lambda each: position(*each)) == in_order


@pytest.mark.parametrize("number", [7, 2**63 - 1])
def test_an_id_names_its_event(number):
    assert event_of(f"h~g~0~{number}", "h", "g") == ("0", number)


@pytest.mark.parametrize(
    "number", [str(2**63), "x", "\u00b2", "9" * 5_000], ids=["more than SQL holds", "x", "2", "long"]
)
def test_an_id_without_a_number_that_a_store_holds_names_none(number):
    assert event_of(f"h~g~0~{number}", "h", "g") is None
    assert [event_of(each, "h", "g") for each in ("", "h~g~7", "H~g~0~7")] == [None] * 3
