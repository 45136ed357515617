"""What a producer says of a set that is not known to be stored."""

from tidemark.publisher.event_hubs.core.failures import of_other_events
from tidemark.publisher.model import PendingSet


def test_bookmarks_are_named_where_there_are_some():
    with_them = of_other_events(PendingSet(7, 2, "d", "line 9"), "line 7")
    without = of_other_events(PendingSet(1, 1, "d"), None)

    assert (
        "2 events from 7 on that may or may not be stored, after bookmark 'line 7' up to 'line 9'; "
        in with_them
    )
    assert "1 event from 1 on that may or may not be stored; another producer that is still open" in without
    assert "None" not in without
