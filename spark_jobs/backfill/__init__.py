"""Capture files into Cosmos DB through the consumer's sink, at a global rate, resumable."""
