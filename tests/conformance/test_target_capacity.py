"""The collector of another target's capacity: what counts as there, and as wanted; its row on Azurite."""

from collections.abc import AsyncIterator
from uuid import uuid4

import msgspec
import pytest

from scaling.collectors import target_capacity
from scaling.collectors.target_capacity import TargetCapacityCollector
from scaling.decision.lock_step import as_seen, capacities
from scaling.model import Capacity, EffectRecord, Limit, Reason, Recommendation, ScaleAction, TargetState
from scaling.ports import CollectError
from scaling.storage.states import TableStateStore

NOW = 1_700_000_000.0
STANDING = TargetState(expected=4, capacity=Capacity(4, NOW))


def state(**changes) -> TargetState:
    return msgspec.structs.replace(STANDING, **changes)


def moving(to: int) -> ScaleAction:
    return ScaleAction("plan@1", "plan", 4, to, NOW, NOW + 600, Reason.SCALE_OUT)


def decided(
    proposed: int | None, *limits: tuple[Reason, int], desired: int = 4, reason: Reason = Reason.LOCK_STEP
) -> Recommendation:
    """Of limits, the reason and what it kept from coming."""
    told = tuple(Limit(why, wanted, 4) for why, wanted in limits)
    return Recommendation("plan@1", "plan", NOW, 4, proposed, desired, 2, 6, reason, limits=told)


@pytest.mark.parametrize(
    ("found", "reached", "wanted"),
    [
        (STANDING, 4, 4),
        (state(pending=moving(6)), 4, 6),
        (state(pending=moving(2)), 2, 4),
        (state(capacity=Capacity(3, NOW)), 3, 4),  # somebody took one away
        (state(capacity=Capacity(9, NOW)), 4, 9),
        (state(last=decided(50, (Reason.LOCK_STEP, 5))), 4, 5),  # the next step, not all of it
        (state(last=decided(50, (Reason.LOCK_STEP, 50))), 4, 6),  # never more than its maximum
        (state(last=decided(50, (Reason.GUARDED, 50), (Reason.LOCK_STEP, 50), reason=Reason.GUARDED)), 4, 4),
        (state(last=decided(50, (Reason.LOCK_STEP, 50), (Reason.COOLING_DOWN, 50))), 4, 4),
        (state(last=decided(50, (Reason.PLATEAU, 50), reason=Reason.PLATEAU)), 4, 4),
        (
            state(last=decided(9, (Reason.LOCK_STEP, 6), desired=5, reason=Reason.SCALE_OUT)),
            4,
            6,
        ),
        (state(last=decided(1)), 4, 4),
        (state(last=decided(None)), 4, 4),
        (state(last=decided(4, desired=6, reason=Reason.OVERRIDDEN)), 4, 6),
        (state(last=decided(5, desired=5, reason=Reason.DRY_RUN)), 4, 4),
        (state(last=decided(5, reason=Reason.PAUSED)), 4, 4),
    ],
)
def test_a_change_under_way_counts_on_the_safe_side(found, reached, wanted):
    expected = {"current": 4.0, "ready": float(reached), "reached": float(reached), "wanted": float(wanted)}
    assert capacities(found) == expected


@pytest.mark.parametrize(("pending", "counted", "ready"), [(None, 1, 1), (None, 9, 4), (moving(2), 3, 2)])
def test_ready_are_those_that_work_of_the_ones_it_has_for_sure(pending, counted, ready):
    found = capacities(state(pending=pending, capacity=Capacity(4, NOW, ready=counted)))

    assert found is not None
    assert found["ready"] == ready


@pytest.mark.parametrize(
    "found",
    [TargetState(), state(capacity=None), state(capacity_error="403"), as_seen(STANDING, "no answer")],
)
def test_a_capacity_that_is_not_known_is_none(found):
    assert capacities(found) is None


@pytest.fixture
async def world(azurite, monkeypatch) -> AsyncIterator[tuple[TableStateStore, TargetCapacityCollector]]:
    settings, table = {"AzureWebJobsStorage": azurite}, f"State{uuid4().hex[:12]}"
    monkeypatch.setattr(TableStateStore.__init__, "__kwdefaults__", {"table": table})
    states = TableStateStore(settings, target_capacity.STORAGE)
    collector = TargetCapacityCollector(TargetCapacityCollector.Params(target="plan"), settings)
    yield states, collector
    await collector.aclose()
    await collector.aclose()
    await states.aclose()


@pytest.mark.wire
async def test_the_counts_come_from_the_stored_state(world):
    states, collector = world
    await states.save(await states.load("plan"), state(pending=moving(6)), {})

    reading = await collector.collect(now=NOW)

    assert reading.at == NOW
    assert reading.values == {"current": 4.0, "reached": 4.0, "ready": 4.0, "wanted": 6.0}
    assert set(reading.values) == set(TargetCapacityCollector.COUNTS)


@pytest.mark.wire
async def test_a_reading_is_of_the_time_of_what_was_read_and_never_of_now(world):
    """An app that stood still for a day says what was true a day ago."""
    states, collector = world
    effect = EffectRecord(NOW + 30, 3, 4)
    await states.save(await states.load("plan"), state(effects=(effect,), last=decided(4)), {})

    assert (await collector.collect(now=NOW + 86_400)).at == NOW + 30
    assert (await collector.collect(now=NOW + 10)).at == NOW + 10  # clocks differ; nothing is of the future


@pytest.mark.wire
async def test_a_target_nobody_has_seen_is_an_error_not_a_zero(world):
    _, collector = world

    with pytest.raises(CollectError, match=r"target 'plan'.*tidemark.toml"):
        await collector.collect(now=NOW)


async def test_a_missing_storage_setting_is_named():
    collector = TargetCapacityCollector(TargetCapacityCollector.Params(target="plan"), {})

    with pytest.raises(CollectError, match="AzureWebJobsStorage"):
        await collector.collect(now=NOW)
