"""What is worked out about throughput without asking anybody."""

import pytest

from scaling.scalers.carrying_out import Range
from scaling.scalers.cosmos.planes import accepted_range
from scaling.scalers.cosmos.throughput import Throughput, ThroughputId, instant_at_least

ACCOUNT = (
    "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg/providers/"
    "Microsoft.DocumentDB/databaseAccounts/acc/sqlDatabases/demo"
)


def test_a_replacement_that_waits_for_a_split_does_not_count_before_it():
    """Whichever of the two amounts the platform shows meanwhile."""
    asked = Throughput(24_000, autoscale=False, floor=400, instant=10_000, pending=True)
    before = Throughput(8000, autoscale=False, floor=400, instant=10_000, pending=True)
    after = Throughput(24_000, autoscale=False, floor=400, instant=30_000)

    assert (asked.effective, before.effective, after.effective) == (10_000, 8000, 24_000)


@pytest.mark.parametrize(
    ("options", "allow_split", "ceiling"),
    [
        ({"instant": 10_000}, False, 24_000),  # what is provisioned already is never above it
        ({"instant": 30_000}, False, 30_000),
        ({"instant": 30_000, "maximum": 28_000}, False, 28_000),
        ({"instant": 30_000, "maximum": 90_000}, True, 90_000),
        ({"maximum": None}, False, None),
    ],
)
def test_the_ceiling_is_what_is_had_at_once_unless_partitions_may_be_split(options, allow_split, ceiling):
    seen = Throughput(24_000, autoscale=False, floor=400, **options)

    assert seen.ceiling(allow_split=allow_split) == ceiling


@pytest.mark.parametrize(("autoscale", "wanted", "stepped"), [(False, 401, 500), (True, 4001, 5000)])
def test_amounts_are_rounded_up_to_whole_steps(autoscale, wanted, stepped):
    assert Throughput(1000, autoscale=autoscale, floor=400).stepped(wanted) == stepped


@pytest.mark.parametrize(("value", "instant"), [(400, 10_000), (10_000, 10_000), (10_100, 20_000)])
def test_what_is_there_needs_its_partitions(value, instant):
    assert instant_at_least(value) == instant


def test_ids_are_read_whatever_their_case():
    assert ThroughputId.parse(f"{ACCOUNT.upper()}/CONTAINERS/flights").container == "flights"
    assert ThroughputId.parse(ACCOUNT).container is None


@pytest.mark.parametrize(
    ("story", "found"),
    [
        (
            "The offer should have valid throughput values between 500 and 1000000 inclusive in increments of 100.",
            Range(500, 1_000_000),
        ),
        ("Requested throughput -200 is less than required minimum throughput 1000", Range(1000)),
        ("Another scale operation is in progress", None),
    ],
)
def test_a_refusal_that_names_what_is_accepted_is_understood(story, found):
    assert accepted_range(story) == found


def test_the_path_of_a_request_holds_names_of_any_kind():
    found = ThroughputId.parse(f"{ACCOUNT.replace('demo', 'my data?x')}/containers/flüge #1")

    assert found.quoted == f"{ACCOUNT.replace('demo', 'my%20data%3Fx')}/containers/fl%C3%BCge%20%231"
    assert ThroughputId.parse(ACCOUNT).quoted == ACCOUNT
