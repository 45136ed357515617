"""The row a consumer writes about itself and everybody else reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.foundation.consumer_stats import (
    ConsumerStats,
    ConsumerStatsError,
    PartitionStats,
    fresh_filter,
    from_row,
    to_row,
)
from tidemark.foundation.keys import key_of

STATS = ConsumerStats(
    consumer="flights to cosmos",
    instance="host/1",
    at=1_700_000_000.25,
    hub="flights",
    consumer_group="$Default",
    rate_limit=1000,
    written_per_s=999.5,
    throttled_share=0.25,
    ru_per_record=6.3,
    last_ru_per_record=6.3,
    backlog_count=12_000,
    written_total=5_000_000_000,
    lag=(PartitionStats("0", 900, 880, 870, 30, 10), PartitionStats("1")),
    paused=True,
)

partitions = st.builds(
    PartitionStats,
    partition=st.text(max_size=5),
    last_enqueued=st.none() | st.integers(-1, 2**62),
    lag=st.none() | st.integers(0, 2**62),
)
stats = st.builds(
    ConsumerStats,
    consumer=st.text(min_size=1, max_size=10),
    instance=st.text(min_size=1, max_size=10),
    at=st.floats(0, 4e9),
    throttled_share=st.floats(0, 1),
    ru_per_record=st.none() | st.floats(0, 1e6),
    written_total=st.integers(0, 2**52),
    lag=st.lists(partitions, max_size=4).map(tuple),
    stopping=st.booleans(),
)


@given(stats)
def test_a_row_reads_back_as_what_was_written(given_stats):
    assert from_row(to_row(given_stats)) == given_stats


def test_keys_take_any_name():
    row = to_row(STATS)

    assert (row["PartitionKey"], row["RowKey"]) == ("flights~20to~20cosmos", "host~2F1")


def test_numbers_are_doubles_so_that_totals_outgrow_32_bits_and_filters_work():
    row = to_row(STATS)

    assert row["written_total"] == 5e9
    assert {type(row[name]) for name in ("at", "written_total", "backlog_count", "rate_limit")} == {float}
    assert fresh_filter("flights to cosmos", 1_700_000_000) == (
        "PartitionKey eq 'flights~20to~20cosmos' and at ge 1700000000.000"
    )


def test_what_is_not_known_is_left_out():
    row = to_row(ConsumerStats(consumer="c", instance="i", at=1.0))

    assert "ru_per_record" not in row
    assert from_row(row).ru_per_record is None


def test_more_partitions_than_a_property_holds_are_split():
    many = ConsumerStats(
        consumer="c",
        instance="i",
        at=1.0,
        lag=tuple(PartitionStats(str(n), 10**12, 10**12, 10**12, 0, 0) for n in range(2000)),
    )
    row = to_row(many)

    assert max(len(value) for name, value in row.items() if name.startswith("Lag")) <= 32_000
    assert from_row(row) == many


def test_columns_of_a_newer_writer_are_ignored():
    assert from_row({**to_row(STATS), "moon_phase": 0.5}) == STATS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"Schema": 2}, "schema 2"),
        ({"throttled_share": 1.5}, "throttled_share"),
        ({"at": float("nan")}, "finite"),
        ({"written_total": 0.5}, "written_total"),
        ({"Lag00": "[["}, "cannot be read"),
        ({"Lag00": "[", "Lag01": "]"}, "cannot be read"),  # only the last column is not full
        ({"paused": "yes"}, "paused"),
    ],
)
def test_a_row_that_is_wrong_is_refused_by_name_of_the_instance(change, words):
    with pytest.raises(ConsumerStatsError) as raised:
        from_row({**to_row(STATS), **change})

    assert "host/1" in str(raised.value)
    assert words in str(raised.value)


@pytest.mark.parametrize("text", ["x" * 400, "x" * 401, "é" * 1_000])
def test_a_key_of_any_text_leaves_room_for_a_prefix_or_a_time_and_is_of_that_text_alone(text):
    """Table Storage takes 512 characters, of which a row's other parts have the rest."""
    assert len(key_of(text)) <= 400
    assert key_of(text) != key_of(text + "y")
