"""Loads under which a policy scales out and in again for ever, in a sentence each. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, inf

from scaling.analysis.steady import Piece, Steps, Subject
from tidemark.foundation.wording import number_text


def flapping(subject: Subject) -> Iterator[str]:
    shown: set[str] = set()
    for names, steps in subject.loads.items():
        if len(names) > 1 and shown & set(names):
            continue  # the same flapping, seen with several metrics at once
        rings: dict[tuple[int, ...], list[Piece]] = defaultdict(list)
        for piece, ring in steps.cycles():
            rings[ring].append(piece)
        if rings:
            shown.update(names)
            yield from _flaps(subject, names, steps, rings)


def _flaps(
    subject: Subject, names: tuple[str, ...], steps: Steps, rings: Mapping[tuple[int, ...], Sequence[Piece]]
) -> Iterator[str]:
    """One text for every group of rings of the same shape at consecutive counts."""
    metric = " and ".join(names)
    groups: list[list[tuple[int, ...]]] = []
    for ring in sorted(rings):
        before = groups[-1][-1] if groups else ()
        if len(ring) == len(before) and all(a == b + 1 for a, b in zip(ring, before, strict=True)):
            groups[-1].append(ring)
        else:
            groups.append([ring])
    for group in groups:
        first, last = group[0], group[-1]
        low, high = min(first), max(last)
        head = f"between {low} and {high} {subject.policy.spec.facts.unit}"
        if len(group) == 1:
            yield f"{head} {metric} {_flap(subject, metric, steps, first, rings[first])}"
        else:
            ends = "; ".join(_flap(subject, metric, steps, ring, rings[ring]) for ring in (first, last))
            yield f"{head} {metric} flaps at each count from {min(first)} to {min(last)}: {ends}"


def _flap(subject: Subject, metric: str, steps: Steps, ring: tuple[int, ...], pieces: Sequence[Piece]) -> str:
    """`from 301 to 399 scales out at 3 and back in at 4 (out above 300 at 3, in below 400 at 4)`."""
    low, high = ring[0], max(ring)
    if not steps.exact:
        piece = pieces[len(pieces) // 2]
        loads = f"of {number_text(steps.value_at(piece.sample, low))}, for example,"
    else:
        loads = span_text(pieces, low if steps.per_instance else None)
    at = f" at {low}" if steps.per_instance else ""
    way = f"scales out at {low} and back in at {high}"
    if len(ring) > 2:
        way = f"goes round {' -> '.join(map(str, (*ring, low)))}"
    levels = [
        *(f"out above {value} at {low}" for value in _levels(subject, metric, low, "out")),
        *(f"in below {value} at {high}" for value in _levels(subject, metric, high, "in")),
    ]
    shown = f" ({', '.join(levels)})" if levels else ""
    return f"{loads}{at} {way}{shown}"


def span_text(pieces: Sequence[Piece], count: int | None) -> str:
    """The first unbroken run of pieces as metric values: in whole numbers where the load is a number of
    messages, at `count` instances where it is shared among them.
    """
    last = 0
    while last + 1 < len(pieces) and pieces[last + 1].low == pieces[last].high:
        last += 1
    low, high = pieces[0].low, pieces[last].high
    closed_low, closed_high = pieces[0].low == pieces[0].high, pieces[last].low == pieces[last].high
    if count is None:
        least = ceil(low) if closed_low else floor(low) + 1
        most = inf if high == inf else floor(high) if closed_high else ceil(high) - 1
        if least == most:
            return f"of {least}"
        if least < most:
            return f"from {least}" + ("" if most == inf else f" to {most}")
    share = max(count or 1, 1)
    begin = f"{'from' if closed_low else 'above'} {number_text(low / share)}"
    if high == inf:
        return begin
    return f"{begin} {'to' if closed_high else 'and below'} {number_text(high / share)}"


def _levels(subject: Subject, metric: str, count: int, direction: str) -> Iterator[str]:
    for line in subject.levels[count]:
        combined = line.metric not in subject.policy.windows
        if line.direction == direction and (line.metric == metric or combined):
            yield number_text(line.value)
