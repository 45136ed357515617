"""Writes documents to Cosmos DB in bulk."""
