"""What is saved with a set of forwarded events, and when a checkpoint shows that the set is stored."""

import pytest

from consumer.model import Checkpoint, Origin
from consumer.seeks import Seek
from consumer.sinks.messaging.bookmarks import Bookmark, parse

SET = Bookmark((17, 1), (9, 0), (12, 13, 17))


def test_a_bookmark_is_read_as_it_was_written_and_so_is_that_of_a_version_before():
    assert parse(SET.text) == SET
    assert parse("17.1") == Bookmark((17, 1))
    assert parse(parse("17.1").text) == Bookmark((17, 1))
    assert parse(None) == Bookmark((-1, 0))


@pytest.mark.parametrize(
    ("mark", "beyond", "skipped_to", "is_settled"),
    [
        (11, (), None, False),
        (12, (), None, True),
        (11, ((14, 16),), None, False),
        (11, ((13, 13),), None, True),
        (12, (), 12, False),  # an operator leaves it out: nothing says that the rest was stored
        (13, (), 12, True),
    ],
)
def test_a_set_is_stored_where_the_checkpoint_has_one_of_its_events_by_itself(
    mark, beyond, skipped_to, is_settled
):
    seeks = () if skipped_to is None else (Seek("ann", 0.0, 5, skipped_to),)
    checkpoint = Checkpoint("0", mark, "", beyond, origin=Origin(seeks=seeks))

    assert SET.is_settled(checkpoint) is is_settled
    assert not SET.is_settled(None)
    assert not parse("17.1").is_settled(checkpoint)
