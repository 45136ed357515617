"""The Event Hubs SDK as the producer uses it: links, and the shortest way to encode an event."""
