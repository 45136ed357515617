"""Interfaces that a producer needs: links to the service, and a store for its state."""
