"""Whether captured events are of two hubs of one name, told by numbers that begin anew."""

from datetime import UTC, datetime, timedelta

import pytest

from spark_jobs.backfill.transforms import begins_again

START = datetime(2026, 11, 26, 8, tzinfo=UTC)


def hours(*rows, partition="0"):
    return [
        {"partition": partition, "hour": START + timedelta(hours=at), "lowest": low, "highest": high}
        for at, low, high in rows
    ]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([(0, 0, 99), (1, 100, 199), (2, 200, 299), (9, 300, 301)], None),
        ([(0, 0, 100), (1, 99, 199), (2, 198, 299)], None),  # a clock that stepped back at a full hour
        ([(0, 0, 99), (5, 0, 40)], (5, 0)),
        (
            [(0, 0, 50), (1, 0, 99), (2, 40, 150), (3, 151, 160)],
            (2, 40),
        ),  # anew within an hour that both have
        ([(0, 0, 99), (5, 99, 99)], (5, 99)),
        ([], None),
    ],
)
def test_numbers_that_a_partition_had_passed_tell_another_hub(rows, found):
    row = begins_again([*hours((0, 500, 900), (7, 901, 950), partition="00"), *hours(*rows)])

    assert (row and ((row["hour"] - START) / timedelta(hours=1), row["lowest"])) == found
    if found:  # the ways out that the error names: the events of one of the two hubs
        newer = [each for each in rows if each[0] >= found[0]]
        older = [each for each in rows if each[0] < found[0] - 2]
        assert (begins_again(hours(*newer)), begins_again(hours(*older))) == (None, None)
