"""Decisions can be replayed: the inputs are kept with the log row, and decide() is deterministic. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from scaling.logic import decide
from scaling.model import Controls, Recommendation, TargetState
from scaling.policy import Policy, PolicySpec
from scaling.window import Window


class Inputs(Struct, frozen=True):
    """Everything one decision was made from. Options of collectors and scalers are left out: they decide
    nothing, and may come from secret settings.
    """

    policy: PolicySpec
    windows: dict[str, Window]
    state: TargetState
    controls: Controls
    now: float
    decision_id: str


class ReplayError(ValueError):
    """Stored inputs cannot be read; the message says why."""


def encode_inputs(
    policy: Policy,
    windows: Mapping[str, Window],
    state: TargetState,
    controls: Controls,
    *,
    now: float,
    decision_id: str,
) -> bytes:
    """Compressed inputs, about 1 KB for a usual target."""
    replace = msgspec.structs.replace
    metrics = {name: replace(spec, options={}) for name, spec in policy.spec.metrics.items()}
    spec = replace(policy.spec, scaler_options={}, metrics=metrics)
    inputs = Inputs(spec, dict(windows), replace(state, last=None), controls, now, decision_id)
    return _encoded(inputs)


def _encoded(inputs: Inputs) -> bytes:
    return zlib.compress(msgspec.json.encode(inputs), 6)


def decode_inputs(data: bytes) -> Inputs:
    """Raises ReplayError."""
    try:
        return msgspec.json.decode(zlib.decompress(data), type=Inputs)
    except (zlib.error, msgspec.DecodeError) as error:
        raise ReplayError(f"the stored inputs cannot be read: {error}") from error


def replay(inputs: Inputs) -> Recommendation:
    """Decides again. Raises RuleError when a rule of the user's own code is not there any more."""
    return decide(
        Policy(inputs.policy),
        inputs.windows,
        inputs.state,
        now=inputs.now,
        controls=inputs.controls,
        decision_id=inputs.decision_id,
    )


def inputs_of(made: Recommendation, candidate: bytes | None) -> bytes | None:
    """The stored inputs `candidate` at the time of `made`, if it follows from them; else None.

    For inputs stored by a concurrent evaluation of the same report, which differ in their time.
    """
    if candidate is None:
        return None
    try:
        inputs = msgspec.structs.replace(decode_inputs(candidate), now=made.at)
        return _encoded(inputs) if same(made, replay(inputs)) else None
    except ValueError:  # unreadable inputs, or a rule that is not there any more
        return None


def same(recorded: Recommendation, replayed: Recommendation) -> bool:
    """Byte for byte."""
    return msgspec.json.encode(recorded) == msgspec.json.encode(replayed)
