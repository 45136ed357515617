"""Carries out one action and says what became of it: refused, done, or handed back to be sent again.

The order of the writes mirrors that of an evaluation: the state says that the action is being carried out, then the
platform (absolute, idempotent), the log row, the state. Whatever happens in between, the action stays pending until its
effect is recorded, by a delivery, an evaluation or a check, or until it is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct, structs

from scaling.calls.limiter import urgent
from scaling.config.policy import Policy
from scaling.config.policy_file import Config
from scaling.decision import pending_action
from scaling.decision.decide import no_longer_wanted
from scaling.decision.lock_step import as_seen, neighbours, objection
from scaling.decision.orders import policy_in_force
from scaling.decision.reconsider import is_turned, under_way_until
from scaling.decision.seen import as_asked_too_early
from scaling.drains.draining import sendable_from
from scaling.measuring.windows import as_asked
from scaling.model import AskedToWait, Delivery, Effect, EffectOutcome, ScaleAction, TargetState, effect_of
from scaling.ports import Scaler, ScalerError, Snapshot
from scaling.service import messages as codec
from scaling.service.entries import effect_entry, entry_line
from scaling.service.evaluation import controls_of
from scaling.service.reading import checked_effect, read_capacity
from scaling.service.shell import ATTEMPTS, Outcome, Ports, append, correct, load, save
from tidemark.foundation.errors import ConflictError
from tidemark.foundation.sanitize import describe_error, sanitize_line

AGAIN_AFTER = 30.0
"""Seconds after which an action that could not be carried out is due again, where the platform does not say."""

MAX_WAIT = 86_400.0

DELIVERY_SECONDS = 60.0
"""Seconds one delivery of an action may take where the scaler has no `deadline` of its own."""

DELIVERY_MARGIN = 45.0
"""Seconds above a scaler's deadline for its reads, after which what became of an order is no longer waited for."""


class _Delivered(Struct, frozen=True):
    """What came of one delivery; where the action stays pending it is sent again `again_after` seconds later.

    `begun` is how the state knows of this delivery, `earlier` the time by which another one is over that was at the
    same action when this one began: it may have died, or not.
    """

    effect: Effect
    again_after: float = AGAIN_AFTER
    error: Exception | None = None
    unknown: bool = False  # the platform may carry it out all the same
    untouched: bool = False  # the platform is known not to have begun it
    asked: bool = False  # the platform asked for the wait
    begun: Delivery | None = None
    earlier: float | None = None
    refused: bool = False  # it was not begun, for something forbids it


