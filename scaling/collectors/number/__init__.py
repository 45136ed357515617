"""Collectors of one number each: asked for over HTTP, of Azure Monitor, a log, Prometheus, or any endpoint."""
