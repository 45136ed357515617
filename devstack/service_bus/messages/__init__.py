"""Messages as the broker keeps them, and what waits to be one."""
