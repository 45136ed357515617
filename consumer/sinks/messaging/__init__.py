"""Events forwarded to other event hubs, and to Service Bus queues and topics."""
