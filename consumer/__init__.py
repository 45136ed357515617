"""Consumes an event hub into Cosmos DB or SQL: exact rate, bulk writes, low-water checkpoints, no record lost."""
