"""What a producer decides about its sets of events. Pure."""
