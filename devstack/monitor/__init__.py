"""Azure Monitor's data planes on one machine, and what else answers with one number: Prometheus, and JSON of any form."""

from devstack.monitor.server import MonitorServer

__all__ = ["MonitorServer"]
