"""The consumer's functions: triggers, and its part of the HTTP API."""
