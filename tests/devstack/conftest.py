"""Fixtures of several files: a Service Bus for clients that block."""

from tests.support.servers import service_bus

threaded = service_bus.threaded
