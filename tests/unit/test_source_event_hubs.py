"""Positions of a live event hub: what a batch takes, how it is bounded, what is lost."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.model import PartitionState
from spark_jobs.errors import InputError
from spark_jobs.sources.event_hubs.positions import Range, bounded, lost, parse_position, ranges, resolved
from spark_jobs.sources.event_hubs.settings import HubSettings

CONNECTION = "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"
OPTIONS = {"hub": "flights", "secretConnectionString": CONNECTION}


def state(partition, begin, last, *, empty=False):
    return PartitionState(partition, begin, last, "", 0.0, empty)


@given(
    st.dictionaries(
        st.sampled_from([str(number) for number in range(12)]),
        st.tuples(st.integers(0, 2**50), st.integers(0, 10_000)),
        min_size=1,
    ),
    st.one_of(st.none(), st.integers(1, 5_000)),
)
def test_a_bounded_batch_takes_all_it_may_and_no_more(partitions, limit):
    start = {partition: first for partition, (first, _) in partitions.items()}
    latest = {partition: first + count for partition, (first, count) in partitions.items()}

    end = bounded(start, latest, limit)

    waiting = sum(latest.values()) - sum(start.values())
    assert sum(end.values()) - sum(start.values()) == (waiting if limit is None else min(limit, waiting))
    assert all(start[partition] <= end[partition] <= latest[partition] for partition in start)
    assert sum(each.last - each.first + 1 for each in ranges(start, end)) == sum(end.values()) - sum(
        start.values()
    )


def test_what_waits_decides_on_the_shares():
    assert bounded({"0": 0, "1": 100}, {"0": 300, "1": 200}, 40) == {"0": 30, "1": 110}
    assert bounded({"0": 0, "1": 0}, {"0": 10_000, "1": 1}, 1) == {"0": 1, "1": 0}


def test_positions_are_resolved_by_partition_by_the_others_and_by_default():
    states = {"0": state("0", 5, 9), "1": state("1", 3, 41), "2": state("2", 0, 19, empty=True)}

    def start(text):
        return resolved(parse_position(text, "startingPosition"), states, "earliest", "startingPosition")

    assert start("earliest") == {"0": 5, "1": 3, "2": 20}
    assert start("latest") == {"0": 10, "1": 42, "2": 20}
    assert start('{"0": 7, "*": "latest"}') == {"0": 7, "1": 42, "2": 20}
    assert start('{"0": 7}') == {"0": 7, "1": 3, "2": 20}
    with pytest.raises(InputError, match="startingPosition names partition 9; the hub has 0, 1, 2"):
        start('{"9": 0}')


@pytest.mark.parametrize("text", ["soon", "[1]", '{"0": -1}', '{"0": true}', '{"0": "1"}'])
def test_other_positions_are_refused_with_what_is_accepted(text):
    with pytest.raises(InputError, match=r"startingPosition is .*accepted are earliest, latest, or JSON"):
        parse_position(text, "startingPosition")


def test_what_retention_took_is_named_and_so_is_a_hub_that_is_another():
    assert lost(Range("0", 5, 9), state("0", 5, 9)) is None
    assert lost(Range("0", 4, 9), state("0", 7, 9)).startswith("partition 0: events 4 to 6 were removed")
    assert lost(Range("0", 4, 5), state("0", 7, 9)).startswith("partition 0: events 4 to 5 were removed")
    assert lost(Range("0", 4, 9), state("0", 0, 9, empty=True)).startswith(
        "partition 0: events 4 to 9 were removed"
    )
    assert "created anew" in lost(Range("0", 4, 9), state("0", 0, 3))


@pytest.mark.parametrize(
    ("change", "story"),
    [
        ({"hub": ""}, "needs the options hub"),
        ({"secretConnectionString": ""}, "needs the options hub"),
        (
            {"secretConnectionString": "Endpoint=x"},
            "secretConnectionString is not an Event Hubs connection string",
        ),
        ({"maxEventsPerTrigger": "0"}, "maxEventsPerTrigger is '0'; accepted"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss is 'perhaps'; accepted are true and false"),
        ({"startingPosition": "x"}, "startingPosition is 'x'"),
    ],
)
def test_options_at_fault_are_named(change, story):
    with pytest.raises(InputError, match=story):
        HubSettings.of({**OPTIONS, **change})


def test_settings_show_no_secret():
    assert "c2VjcmV0" not in repr(HubSettings.of(OPTIONS))
    assert msgspec.json.encode(HubSettings.of(OPTIONS).start) == b'{"*":"earliest"}'
