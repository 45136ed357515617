"""How the producer uses the SDK of Event Hubs: links, and the encoding of events."""
