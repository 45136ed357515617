"""Azure Event Hubs on one machine, for the unmodified SDKs."""

from devstack.event_hubs.hubs import HubExistsError
from devstack.event_hubs.log import Retention, Stored
from devstack.event_hubs.server import EventHubsServer, Intruder

__all__ = ["EventHubsServer", "HubExistsError", "Intruder", "Retention", "Stored"]
