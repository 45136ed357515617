"""When work may start: an exact rate, and the waits of retries. Pure."""
