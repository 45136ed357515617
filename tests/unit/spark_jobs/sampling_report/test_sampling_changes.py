"""Which dimension changed with a break."""

from spark_jobs.sampling_report.changes import Share, changes


def share(side, dimension, value, part, rate=100.0):
    return Share(side, dimension, value, part, rate)


def test_the_upgrade_of_the_sdk_is_found_and_what_did_not_change_is_not():
    found = changes(
        [
            share("before", "sdk_version", "dotnet:2.1", 1.0),
            share("after", "sdk_version", "dotnet:2.3", 1.0, 30.0),
            share("before", "role", "api", 0.6),
            share("before", "role", "worker", 0.4),
            share("after", "role", "api", 0.55),
            share("after", "role", "worker", 0.45),
        ]
    )

    assert [(change.dimension, change.moved, change.gone.value, change.came.value) for change in found] == [
        ("sdk_version", 1.0, "dotnet:2.1", "dotnet:2.3")
    ]
    assert found[0].sentence() == (
        "sdk_version changed from 'dotnet:2.1' to 'dotnet:2.3' for 100 % of the events, sampled at 30 %"
    )


def test_a_dimension_that_appeared_or_vanished_changed_from_or_to_nothing():
    appeared, vanished = changes(
        [share("after", "customDimensions.a", "x", 1.0), share("before", "customDimensions.b", "y", 0.5)]
    )

    assert (appeared.dimension, appeared.gone, appeared.came.value, appeared.moved) == (
        "customDimensions.a",
        None,
        "x",
        1.0,
    )
    assert (vanished.gone.value, vanished.came, vanished.moved) == ("y", None, 0.5)


def test_the_most_changed_comes_first_and_equals_by_name():
    found = changes(
        [share("before", name, "x", part) for name, part in (("c", 0.9), ("b", 0.5), ("a", 0.5), ("d", 0.1))]
    )

    assert [change.dimension for change in found] == ["c", "a", "b"]


def test_of_a_partial_roll_out_only_the_part_that_moved_counts():
    [change] = changes(
        [
            share("before", "sdk_version", "1", 1.0),
            share("after", "sdk_version", "1", 0.7),
            share("after", "sdk_version", "2", 0.3, 10.0),
        ]
    )

    assert (round(change.moved, 6), change.gone.value, change.came.value) == (0.3, "1", "2")


def test_a_change_of_the_least_distance_is_told():
    assert [change.moved for change in changes([share("after", "role", "api", 0.2)])] == [0.2]


def test_nothing_to_compare_is_no_change():
    assert changes([]) == []
