"""Rules tried on what was logged: beside each decision of the past, from the inputs that are kept with it. Pure.

What they would have decided is worked out as for a shadow, with the same imagined capacity and queue: see
`scaling.shadow.beside`. The windows are those of the past, so rules can be tried on metrics the target had.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct, structs

from scaling.analysis.replay import decode_inputs
from scaling.config.policy import Policy
from scaling.log_entry import LogEntry, ShadowSaid
from scaling.model import NO_CONTROLS, Recommendation, TargetState
from scaling.shadow.beside import simulate_shadow
from scaling.shadow.comparison import ShadowView, shadow_view

LISTED = 100
"""Decisions that differ and are listed; all are counted. Chosen: a page of a table."""


class Difference(Struct, frozen=True):
    """A decision: from `current` to `desired`, and in the simulation from `imagined` to `simulated`."""

    at: float
    current: int | None
    desired: int | None
    imagined: int
    simulated: int | None
    line: str


class Trial(Struct):
    """What simulated rules would have done with the past: `simulated` are (time, capacity) where it changes. Of the `differing`
    decisions, in capacity or in what was wanted, `differences` are the first that were a change on either side. `skipped`
    are those whose inputs are not there or of another release. `view` compares both sides, None where there was nothing to
    decide.
    """

    decisions: int = 0
    skipped: int = 0
    differing: int = 0
    changes: int = 0
    simulated_changes: int = 0
    simulated: list[tuple[float, int]] = []
    differences: list[Difference] = []
    warnings: list[str] = []
    view: ShadowView | None = None


def simulate_past(policy: Policy, entries: Iterable[LogEntry]) -> Trial:
    """`policy` with the rules to try as its shadow; `entries` are decisions with their inputs, oldest first."""
    trial, shadow = Trial(), b""
    for entry in entries:
        made, inputs = entry.recommendation, None
        with suppress(ValueError):  # inputs of another release
            inputs = None if entry.inputs is None else decode_inputs(entry.inputs)
        if made is None or inputs is None:
            trial.skipped += 1
            continue
        controls = structs.replace(inputs.controls, promoted=None)
        state = structs.replace(inputs.state, shadow=shadow)
        beside = simulate_shadow(policy, inputs.windows, state, made, controls=controls)
        shadow = beside.shadow
        trial.warnings = list(dict.fromkeys((*trial.warnings, *beside.warnings)))
        trial.decisions += 1
        trial.changes += made.acts
        if beside.said is not None:
            _compare(trial, made, beside.said)
    if trial.decisions:
        trial.view = shadow_view(policy, TargetState(shadow=shadow), NO_CONTROLS)
    return trial


def _compare(trial: Trial, made: Recommendation, said: ShadowSaid) -> None:
    moves = said.desired not in {None, said.current}
    trial.simulated_changes += moves
    if not trial.simulated or trial.simulated[-1][1] != said.current:
        trial.simulated.append((made.at, said.current))
    if (said.desired, said.current) == (made.desired, made.current):
        return
    trial.differing += 1
    if (moves or made.acts) and len(trial.differences) < LISTED:
        difference = Difference(made.at, made.current, made.desired, said.current, said.desired, said.line)
        trial.differences.append(difference)
