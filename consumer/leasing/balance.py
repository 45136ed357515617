"""Which partitions an instance claims, keeps and gives up. Every instance runs the same plan on the same leases,
with the store's clock and nobody else's, so that they agree without talking.

An instance that takes part announces itself by a presence: a lease on `~<owner>`. Partitions move by consent: an
owner above its share drains and releases, and what is free is dealt to those below theirs. Nobody steals from an
instance that announces itself. A foreign consumer (the SDK's own, say) has leases only; from it the excess is
taken, once it has kept it for two expiry times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from msgspec import Struct

from consumer.model import Lease

PRESENCE = "~"
"""First character of a presence's partition; no partition of a hub is called so."""

FOREIGN_PATIENCE = 2.0
"""Expiry times that a foreign owner may keep its excess. The SDK gives it up within one round of its own (10 to
36 s), by letting itself be stolen from: whoever wants partitions takes them."""

FORGET_AFTER = 10.0
"""Expiry times after which the presence of a dead instance is removed."""


class Plan(Struct, frozen=True):
    """What an instance does now. `claim` and `renew` are compare-and-set on the leases as they were listed."""

    claim: tuple[Lease, ...] = ()
    renew: tuple[Lease, ...] = ()
    release: tuple[Lease, ...] = ()
    """Ours, above our share or of a partition that is gone: drain, then release. Renew them meanwhile."""
    forget: tuple[Lease, ...] = ()
    """Presences of instances that are long gone."""
    missing: int = 0
    """Partitions that are ours by right and still in other hands: look again soon."""
    excess_since: Mapping[str, float] = {}
    """Since when (store time) each foreign owner is above its share; give it to the next plan."""


def presence_of(owner: str) -> str:
    """The partition under which an instance announces itself."""
    return PRESENCE + owner


def is_presence(partition: str) -> bool:
    return partition.startswith(PRESENCE)


def split(leases: Iterable[Lease]) -> tuple[list[Lease], list[Lease]]:
    """Leases of partitions, and presences."""
    of_partitions: list[Lease] = []
    presences: list[Lease] = []
    for lease in leases:
        (presences if is_presence(lease.partition) else of_partitions).append(lease)
    return of_partitions, presences


def partition_order(partition: str) -> tuple[int, int, str]:
    """Sorts '10' behind '9'."""
    return (0, int(partition), partition) if partition.isdecimal() else (1, 0, partition)


def plan(
    leases: Sequence[Lease],
    presences: Sequence[Lease],
    partitions: Sequence[str],
    owner: str,
    store_now: float,
    expiry: float,
    *,
    draining: Collection[str] = (),
    excess_since: Mapping[str, float] | None = None,
) -> Plan:
    """The plan of `owner`. `expiry` is in seconds without a renewal; all times are the store's.

    `draining` are partitions that `owner` is giving up already: they go first if any must. Plans of different
    owners on the same leases never claim the same partition, and targets differ by at most one.
    """
    stored = {lease.partition: lease for lease in leases}
    wanted = sorted(set(partitions), key=partition_order)
    cooperative = {owner} | {
        lease.owner for lease in presences if lease.owner and store_now - lease.renewed_at <= expiry
    }
    holder = {
        partition: lease.owner
        for partition in wanted
        if (lease := stored.get(partition)) is not None
        and lease.owner
        # An instance that is present renews or releases what is its own, however old: not to be taken from it.
        and (lease.owner in cooperative or store_now - lease.renewed_at <= expiry)
    }
    held = Counter(holder.values())
    targets = _targets(len(wanted), held, cooperative | held.keys())
    since = _excess_since(held, targets, cooperative, store_now, excess_since or {})
    free = [partition for partition in wanted if partition not in holder]
    free += _overdue(holder, held, targets, since, store_now - FOREIGN_PATIENCE * expiry)

    mine = [partition for partition, by in holder.items() if by == owner]
    kept = sorted(mine, key=lambda each: (each in draining, partition_order(each)))[: targets[owner]]
    gone = [lease for lease in leases if lease.owner == owner and lease.partition not in set(wanted)]
    claims = _dealt(free, held, targets, cooperative, owner)
    return Plan(
        claim=tuple(stored.get(partition) or Lease(partition, "", 0.0, "") for partition in claims),
        renew=tuple(stored[partition] for partition in sorted(kept, key=partition_order)),
        release=(*(stored[partition] for partition in mine if partition not in set(kept)), *gone),
        forget=tuple(lease for lease in presences if store_now - lease.renewed_at > FORGET_AFTER * expiry),
        missing=max(0, targets[owner] - len(kept) - len(claims)),
        excess_since=since,
    )


def _targets(total: int, held: Mapping[str, int], owners: Collection[str]) -> dict[str, int]:
    """Fair shares. The partitions that do not divide stay with those who hold more than the share, so that least
    is moved; the rest goes by name, which does not change while partitions are on their way.
    """
    share, left_over = divmod(total, len(owners))
    ranked = sorted(owners, key=lambda each: (-max(held.get(each, 0), share), each))
    return {each: share + (rank < left_over) for rank, each in enumerate(ranked)}


def _excess_since(
    held: Mapping[str, int],
    targets: Mapping[str, int],
    cooperative: Collection[str],
    store_now: float,
    before: Mapping[str, float],
) -> dict[str, float]:
    return {
        each: before.get(each, store_now)
        for each, count in held.items()
        if each not in cooperative and count > targets[each]
    }


def _overdue(
    holder: Mapping[str, str],
    held: Mapping[str, int],
    targets: Mapping[str, int],
    since: Mapping[str, float],
    limit: float,
) -> list[str]:
    """The excess of foreign owners that they kept since before `limit`: the last partitions of each."""
    taken: list[str] = []
    for each in sorted(since):
        if since[each] <= limit:
            theirs = [partition for partition, by in holder.items() if by == each]
            taken += theirs[targets[each] - held[each] :]
    return taken


def _dealt(
    free: Sequence[str],
    held: Mapping[str, int],
    targets: Mapping[str, int],
    cooperative: Collection[str],
    owner: str,
) -> list[str]:
    """`owner`'s part of what is free, when it is dealt in order to those below their share, one each in turn.

    What foreign owners lack is left for them: they claim what they find without an owner.
    """
    cards = iter(free)
    dealt: dict[str, list[str]] = {each: [] for each in sorted(cooperative)}
    needs = {each: targets[each] - held.get(each, 0) for each in dealt}
    while any(need > 0 for need in needs.values()):
        short = [each for each, need in needs.items() if need > 0]
        hand = list(islice(cards, len(short)))
        for each, partition in zip(short, hand, strict=False):
            dealt[each].append(partition)
            needs[each] -= 1
        if len(hand) < len(short):
            break
    return dealt[owner]
