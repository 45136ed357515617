"""Which of two changes is the later one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.versions import (
    IncomparableError,
    Stamp,
    mark_value,
    order_in_event,
    stored_stamp,
)

A, B, ANEW = "ns/hub/0", "other/hub/0", "ns/hub/0@1764165000123"


@pytest.mark.parametrize(
    ("new", "old", "is_after"),
    [
        (Stamp(5, 9.0, A), Stamp(4, 9.5, A), True),  # of one source the number alone
        (Stamp(5, 9.0, A), Stamp(5, 9.0, A), False),
        (Stamp(5, 9.0, A, order_in_event(1)), Stamp(5, 9.0, A), True),
        (Stamp(1, 9.0, B), Stamp(500, 8.0, A), True),  # of two hubs the time
        (Stamp(500, 8.0, A), Stamp(1, 9.0, B), False),
        (Stamp(0, 9.0, ANEW), Stamp(500, 8.0, A), True),
        (Stamp(0, 8.0, ANEW), Stamp(500, 8.0, A), True),  # equal times: the name, so that all decide alike
        (Stamp(500, 8.0, A), Stamp(0, 8.0, ANEW), False),
        (Stamp(500, 10.0, A), Stamp(0, 9.0, ANEW), True),  # back to the hub before
        (Stamp(1, 1.0, A, v=2), Stamp(9, 9.0, A, v=1.5), True),
        (Stamp(9, 9.0, A, v="a"), Stamp(1, 1.0, A, v="b"), False),
        (Stamp(1, 1.0, A, v=2), Stamp(9, 9.0, A), True),
        (Stamp(1, 1.0, A), None, True),
    ],
)
def test_the_later_change(new, old, is_after):
    assert new.is_after(old) is is_after


def test_a_text_and_a_number_are_no_versions_of_one_document():
    with pytest.raises(IncomparableError, match="'2'"):
        Stamp(1, 1.0, A, v="2").is_after(Stamp(1, 1.0, A, v=1))


stamps = st.builds(
    Stamp,
    st.integers(0, 9),
    st.just(0.0),
    st.sampled_from([A, B, ANEW]),
    st.integers(0, 3).map(order_in_event),
).map(
    lambda stamp: Stamp(stamp.n, float(stamp.n), stamp.of, stamp.i)
)  # times grow with the numbers of a source


@given(stamps, stamps, stamps)
def test_where_times_grow_with_numbers_there_is_one_order_of_all_changes(a, b, c):
    assert not (a.is_after(b) and b.is_after(a))
    assert a.is_same(b) or a.is_after(b) or b.is_after(a)
    assert not (a.is_after(b) and b.is_after(c)) or a.is_after(c)


@pytest.mark.parametrize(
    ("document", "field", "stamp"),
    [
        ({"_tv": {"n": 1, "at": 2, "of": A}}, None, Stamp(1, 2.0, A)),
        ({"_tv": {"n": 1, "at": 2.5, "of": A, "i": "0f", "v": 3}}, None, Stamp(1, 2.5, A, "0f", 3)),
        ({"_tv": {"n": 1, "at": 2, "of": A}, "v": 3}, ("v",), Stamp(1, 2.0, A, v=3)),
        ({"v": 3}, ("v",), Stamp(-1, 0.0, "", v=3)),
        ({"v": [3]}, ("v",), None),
        ({"_tm": {"enqueued_at": 4}}, None, Stamp(-1, 4.0, "")),
        *(
            ({"_tv": each}, None, None)
            for each in (None, "x", {}, {"n": "1", "at": 2, "of": A}, {"n": 1, "at": "2", "of": A})
        ),
        *(({"_tm": each}, None, None) for each in (None, {}, {"enqueued_at": "4"}, {"enqueued_at": True})),
        ({}, None, None),
    ],
)
def test_what_a_stored_document_says_of_its_version(document, field, stamp):
    assert stored_stamp(document, field) == stamp


positions = st.tuples(st.integers(0, 2**62), st.integers(0, 2**54), st.integers(0, 40))


@given(positions, positions)
def test_marks_sort_as_number_then_element_then_route(a, b):
    texts = [mark_value(number, order_in_event(element | route << 60)) for number, element, route in (a, b)]

    assert (texts[0] < texts[1]) is (a < b)
