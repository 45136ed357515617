"""Where events are written: Cosmos DB in bulk, SQL in transactions, data lakes, hubs and queues, web services, and plug-ins."""
