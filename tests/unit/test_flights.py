"""The real records of the consumer's demo."""

from devstack.flights import flights


def test_flights_have_ids_of_their_lines_and_numbers_as_numbers():
    first, second = flights(2, first=838)

    assert (first["id"], second["id"]) == ("flight-838", "flight-839")
    assert first["date"] == "2013-01-01"
    assert first["origin"] == "EWR"
    assert first["dep_delay"] is None  # cancelled
    assert isinstance(first["distance"], int)
