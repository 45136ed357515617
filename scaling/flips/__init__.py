"""What would have led to another decision: worked out by deciding again, so that what is said comes true."""