class Deliveries(Struct, frozen=True):
    """The actions of the configured targets, on their way from the queue to the platform."""

    config: Config
    ports: Ports
    clock: Callable[[], float]

    async def apply(self, message: str | bytes) -> Outcome:
        """Carries out one action, or hands it back to be sent again: see `_carry_out`. Raises MessageError for an
        unreadable message, ConflictError, StoreUnavailableError, and what a scaler raises besides ScalerError.
        """
        action = codec.decode(ScaleAction, message)
        policy, scaler = self.config.policies.get(action.target), self.ports.scalers.get(action.target)
        if policy is None or scaler is None:
            return Outcome(warnings=(f"scaler {action.target}: not in the configuration; action dropped",))
        for _ in range(ATTEMPTS):
            loaded = await load(self.ports, action.target)
            now = self.clock()
            if any(known.action_id == action.action_id for known in loaded.state.effects):
                return Outcome(lines=(f"scaler {action.target}: already carried out [{action.action_id}]",))
            earlier = under_way_until(loaded.state, now, action.action_id)
            effect = pending_action.refusal(policy, loaded.state, controls_of(loaded, now), action, now=now)
            if effect is None:
                effect = _withdrawn(policy, loaded, action, now)
            if effect is None:
                effect = _announced(loaded, action, now)
            if effect is None:
                effect = await self._out_of_step(policy, loaded, action)
            if effect is not None and earlier is not None:  # or it would be given up under the other's hands
                text = f"left to the delivery that is at it [{action.action_id}]: {effect.detail}"
                return Outcome(warnings=(f"scaler {action.target}: {text}",))
            if effect is not None:
                return await self._finished(_Delivered(effect, begun=loaded.state.delivery, refused=True))
            until = min(now + _deadline_of(scaler) + DELIVERY_MARGIN, action.expires_at)
            begun = pending_action.being_carried_out(loaded.state, now=now, until=until)
            try:
                await save(self.ports, loaded, begun)
            except ConflictError:
                continue
            with urgent():
                done = await self._carry_out(scaler, action, until)
            effect = pending_action.as_ours(begun, done.effect)
            effect = as_asked_too_early(policy, begun, effect)
            return await self._finished(
                structs.replace(done, effect=effect, begun=begun.delivery, earlier=earlier)
            )
        raise ConflictError(f"scaler {action.target}: state changed {ATTEMPTS} times before an action")

    async def _finished(self, delivered: _Delivered) -> Outcome:
        effect = delivered.effect
        entry = effect_entry(effect)
        await append(self.ports, [entry])
        if not await self._record(delivered):
            await correct(self.ports, [entry])
            text = f"left to another delivery, which began meanwhile [{effect.action_id}]: {effect.detail}"
            return Outcome(warnings=(f"scaler {effect.target}: {text}",))
        if delivered.error is not None:
            raise delivered.error
        line = entry_line(entry)
        as_asked = {EffectOutcome.APPLIED, EffectOutcome.ALREADY_THERE, EffectOutcome.ACCEPTED}
        return Outcome(lines=(line,)) if effect.outcome in as_asked else Outcome(warnings=(line,))

    async def _out_of_step(self, policy: Policy, loaded: Snapshot, action: ScaleAction) -> Effect | None:
        """The effect of an action that has to wait for another target. It stays pending, and is sent again.

        The other targets are read after the action was found to be the pending one: see `lock_step`.
        First their state, for what is under way; then the platform, for what was done and never recorded.
        """
        now, others = self.clock(), {}
        for name in {neighbour.target for neighbour in neighbours(policy).values()}:
            state = (await load(self.ports, name)).state
            scaler = self.ports.scalers.get(name)
            with urgent():
                seen = "it has no scaler" if scaler is None else await read_capacity(scaler, name, now)
            others[name] = as_seen(state, seen)
        rules = policy_in_force(policy, controls_of(loaded, now))
        text = objection(rules, as_asked(rules, loaded.windows), action, others, now=now)
        return None if text is None else effect_of(action, EffectOutcome.FAILED, now, f"waits: {text}")

    async def _carry_out(self, scaler: Scaler, action: ScaleAction, until: float) -> _Delivered:
        """What came of one delivery: the effect at the time it was there, which may be minutes after the order.

        Whatever a scaler raises, what became of the order is unknown: the action stays pending and is sent again,
        and the platform itself says then where it stands. A ScalerError is the trouble that is known of, and
        costs no more than that; another exception goes on to the host, so that its traceback is logged. A delivery
        never goes on after `until`, for it takes a place in the queue's batch, and the state says that it is over
        then, on which others rely.
        """
        again_after, unforeseen, unknown, untouched, asked = AGAIN_AFTER, None, False, False, False
        seconds = until - self.clock()
        if seconds <= 0:
            text = "its time was over before it could begin"
            return _Delivered(effect_of(action, EffectOutcome.FAILED, self.clock(), text))
        try:
            async with asyncio.timeout(seconds):
                effect = await scaler.apply(action, now=self.clock())
                if (
                    effect.outcome is EffectOutcome.EXTERNAL_CHANGE
                    and effect.reached == action.replaces is not None
                ):
                    # The action that this one took the place of was carried out after all.
                    if is_turned(action):
                        text = (
                            f"found {effect.reached}, to which an earlier action led; decided anew from there"
                        )
                        return _Delivered(effect_of(action, EffectOutcome.FAILED, self.clock(), text))
                    moved = structs.replace(action, from_capacity=action.replaces, replaces=None)
                    effect = await scaler.apply(moved, now=self.clock())
            return _Delivered(structs.replace(checked_effect(effect), at=self.clock()))
        except ScalerError as error:
            text, unknown = sanitize_line(str(error)), error.unknown is True
            untouched = not unknown
            wait: object = error.retry_after  # of a user's scaler it may be anything
            if isinstance(wait, int | float) and 0 < wait < MAX_WAIT:
                asked, again_after = True, float(wait)
        except TimeoutError:
            text, unknown = f"no answer within {seconds:.0f} s; what became of it is not known", True
        except Exception as error:  # a scaler of the user's own may raise anything
            text, unforeseen, unknown = describe_error(error), error, True
        effect = effect_of(action, EffectOutcome.FAILED, self.clock(), text)
        return _Delivered(effect, again_after, unforeseen, unknown, untouched, asked)

    async def _record(self, delivered: _Delivered) -> bool:
        """Saves what came of an action; one that is still to be carried out is sent again when it is due. False where it was refused, and
        another delivery has begun it since.
        """
        effect = delivered.effect
        for _ in range(ATTEMPTS):
            loaded = await load(self.ports, effect.target)
            if delivered.refused and loaded.state.delivery != delivered.begun:
                return loaded.state.pending is None or loaded.state.pending.action_id != effect.action_id
            state = pending_action.record_effect(loaded.state, effect)
            if effect.outcome in pending_action.STILL_OPEN:
                state = _handed_back(state, delivered)
            if state == loaded.state:
                return True
            try:
                await save(self.ports, loaded, state)
            except ConflictError:
                continue
            return True
        raise ConflictError(
            f"scaler {effect.target}: state changed {ATTEMPTS} times while recording an effect"
        )


