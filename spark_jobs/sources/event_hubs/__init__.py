"""Live event hubs."""
