"""What is known of kinds of resources without asking: which number is set, how, within which limits, and at what price. Pure.

A kind is data. A resource of any other kind is scaled by writing the same facts into tidemark.toml; what they are for, and
which of them nobody has seen confirmed, is in docs/targets.md.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from scaling.target_facts import Settable, TargetFacts

Method = Literal["patch", "put"]


class Kind(Struct, frozen=True, kw_only=True):
    """`path` leads to the number, by names with dots between them; `absent` is what it is where it is missing.

    `floor` and `ceiling` are the platform's limits; those at the paths `floor_at` and `ceiling_at` of the resource narrow them.
    `allowed` values are multiplied by the number at `times`. Where something else stands at the path `needs` than one of
    the texts after it, there is nothing to set. While `true_at` is true the platform itself, called `holder`, changes the
    number. A change more often than every `pause` seconds is unwise, and `why`. A list is complete only with `list_query`.
    `removal` is the action that removes instances by their ids, where there is one, and lowers the number by them. Where it
    `counts_workers`, the number is that of instances that run.
    """

    type: str
    api_version: str
    path: str
    unit: str
    method: Method = "patch"
    absent: int | None = None
    floor: int = 0
    ceiling: int | None = None
    floor_at: str = ""
    ceiling_at: str = ""
    step: int = 1
    allowed: tuple[int, ...] = ()
    times: str = ""
    needs: tuple[str, tuple[str, ...]] | None = None
    true_at: str = ""
    holder: str = ""
    pause: float = 0.0
    why: str = ""
    list_query: str = ""
    removal: str = ""
    counts_workers: bool = True

    @property
    def facts(self) -> TargetFacts:
        """What the configuration and its checks go by. Values that depend on the resource are not known there."""
        settable = Settable(self.step, () if self.times else self.allowed)
        return TargetFacts(self.unit, settable, self.pause, self.why, counts_workers=self.counts_workers)


_REPLICAS = "properties.template.scale.{}Replicas"
_REVISION = "each change makes a revision of the app, whose replicas all start anew while the old ones end"

KINDS: dict[str, Kind] = {  # sorted; a test keeps it so
    # The most: what protects a database behind the app.
    "container_app_maximum": Kind(
        type="Microsoft.App/containerApps",
        api_version="2024-03-01",
        path=_REPLICAS.format("max"),
        unit="replicas",
        counts_workers=False,
        absent=10,
        floor=1,
        floor_at=_REPLICAS.format("min"),
        ceiling=1000,
        pause=300.0,
        why=_REVISION,
    ),
    # The least that run however little there is to do: the app's own scale rules add to it.
    "container_app_minimum": Kind(
        type="Microsoft.App/containerApps",
        api_version="2024-03-01",
        path=_REPLICAS.format("min"),
        unit="replicas",
        counts_workers=False,
        absent=0,
        ceiling=1000,
        ceiling_at=_REPLICAS.format("max"),
        pause=300.0,
        why=_REVISION,
    ),
    "event_hubs_throughput_units": Kind(
        type="Microsoft.EventHub/namespaces",
        api_version="2024-01-01",
        path="sku.capacity",
        unit="throughput units",
        counts_workers=False,
        floor=1,
        ceiling=40,
        needs=("sku.name", ("Basic", "Standard")),
        true_at="properties.isAutoInflateEnabled",
        holder="auto-inflate",
        pause=300.0,
        why="units are billed by the hour, and the length of a change is not documented",
    ),
    "service_bus_messaging_units": Kind(
        type="Microsoft.ServiceBus/namespaces",
        api_version="2024-01-01",
        path="sku.capacity",
        unit="messaging units",
        counts_workers=False,
        floor=1,
        allowed=(1, 2, 4, 8, 16),
        times="properties.premiumMessagingPartitions",
        needs=("sku.name", ("Premium",)),
        pause=600.0,
        why="units are billed by the hour, and how long a change takes, and what it interrupts, is not documented",
    ),
    "virtual_machine_scale_set": Kind(
        type="Microsoft.Compute/virtualMachineScaleSets",
        api_version="2024-11-01",
        path="sku.capacity",
        unit="instances",
        ceiling=1000,
        pause=300.0,
        why="a machine takes minutes to start, and one that goes takes what runs on it along",
        removal="delete",
    ),
}