def _withdrawn(policy: Policy, loaded: Snapshot, action: ScaleAction, now: float) -> Effect | None:
    """The effect of an action that would not be decided any more; its message may be minutes late."""
    controls = controls_of(loaded, now)
    rules = policy_in_force(policy, controls)
    text = no_longer_wanted(rules, as_asked(rules, loaded.windows), loaded.state, now=now, controls=controls)
    return None if text is None else effect_of(action, EffectOutcome.WITHDRAWN, now, text)


def _announced(loaded: Snapshot, action: ScaleAction, now: float) -> Effect | None:
    """The effect of an action that its workers have to acknowledge first, however its message came about."""
    if sendable_from(loaded.state, controls_of(loaded, now)) <= now:
        return None
    return effect_of(action, EffectOutcome.FAILED, now, "waits for its workers to acknowledge it")


def _handed_back(state: TargetState, delivered: _Delivered) -> TargetState:
    """A delivery that began, or a message that left, after this one began is not over with it."""
    effect = delivered.effect
    if delivered.unknown:
        state = pending_action.perhaps_accepted(state, effect.action_id, effect.at)
    if delivered.asked:
        asked = AskedToWait(effect.at, effect.at + delivered.again_after)
        state = structs.replace(state, asked_to_wait=asked)
    if state.delivery != delivered.begun:
        return state
    if delivered.untouched:
        state = pending_action.without_sent(state, effect.action_id)
    due_at = effect.at + delivered.again_after
    return pending_action.hand_back(state, effect.action_id, due_at=due_at, carried_until=delivered.earlier)


def _deadline_of(scaler: Scaler) -> float:
    """The scaler's own deadline, which may be a user's and then anything: then the default."""
    try:
        seconds = float(getattr(scaler, "deadline", DELIVERY_SECONDS))
    except Exception:  # a property of a user's scaler may raise anything
        return DELIVERY_SECONDS
    return seconds if 0 < seconds < MAX_WAIT else DELIVERY_SECONDS
