"""A queue's function run by hand, with the name of a target where a message belongs: it is answered, and nothing changes."""

from __future__ import annotations

from scaling.config.policy_file import Config
from scaling.decision.seen import as_advised
from scaling.model import Capacity, TargetState
from scaling.ports import Scaler
from scaling.service import reading, shell
from scaling.service.messages import MessageError
from scaling.service.shell import Outcome, Ports
from tidemark.foundation.log.tail import Line
from tidemark.foundation.sanitize import shorten
from tidemark.foundation.wording import count_text, duration_text

MOST_NAMED = 20


def target_named(config: Config, body: str | bytes, kind: str) -> str | None:
    """The target whose name was typed; None for what may be a message of this kind, such as `a report`. Where there is one target only, an
    empty body means that.

    Raises MessageError for what is neither, with the names accepted.
    """
    text = (body.decode("utf-8", "replace") if isinstance(body, bytes) else body).strip().strip('"')
    if text.startswith("{"):
        return None
    known = list(config.policies)
    if text in config.policies:
        return text
    if not text and len(known) == 1:
        return known[0]
    names = ", ".join(known[:MOST_NAMED])
    raise MessageError(
        f"not {kind} message: found {shorten(text, 200)!r}; to ask by hand, type the name of a target: {names}"
    )


async def how_it_stands(ports: Ports, target: str, scaler: Scaler, now: float) -> Outcome:
    """What there is of a target, and what is under way. Raises StoreUnavailableError."""
    capacity = await reading.read_capacity(scaler, target, now)
    loaded = await shell.load(ports, target)
    if isinstance(capacity, Capacity):
        capacity = as_advised(loaded.state, capacity)
    sentences = [_capacity(capacity), *_under_way(loaded.state, now)]
    return Outcome(lines=(f"asked {target}: {'; '.join(sentences)}; nothing was changed",))


def _capacity(capacity: Capacity | str) -> str:
    if isinstance(capacity, str):
        return f"its capacity cannot be read: {capacity}"
    bounds = f"{capacity.floor} to {'any' if capacity.ceiling is None else capacity.ceiling} on this platform"
    if capacity.advised:
        return f"{capacity.current} are advised, and taken for done"
    held = f", held by {capacity.held_by}" if capacity.held_by else ""
    return f"capacity {capacity.current} ({bounds}){held}"


def _under_way(state: TargetState, now: float) -> list[str]:
    sentences = []
    if (pending := state.pending) is None:
        sentences.append("no action is pending")
    else:
        left = duration_text(max(0.0, round(pending.expires_at - now)))
        sentences.append(
            f"{pending.from_capacity} -> {pending.to_capacity} is pending [{pending.action_id}], given up in {left}"
        )
    if state.effects:
        last = state.effects[-1]
        ago = duration_text(max(0.0, round(now - last.at)))
        sentences.append(f"last change {last.from_capacity} -> {last.to_capacity}, {ago} ago")
    if state.refused is not None:
        sentences.append(f"refused before: {state.refused.detail}")
    return sentences


def checked_line(targets: int, findings: int, at: float) -> Line:
    """What a check has to say where everything is as it should be, and otherwise how much it said."""
    outcome = "as requested" if not findings else count_text(findings, "finding")
    text = f"verify: {count_text(targets, 'target')} checked, {outcome}"
    return Line(text, "check", {"at": at, "targets": targets})
