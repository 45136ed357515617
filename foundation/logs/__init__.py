"""What keeps the log readable: no secrets, and no lines of SDKs."""
