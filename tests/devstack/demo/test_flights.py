"""The real records of the consumer's demo."""

from itertools import pairwise

import pytest

from devstack.demo.common.flights import bodies, flights, with_poison
from devstack.demo.streaming.world import flight_id


def test_flights_have_ids_of_their_lines_and_numbers_as_numbers():
    first, second = flights(2, first=838)

    assert (first["id"], second["id"]) == ("flight-838", "flight-839")
    assert first["date"] == "2013-01-01"
    assert first["origin"] == "EWR"
    assert first["dep_delay"] is None  # cancelled
    assert isinstance(first["distance"], int)


@pytest.mark.parametrize(("flown", "count"), [(100, 7), (20, 20), (3, 5), (10, 0)])
def test_poison_is_spread_among_the_events_whose_order_it_keeps(flown, count):
    events = list(bodies(flown))

    mixed = with_poison(events, count)

    poison = [at for at, body in enumerate(mixed) if flight_id(body) is None]
    assert [body for body in mixed if flight_id(body) is not None] == events
    assert len(poison) == len({mixed[at] for at in poison}) == count
    if 1 < count <= flown:
        gaps = [after - before for before, after in pairwise(poison)]
        assert max(gaps) - min(gaps) <= 1
