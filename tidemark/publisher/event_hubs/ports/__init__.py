"""What a producer needs from the outside: a way to the service, and a place for its state."""
