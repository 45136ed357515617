"""A local Azure Resource Manager for App Service Plans, for the unmodified management SDKs."""

from devstack.resource_manager.plans import (
    Instance,
    OperationStyle,
    Plan,
    RefusalCode,
    Status,
)
from devstack.resource_manager.server import LedgerEntry, ResourceManagerServer
from devstack.resource_manager.throttling import BucketSize

__all__ = [
    "BucketSize",
    "Instance",
    "LedgerEntry",
    "OperationStyle",
    "Plan",
    "RefusalCode",
    "ResourceManagerServer",
    "Status",
]
