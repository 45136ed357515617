"""Consumes an event hub into Cosmos DB, SQL and others: exact rate, bulk writes, low-water checkpoints, no record lost."""
