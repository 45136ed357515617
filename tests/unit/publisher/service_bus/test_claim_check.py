"""Claims: names, marks and their verification."""

import pytest

from tidemark.publisher.service_bus.core.claims import (
    BLOB,
    SHA256,
    SIZE,
    ClaimSettings,
    add_claim,
    claim_of,
    reference_of,
    verify,
)
from tidemark.publisher.service_bus.core.errors import ClaimDamagedError

EMPTY_SHA = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_message_has_a_blob_of_its_own_and_equal_bodies_one_by_content():
    own, shared = ClaimSettings(), ClaimSettings(naming="content", prefix="x/")

    assert claim_of(b"", "a b/c", own).blob == "claims/message/a%20b%2Fc/e3b0c44298fc1c14"
    assert claim_of(b"", "1", shared) == claim_of(b"", "2", shared)
    assert claim_of(b"", "1", shared).blob == f"x/content/{EMPTY_SHA}"
    assert claim_of(b"", "1", own) == claim_of(b"", "1", own) != claim_of(b"x", "1", own)


def test_marks_are_read_back_as_the_sdk_delivers_them():
    claim = claim_of(b"body", "1", ClaimSettings())
    properties = add_claim({"own": 1}, claim)
    received = {
        key.encode(): value.encode() if isinstance(value, str) else value for key, value in properties.items()
    }
    reference = reference_of(received)

    assert properties["own"] == 1
    assert (reference.blob, reference.sha256, reference.size) == (claim.blob, claim.sha256, 4)
    assert verify(b"body", reference) == b"body"


@pytest.mark.parametrize("properties", [None, {}, {b"other": 1}])
def test_a_message_without_marks_is_no_claim(properties):
    assert reference_of(properties) is None


def test_another_body_than_was_sent_is_refused():
    reference = reference_of(add_claim({}, claim_of(b"body", "1", ClaimSettings())))
    with pytest.raises(ClaimDamagedError, match=r"holds 4 bytes with SHA-256 .* expected: 4 bytes"):
        verify(b"evil", reference)


def test_incomplete_marks_are_refused():
    with pytest.raises(ClaimDamagedError, match=f"refers to blob 'b', but its properties {SHA256}"):
        reference_of({BLOB: "b", SIZE: 4})


@pytest.mark.parametrize(
    ("options", "words"),
    [({"above": -1}, "above is -1"), ({"naming": "x"}, "naming is 'x', accepted: 'message'")],
)
def test_settings_are_checked(options, words):
    with pytest.raises(ValueError, match=words):
        ClaimSettings(**options)
