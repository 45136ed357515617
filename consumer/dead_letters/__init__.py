"""Where rejected events are kept: Cosmos DB, SQL, blobs, memory."""
