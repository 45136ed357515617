"""Notices to people by webhooks: which ones a change of state gives, and how each surely arrives."""
