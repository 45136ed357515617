"""Decisions can be replayed: the inputs are kept with the log row, and decide() is deterministic. Pure.

Log rows outlive releases, so inputs carry the version of the logic they were decided by. Two rules keep old rows
replaying:

* a new field of anything inside `Inputs` (a policy, a window, the state) has a default under which decisions are
  made as before the field was there. Most mends need no more than that;
* where the same inputs lead to another decision all the same, `VERSION` is one more than that of the last release
  (once a release, however many changes), and `CHANGES` says what is decided otherwise.

tests/data holds decisions as earlier releases wrote them: they replay byte for byte, or say that they are older.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from scaling.config.policy import Policy, PolicySpec
from scaling.flips.explained import decide_and_explain
from scaling.model import Controls, Recommendation, TargetState
from scaling.window import Window

VERSION = 2

CHANGES: dict[int, tuple[str, ...]] = {
    2: (
        "the fallback does not act for metrics of disabled entities",
        "nothing is lowered below what the platform itself allows",
        "what waits in lock step waits for the next step that the other limits allow",
        "a hold for missing samples has the numbers of those there are, and what they point to",
        "a pending action that nobody carries out is withdrawn, or replaced, when it would not be decided any more",
        "an external change holds what would scale in; minimum, maximum and scale-outs are decided from the capacity that runs",
        "an override that is clamped says by what, and nothing is lowered below the first step of the platform",
        "guards and lock step nested in a composite tell their own numbers",
        "missing samples of several metrics are guessed high and low in every combination",
        "the fallback acts only where a metric that is not read keeps the rules from voting",
        "what would have changed a decision is worked out by deciding again, and names what would come of it",
        "an expression votes where no value of an unknown metric could make it another vote, unless for less",
        "a window that only has to fill says how far it is",
        "a period of a schedule lasts without a break through an hour that the clock repeats",
    ),
}
"""What each version decides otherwise than the one before it, in words for those who compare two decisions."""


class Inputs(Struct, frozen=True):
    """Everything one decision was made from; a shadow has no part in it. Options of collectors and scalers are left out: they decide
    nothing, and may come from secret settings. Inputs without a version are of the first.
    """

    policy: PolicySpec
    windows: dict[str, Window]
    state: TargetState
    controls: Controls
    now: float
    decision_id: str
    version: int = 1


class _Head(Struct, frozen=True):
    version: int = 1


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
    """Compressed inputs, about 1 KB for a usual target, and 2 KB for each of its rules that learn."""
    replace = msgspec.structs.replace
    metrics = {name: replace(spec, options={}, fingerprint="") for name, spec in policy.spec.metrics.items()}
    spec = replace(policy.spec, scaler_options={}, metrics=metrics, shadow=None)
    inputs = Inputs(
        spec,
        dict(windows),
        replace(state, last=None, shadow=b"", telling=None),
        controls,
        now,
        decision_id,
        VERSION,
    )
    return _encoded(inputs)


def _encoded(inputs: Inputs) -> bytes:
    return zlib.compress(msgspec.json.encode(inputs), 6)


def decode_inputs(data: bytes) -> Inputs:
    """Raises ReplayError, also for inputs of a newer release: what it decides by is not known here."""
    version = VERSION
    try:
        text = zlib.decompress(data)
        version = msgspec.json.decode(text, type=_Head).version
        if version <= VERSION:
            return msgspec.json.decode(text, type=Inputs)
    except (zlib.error, ValueError, RecursionError) as error:
        older = f" (they are of version {version}, this release is {VERSION})" if version < VERSION else ""
        raise ReplayError(f"the stored inputs cannot be read: {error}{older}") from error
    raise ReplayError(
        f"the stored inputs are of version {version}, this release reads up to {VERSION}: a newer release "
        "wrote them; replay the decision with that one"
    )


def replay(inputs: Inputs) -> Recommendation:
    """Decides again. Raises RuleError when a rule of the user's own code is not there any more."""
    return decide_and_explain(
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


def comparison(inputs: Inputs, recorded: Recommendation, replayed: Recommendation) -> str:
    """How the two decisions compare, in words; with what a newer version decides otherwise."""
    if same(recorded, replayed):
        return "identical, byte for byte"
    if inputs.version >= VERSION:
        return "different"
    changes = (text for version in range(inputs.version + 1, VERSION + 1) for text in CHANGES[version])
    return (
        f"different: the decision was made by version {inputs.version} of the logic, this release decides by "
        f"version {VERSION}. Since then: {'; '.join(changes)}"
    )


def same(recorded: Recommendation, replayed: Recommendation) -> bool:
    """Byte for byte, but for `unread`, which follows from the rest and is not in rows of earlier releases."""
    pair = (msgspec.structs.replace(recommendation, unread=False) for recommendation in (recorded, replayed))
    first, second = map(msgspec.json.encode, pair)
    return first == second
