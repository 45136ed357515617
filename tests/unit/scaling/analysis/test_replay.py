"""A logged decision is decided again, byte for byte."""

import base64
import zlib

import msgspec
import pytest

from scaling.analysis import replay as replay_module
from scaling.analysis.replay import (
    ReplayError,
    comparison,
    decode_inputs,
    encode_inputs,
    inputs_of,
    replay,
    same,
)
from scaling.flips.explained import decide_and_explain as decide
from scaling.model import NO_CONTROLS, Reason
from scaling.rules.combine import PROBLEMS
from tests.support.scaling.decision_fixtures import read
from tests.support.scaling.runner import NOW, World, at, full, metric, policy


def kept(value: float = 900.0, *, now: float = NOW, made=None):
    made = made or policy()
    windows, state = {"backlog": full(value)}, at(3)
    recommendation = decide(made, windows, state, now=now, decision_id="plan@1")
    return recommendation, encode_inputs(made, windows, state, NO_CONTROLS, now=now, decision_id="plan@1")


def test_what_is_replayed_is_what_was_decided() -> None:
    recommendation, inputs = kept()

    assert same(recommendation, replay(decode_inputs(inputs)))


def test_another_input_replays_to_another_decision() -> None:
    recommendation, inputs = kept()
    later = msgspec.structs.replace(decode_inputs(inputs), now=NOW + 1000.0)

    assert replay(later).reason is Reason.STALE_METRIC
    assert not same(recommendation, replay(later))


def test_options_of_collectors_and_scalers_are_not_kept() -> None:
    secret = msgspec.structs.replace(metric(), options={"connection": "SharedAccessKey=secret"})
    made = policy(metrics={"backlog": secret}, scaler_options={"client_secret": "secret"})

    _, inputs = kept(made=made)

    assert b"secret" not in zlib.decompress(inputs)


@pytest.mark.parametrize(
    "data", [b"", b"not compressed", zlib.compress(b"{}"), zlib.compress(b'{"now":'), zlib.compress(b"\xff")]
)
def test_unreadable_inputs_are_a_replay_error(data: bytes) -> None:
    with pytest.raises(ReplayError, match="stored inputs cannot be read"):
        decode_inputs(data)


def test_inputs_of_a_concurrent_decision_are_kept_only_if_this_one_follows_from_them() -> None:
    _, earlier = kept(now=NOW - 30.0)
    recommendation, _ = kept()
    other, _ = kept(300.0)

    adopted = inputs_of(recommendation, earlier)

    assert same(recommendation, replay(decode_inputs(adopted)))
    assert inputs_of(other, earlier) is None
    assert inputs_of(recommendation, b"junk") is None
    assert inputs_of(recommendation, None) is None


async def test_every_row_a_running_autoscaler_wrote_replays() -> None:
    world = World(policy(metrics={"backlog": metric(span=120.0, min_samples=2)}))
    for backlog in (900.0, 900.0, 900.0, 20.0, 20.0, 20.0):
        world.backlog = backlog
        await world.tick()
        await world.drain()
        world.clock.now += 60.0

    entries = await world.entries("decision")
    rows = [await world.log.get("plan", entry.at, "decision") for entry in entries]

    assert len(rows) == 6
    assert all(same(row.recommendation, replay(decode_inputs(row.inputs))) for row in rows)


@pytest.mark.parametrize(
    "kept", read(1), ids=lambda kept: f"{kept.policy}-{kept.reason}-{kept.recommendation.decision_id}"
)
def test_decisions_of_the_first_version_replay_but_for_what_they_tell_besides(kept) -> None:
    inputs = decode_inputs(base64.b64decode(kept.inputs))
    again = replay(inputs)

    assert inputs.version == 1
    # Since version 2 they are decided anew, or say what an override was clamped by.
    if inputs.state.external_change is not None or kept.reason in {Reason.ACTION_PENDING, Reason.OVERRIDDEN}:
        told = comparison(inputs, kept.recommendation, again)
        assert "an external change holds what would scale in" in told or "identical" in told
        return
    # Since version 2 flips are worked out by deciding again.
    again = msgspec.structs.replace(again, flips=kept.recommendation.flips)
    if (
        kept.reason in PROBLEMS
    ):  # since version 2 they have the numbers of the samples there are, and how far a window has filled
        told = kept.recommendation
        again = msgspec.structs.replace(again, evidence=told.evidence, note=told.note)
    if kept.policy == "nested":  # since version 2 a nested guard has its own numbers
        again = msgspec.structs.replace(again, limits=kept.recommendation.limits)
    found = comparison(inputs, kept.recommendation, again)
    if (kept.policy, kept.recommendation.decision_id) in FALLBACKS_WHILE_WINDOWS_FILLED:
        assert "the fallback acts only where a metric that is not read keeps the rules from voting" in found
        assert again.reason is not Reason.FALLBACK
    else:
        assert found == "identical, byte for byte"


FALLBACKS_WHILE_WINDOWS_FILLED = {("guarded", "plan@83")}
"""Decisions of the first version by the fallback although every metric was read."""


def test_inputs_carry_the_version_of_the_logic() -> None:
    _, inputs = kept()

    assert decode_inputs(inputs).version == replay_module.VERSION


def test_inputs_of_a_newer_release_are_refused_by_name() -> None:
    data = zlib.compress(b'{"version": 1000, "something": "else"}')

    with pytest.raises(ReplayError, match=r"of version 1000, this release reads up to .*a newer release"):
        decode_inputs(data)


def test_a_difference_that_a_newer_version_explains_is_told_with_it(monkeypatch) -> None:
    recorded, data = kept()
    inputs = msgspec.structs.replace(decode_inputs(data), version=1)
    other = msgspec.structs.replace(recorded, note="otherwise")
    monkeypatch.setattr(replay_module, "VERSION", 3)
    monkeypatch.setattr(replay_module, "CHANGES", {2: ("an override waits no longer",), 3: ("a gap counts",)})

    assert comparison(inputs, recorded, recorded) == "identical, byte for byte"
    assert comparison(inputs, recorded, other) == (
        "different: the decision was made by version 1 of the logic, this release decides by version 3. "
        "Since then: an override waits no longer; a gap counts"
    )
    assert comparison(msgspec.structs.replace(inputs, version=3), recorded, other) == "different"


def test_every_version_tells_what_it_decides_otherwise() -> None:
    assert list(replay_module.CHANGES) == list(range(2, replay_module.VERSION + 1))
    assert all(replay_module.CHANGES.values())
