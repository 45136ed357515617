"""Event Hubs to Cosmos DB or SQL: exact rate, bulk, low-water checkpoints, no record lost."""
