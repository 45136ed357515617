"""Which events of a hub are neither in Cosmos DB nor kept as dead letters."""
