"""What is remembered of the simulated rules between reports: one bounded, versioned value per target. Pure.

It travels as bytes in the target's row (`TargetState.shadow`), so that nothing in it can make the row unreadable. Bytes
that cannot be read, or of another version, are no memory: the comparison begins anew.
"""

from __future__ import annotations

from math import isfinite

import msgspec
from msgspec import Struct, field

from scaling.config.policy import Policy
from scaling.log_entry import ShadowSaid
from scaling.model import EffectRecord, Spent

VERSION = 1

MAX_BYTES = 65_536
"""No memory is larger. Chosen: 175 KB of the row of a target, which holds 1 MiB. One of a `service_level` rule takes 12 KB, of four,
with long windows and a long stabilization, 40 KB.
"""


class Tally(Struct, array_like=True):
    """Sums since `since`, over `seconds` that were seen: unit-seconds of capacity, messages, decisions.

    `live` is of the rules that decide, `simulated` of the simulated ones. Of `modelled` seconds it is known how long messages
    waited: `arrived` came in them, `*_late` had waited too long when they were begun, `*_overdue` wait too long now.
    Of `decisions` both wanted the same in `agreed`, and in `failed` a simulated rule raised an error.
    """

    since: float = 0.0
    seconds: float = 0.0
    live: float = 0.0
    simulated: float = 0.0
    modelled: float = 0.0
    arrived: float = 0.0
    live_late: float = 0.0
    simulated_late: float = 0.0
    live_overdue: float = 0.0
    simulated_overdue: float = 0.0
    decisions: int = 0
    agreed: int = 0
    failed: int = 0


class Shadow(Struct, array_like=True):
    """The simulated rules, as of `at`. `rules` says which ones they are and beside which; `promoted`, that these are the
    configured ones and the shadow decides.

    `capacity` is what they would have (None before the first decision), of which `ready` served at `at`; `live` is what
    the target had then; `starts` are (asked at, count) of instances that would not serve yet; `effects` to `memories` are as in `TargetState`.
    `known` is what was learned of the target as it is (`scaling.rules.service_level.memory`), `waiting` the messages that
    would wait, `apart` by how much the numbers of the simulated queue differ from those that are measured, as steps:
    (from when on, messages there, messages completed per interval). `spent` of a day's budget is what they would have spent, `unlearned` why
    what a rule learned was not kept.
    """

    version: int = VERSION
    rules: str = ""
    promoted: bool = False
    at: float = 0.0
    capacity: int | None = None
    ready: int = 0
    live: int = 0
    starts: list[tuple[float, int]] = field(default_factory=list)
    effects: tuple[EffectRecord, ...] = ()
    recommendations: tuple[tuple[float, int], ...] = ()
    missing_since: float | None = None
    memories: dict[str, bytes] = field(default_factory=dict)
    known: bytes = b""
    waiting: float = 0.0
    apart: list[tuple[float, int, int]] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    last: ShadowSaid | None = None
    spent: Spent | None = None
    unlearned: dict[str, str] = field(default_factory=dict)


def sides(policy: Policy, *, promoted: bool) -> str:
    """By which a comparison is known (`Shadow.rules`): of which shadow it is, beside which rules, and who decides."""
    return f"{policy.shadow_id}-{policy.rules_id}{'+' if promoted else ''}"


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Shadow)


def encode(shadow: Shadow) -> bytes:
    return _encoder.encode(shadow)


def decode(data: bytes) -> Shadow | None:
    """The memory in the bytes; None where there is none, or none of this version, or a sum in it is not finite."""
    if not data or len(data) > MAX_BYTES:
        return None
    try:
        shadow = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    tally = shadow.tally
    sums = (shadow.at, shadow.waiting, *msgspec.structs.astuple(tally))
    return shadow if shadow.version == VERSION and all(map(isfinite, sums)) else None
