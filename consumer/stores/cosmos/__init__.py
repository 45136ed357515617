"""Dead letters in Cosmos DB."""
