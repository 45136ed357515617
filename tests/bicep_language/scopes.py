"""What a template is deployed to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TENANT = "99999999-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Scope:
    """A subscription, or a resource group of it."""

    subscription: str
    group: str | None = None

    @property
    def id(self) -> str:
        subscription = f"/subscriptions/{self.subscription}"
        return subscription if self.group is None else f"{subscription}/resourceGroups/{self.group}"

    @property
    def kind(self) -> str:
        return "subscription" if self.group is None else "resourceGroup"

    def document(self) -> dict[str, Any]:
        """What `subscription()` or `resourceGroup()` gives."""
        if self.group is None:
            return {"id": self.id, "subscriptionId": self.subscription, "tenantId": TENANT}
        return {"id": self.id, "name": self.group, "location": "westeurope"}

    @classmethod
    def of(cls, resource_id: str) -> Scope:
        """The one that `resource_id` is, or lies in. Raises ValueError for anything else."""
        parts = resource_id.split("/")
        if len(parts) < 3 or parts[1].lower() != "subscriptions" or not parts[2]:
            raise ValueError(f"{resource_id!r} lies in no subscription")
        if len(parts) == 3:
            return cls(parts[2])
        if parts[3].lower() != "resourcegroups" or len(parts) < 5 or not parts[4]:
            raise ValueError(f"{resource_id!r} lies in no resource group")
        return cls(parts[2], parts[4])
