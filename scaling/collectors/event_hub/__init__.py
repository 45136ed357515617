"""How far a consumer group is behind an event hub."""
