"""What a sender decides about its messages and batches. Pure."""
