"""Positions of a live event hub: what a batch takes, what is lost."""

import msgspec
import pytest

from consumer.model import PartitionState
from spark_jobs.sources.event_hubs.positions import Range, lost, parse_position, ranges, resolved
from spark_jobs.sources.event_hubs.settings import HubSettings
from tidemark.analysis.errors import InputError

CONNECTION = "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"
OPTIONS = {"hub": "flights", "secretConnectionString": CONNECTION}


def state(partition, begin, last, *, empty=False):
    return PartitionState(partition, begin, last, "", 0.0, empty)


def test_positions_are_resolved_by_partition_by_the_others_and_by_default():
    states = {"0": state("0", 5, 9), "1": state("1", 3, 41), "2": state("2", 0, 19, empty=True)}

    def start(text):
        return resolved(parse_position(text, "startingPosition"), states, "earliest", "startingPosition")

    assert start("earliest") == {"0": 5, "1": 3, "2": 20}
    assert start("latest") == {"0": 10, "1": 42, "2": 20}
    assert start('{"0": 7, "*": "latest"}') == {"0": 7, "1": 42, "2": 20}
    assert start('{"0": 7}') == {"0": 7, "1": 3, "2": 20}
    assert ranges(start("earliest"), start("latest")) == [Range("0", 5, 9), Range("1", 3, 41)]
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
        ({"receiveTimeout": "0"}, "receiveTimeout is '0'; accepted"),
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
