"""`tidemark publish` and `tidemark send`."""
