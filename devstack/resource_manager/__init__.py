"""A local Azure Resource Manager for the unmodified SDKs: App Service Plans, Cosmos DB throughput, metrics, deployments."""

from devstack.resource_manager.common.plans import (
    Instance,
    OperationStyle,
    Plan,
    RefusalCode,
    Status,
)
from devstack.resource_manager.ledger import LedgerEntry
from devstack.resource_manager.server import ResourceManagerServer
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
