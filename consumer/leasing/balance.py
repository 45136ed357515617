"""Decides which partitions an instance claims, keeps and releases. Every instance computes the same plan from the same
leases and the store's clock, so that instances agree without exchanging messages.

An instance announces itself by a presence: a lease on `~<owner>`. Partitions are not taken from an instance that is
present: an owner above its share drains and releases partitions, and free ones are assigned to owners below theirs. A
foreign consumer, such as the SDK's own processor, has leases but no presence. Its excess partitions are taken once it
has kept them for two expiry times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from math import inf

from msgspec import Struct, structs

from consumer.model import Lease

PRESENCE = "~"
"""First character of a presence's partition; no partition id of a hub begins with it."""

FOREIGN_PATIENCE = 2.0
"""Expiry times for which a foreign owner may keep its excess. Instances of the SDK take partitions from each other within
one round (10 to 36 s), and accept that others take them."""

FORGET_AFTER = 10.0
"""Expiry times after which the presence of a dead instance is removed. Chosen: it only tidies, so late is as good as soon."""


class Plan(Struct, frozen=True):
    """The next steps of an instance. `claim` and `renew` are compare-and-set on the leases as listed."""

    claim: tuple[Lease, ...] = ()
    renew: tuple[Lease, ...] = ()
    release: tuple[Lease, ...] = ()
    """Own leases above the share, or of a removed partition: drain, then release. Renew them meanwhile."""
    forget: tuple[Lease, ...] = ()
    """Presences of dead instances, to be deleted."""
    missing: int = 0
    """Partitions of the own share that other owners still hold; list again soon."""
    excess_since: Mapping[str, float] = {}
    """Since when a foreign owner is above its share; pass it to the next plan."""


def presence_of(owner: str) -> str:
    """The partition under which an instance announces itself."""
    return PRESENCE + owner


def is_presence(partition: str) -> bool:
    return partition.startswith(PRESENCE)


def split(leases: Iterable[Lease]) -> tuple[list[Lease], list[Lease]]:
    """Separates the leases of partitions from presences."""
    of_partitions: list[Lease] = []
    presences: list[Lease] = []
    for lease in leases:
        (presences if is_presence(lease.partition) else of_partitions).append(lease)
    return of_partitions, presences


def partition_order(partition: str) -> tuple[int, int, str]:
    """A sort key that puts '10' after '9'."""
    return (0, int(partition), partition) if partition.isdecimal() else (1, 0, partition)


