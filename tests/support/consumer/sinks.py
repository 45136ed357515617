"""Sinks as the consumer builds them from a file."""

from consumer.model import Stream
from consumer.sinks.types import SinkContext, find_sink_type, read_options

HUB = "flights"
STREAM = Stream("acme.servicebus.windows.net", HUB, "$Default")


def built(kind, settings, *, alone=True, **options):
    """A sink as the consumer builds it from a file."""
    found = find_sink_type(kind)
    context = SinkContext(settings, HUB, STREAM, "target", alone=alone)
    return found.build(read_options(found, options, "sinks.target"), context)
