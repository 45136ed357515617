"""Sets the throughput of Cosmos DB containers and databases."""