class LeaseAges:
    """Dates leases by an instance's own monotonic clock, as far as it has seen them: a store's clock may be set by hours.

    A lease is no younger than its token is known, and no older than the look before, when it had another one. Of a lease seen for the
    first time only the store's times say how old it is.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, float, float]] = {}  # token, first seen, not there yet
        self._looked_at = -inf

    def dated(self, leases: Iterable[Lease], store_now: float, now: float) -> list[Lease]:
        """The leases with `renewed_at` by the own clock, in which it is `now`."""
        seen: dict[str, tuple[str, float, float]] = {}
        dated = []
        for lease in leases:
            token, since, before = self._seen.get(lease.partition, ("", now, -inf))
            if token != lease.token:
                token, since, before = lease.token, now, self._looked_at
            seen[lease.partition] = token, since, before
            renewed_at = min(max(now - (store_now - lease.renewed_at), before), since)
            dated.append(structs.replace(lease, renewed_at=renewed_at))
        self._seen, self._looked_at = seen, now
        return dated


def plan(
    leases: Sequence[Lease],
    presences: Sequence[Lease],
    partitions: Sequence[str],
    owner: str,
    now: float,
    expiry: float,
    *,
    draining: Collection[str] = (),
    excess_since: Mapping[str, float] | None = None,
) -> Plan:
    """The plan of `owner`. A lease expires after `expiry` seconds without a renewal; all times are of one clock.

    `draining` are partitions that `owner` is giving up already; they are the first to be released. Plans of different
    owners on the same leases never claim the same partition, and their shares differ by at most one.
    """
    stored = {lease.partition: lease for lease in leases}
    wanted = sorted(set(partitions), key=partition_order)
    cooperative = {owner} | {
        lease.owner for lease in presences if lease.owner and now - lease.renewed_at <= expiry
    }
    owner_of = {
        partition: lease.owner
        for partition in wanted
        if (lease := stored.get(partition)) is not None
        and lease.owner
        # A present instance renews or releases its own leases, however old they are, so they are not free.
        and (lease.owner in cooperative or now - lease.renewed_at <= expiry)
    }
    held = Counter(owner_of.values())
    targets = _targets(len(wanted), held, cooperative | held.keys())
    since = _excess_since(held, targets, cooperative, now, excess_since or {})
    free = [partition for partition in wanted if partition not in owner_of]
    free += _overdue(owner_of, held, targets, since, now - FOREIGN_PATIENCE * expiry)

    mine = [partition for partition, held_by in owner_of.items() if held_by == owner]
    kept = sorted(mine, key=lambda name: (name in draining, partition_order(name)))[: targets[owner]]
    removed = [lease for lease in leases if lease.owner == owner and lease.partition not in set(wanted)]
    claims = _deal(free, held, targets, cooperative, owner)
    return Plan(
        claim=tuple(stored.get(partition) or Lease(partition, "", 0.0, "") for partition in claims),
        renew=tuple(stored[partition] for partition in sorted(kept, key=partition_order)),
        release=(*(stored[partition] for partition in mine if partition not in set(kept)), *removed),
        forget=tuple(lease for lease in presences if now - lease.renewed_at > FORGET_AFTER * expiry),
        missing=max(0, targets[owner] - len(kept) - len(claims)),
        excess_since=since,
    )


def _targets(total: int, held: Mapping[str, int], owners: Collection[str]) -> dict[str, int]:
    """The share of every owner. If the partitions do not divide evenly, owners that hold the most get one more, so that
    the fewest partitions move. Ties are broken by name, which does not change while partitions move.
    """
    share, remainder = divmod(total, len(owners))
    ranked = sorted(owners, key=lambda owner: (-max(held.get(owner, 0), share), owner))
    return {owner: share + (rank < remainder) for rank, owner in enumerate(ranked)}


def _excess_since(
    held: Mapping[str, int],
    targets: Mapping[str, int],
    cooperative: Collection[str],
    now: float,
    before: Mapping[str, float],
) -> dict[str, float]:
    return {
        owner: before.get(owner, now)
        for owner, count in held.items()
        if owner not in cooperative and count > targets[owner]
    }


def _overdue(
    owner_of: Mapping[str, str],
    held: Mapping[str, int],
    targets: Mapping[str, int],
    since: Mapping[str, float],
    limit: float,
) -> list[str]:
    """The last partitions of every foreign owner that is above its share since `limit` or earlier."""
    taken: list[str] = []
    for owner in sorted(since):
        if since[owner] <= limit:
            theirs = [partition for partition, held_by in owner_of.items() if held_by == owner]
            taken += theirs[targets[owner] - held[owner] :]
    return taken


def _deal(
    free: Sequence[str],
    held: Mapping[str, int],
    targets: Mapping[str, int],
    cooperative: Collection[str],
    owner: str,
) -> list[str]:
    """The free partitions that `owner` claims. They are dealt in order to the owners below their share, one at a time.

    Partitions that foreign owners lack are left free, because those claim partitions without an owner themselves.
    """
    remaining = iter(free)
    dealt: dict[str, list[str]] = {name: [] for name in sorted(cooperative)}
    needs = {name: targets[name] - held.get(name, 0) for name in dealt}
    while any(need > 0 for need in needs.values()):
        below_share = [name for name, need in needs.items() if need > 0]
        next_free = list(islice(remaining, len(below_share)))
        for name, partition in zip(below_share, next_free, strict=False):
            dealt[name].append(partition)
            needs[name] -= 1
        if len(next_free) < len(below_share):
            break
    return dealt[owner]
