"""What today's policy, what others use, and `service_level` would have made of a recorded load: one page, and what to set."""
