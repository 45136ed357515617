"""Where events are written: Cosmos DB in bulk, SQL in transactions."""
